#!/usr/bin/env python3
"""Time to an accuracy of one PyTorch script with a last worker that takes three times as long: with DistributedDataParallel over Gloo, and in a job of STAR with --mode auto, in turns.

    bench/pytorch_slow.py --star bin/star [--rounds 3] [--slow 3] [--target 0.9] [--arch ps,allreduce] [--data folder of MNIST's files]

All have the same perceptron, data set, batches of 32, SGD and seed in a round. A worker sleeps 1.25 ms for each sample, as one that waits for its accelerator;
the slow one sleeps --slow times that, and for what it has computed as many times as that makes it slower. The worker of rank 0 keeps its parameters twice a
second, which are evaluated on 2000 samples when the job is over: an accuracy is reached when the mean of three in a row is the target. Time begins with the
first batch.
star_train is found as PYTHONPATH says.
"""

import argparse
import gzip
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

BATCH, RANKS, FLOOR, EVERY, TESTS = 32, 4, 0.00125, 0.5, 2000


def digits(folder, part):
    """Images and labels of MNIST's files, or blurred strokes that are as large and easier."""
    import torch

    if not folder:
        strokes = torch.nn.functional.interpolate(torch.randn(10, 1, 7, 7, generator=torch.Generator().manual_seed(1)), size=28, mode="bilinear", align_corners=False)
        g = torch.Generator().manual_seed(2 if part == "train" else 3)
        y = torch.randint(0, 10, (60000 if part == "train" else TESTS,), generator=g)
        return strokes[y].flatten(1) + 3 * torch.randn(len(y), 784, generator=g), y
    parts = []
    for name, head in (("images-idx3", 16), ("labels-idx1", 8)):
        path = os.path.join(folder, "%s-%s-ubyte" % (part, name))
        with gzip.open(path + ".gz") if os.path.exists(path + ".gz") else open(path, "rb") as f:
            parts.append(torch.frombuffer(bytearray(f.read()[head:]), dtype=torch.uint8))
    n = len(parts[1]) if part == "train" else TESTS
    x, y = parts[0].view(-1, 784)[:n], parts[1][:n]
    return (x.float() / 255 - 0.1307) / 0.3081, y.long()


def network():
    import torch.nn as nn

    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def work(kind, args):
    """One process, which writes what it has kept to a file if its rank is 0."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    net = model = network()
    opt = torch.optim.SGD(net.parameters(), args.lr)
    data = torch.utils.data.TensorDataset(*digits(args.data, "train"))
    if kind == "star":
        import star_train.torch as star

        opt = star.attach(net, opt)
        loader = star.loader(data, BATCH)
    else:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        model = torch.nn.parallel.DistributedDataParallel(net)
        sampler = torch.utils.data.distributed.DistributedSampler(data, seed=args.seed)
        loader = torch.utils.data.DataLoader(data, BATCH, sampler=sampler, drop_last=True)
        dist.barrier()
    kept, begun, computed = [], 0.0, 0.0
    for epoch in range(args.epochs):
        if kind == "ddp":
            sampler.set_epoch(epoch)
        for x, y in loader:
            if not begun:
                begun, last = time.perf_counter(), 0.0
                rank = star.rank() if kind == "star" else rank
                slow = args.slow if rank == RANKS - 1 else 1
            cpu = time.process_time()
            time.sleep(len(x) * (slow * FLOOR + (slow - 1) * computed))
            opt.zero_grad() if kind == "star" else opt.zero_grad(set_to_none=False)
            torch.nn.functional.cross_entropy(model(x), y).backward()
            computed = (time.process_time() - cpu) / len(x)
            opt.step()
            now = time.perf_counter() - begun
            if rank == 0 and now >= last + EVERY:
                last = now
                kept.append((now, {k: v.clone() for k, v in net.state_dict().items()}))
    if begun and rank == 0:
        torch.save(kept, args.keep)


def turn(kind, args, seed, folder):
    """Runs one job: the time at which the accuracy was reached (None: never), the last accuracy, and how long it took."""
    import torch

    env = {k: v for k, v in os.environ.items() if not k.startswith("STAR_")}
    env.update(OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    keep = os.path.join(folder, "kept")
    own = [sys.executable, os.path.abspath(__file__), "--work", "ddp" if kind == "ddp" else "star", "--seed", str(seed), "--keep", keep]
    own += ["--slow", str(args.slow), "--lr", str(args.lr), "--data", args.data, "--epochs", str(args.epochs if kind == "ddp" else 1000)]
    if kind == "ddp":
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]), WORLD_SIZE=str(RANKS))
        ps = [subprocess.Popen(own, env=dict(env, RANK=str(r))) for r in range(RANKS)]
        if any([p.wait(timeout=900) for p in ps]):
            sys.exit("a process of DDP has failed")
    else:
        run = [args.star, "run", "--workers", str(RANKS), "--arch", kind, "--mode", "auto", "--epochs", str(args.epochs), "--seed", str(seed), "--progress", "off"]
        p = subprocess.run([*run, "--http", "off", "--listen", "127.0.0.1:0", "--out", os.path.join(folder, "out"), "--", *own], env=env, capture_output=True, text=True, timeout=900)
        if p.returncode:
            sys.exit("star run ended with %d:\n%s%s" % (p.returncode, p.stdout, p.stderr))
    torch.set_num_threads(1)
    x, y = digits(args.data, "t10k")
    net, accuracies, kept = network(), [], torch.load(keep)
    for _, state in kept:
        net.load_state_dict(state)
        with torch.no_grad():
            accuracies.append((net(x).argmax(1) == y).float().mean().item())
    for i in range(2, len(kept)):
        if sum(accuracies[i - 2 : i + 1]) / 3 >= args.target:
            return kept[i][0], accuracies[-1], kept[-1][0]
    return None, accuracies[-1] if accuracies else 0, kept[-1][0] if kept else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--star", default="bin/star")
    p.add_argument("--arch", default="ps,allreduce")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--slow", type=float, default=3)
    p.add_argument("--target", type=float, default=0.9)
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--data", default="")
    p.add_argument("--seed", type=int, default=1, help="of the first round")
    p.add_argument("--work", help=argparse.SUPPRESS)
    p.add_argument("--keep", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.work:
        return work(args.work, args)
    import torch

    kinds = ["ddp", *args.arch.split(",")]
    print("PyTorch %s, %d workers, the last one %gx slower; seconds until the accuracy is %.3f\n" % (torch.__version__, RANKS, args.slow, args.target))
    print("| seed | %s |\n|%s" % (" | ".join(kinds), "---|" * (1 + len(kinds))), flush=True)
    times = {k: [] for k in kinds}
    for seed in range(args.seed, args.seed + args.rounds):
        cells = []
        for k in kinds:
            with tempfile.TemporaryDirectory() as folder:
                reached, accuracy, took = turn(k, args, seed, folder)
            times[k].append(reached)
            cells.append("%s (%.3f after %.1f)" % ("never" if reached is None else "%.1f" % reached, accuracy, took))
        print("| %d | %s |" % (seed, " | ".join(cells)), flush=True)
    for k in kinds[1:]:
        ratios = [s / d for s, d in zip(times[k], times["ddp"]) if s is not None and d is not None]
        if ratios:
            print("%s / ddp: %.2f (%.2f to %.2f), %d of %d rounds" % (k, statistics.median(ratios), min(ratios), max(ratios), len(ratios), args.rounds))
        print(json.dumps({k: times[k], "ddp": times["ddp"]}))


if __name__ == "__main__":
    main()
