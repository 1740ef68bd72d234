#!/usr/bin/env python3
"""What star watch says that STAR would save of a job, beside what running that job on STAR does save: ten kinds of slowness, of three ranks.

    go build -o star ./cmd/star && PYTHONPATH=python bench/savings.py --star ./star [--modes x=2,asgd] [--only steady,data] [--steps 120]

Each job is one PyTorch script with SGD: with DistributedDataParallel under star watch, and in star run --mode for each mode. Ranks mostly sleep, so that a busy
machine counts for little. The worker of rank 0 keeps its parameters five times a second, and their loss is taken afterwards; the time saved is that until the
loss is what DDP's was after seven tenths of its steps. Prints a CSV line for each job and mode, in percent: what was said (from, to), and what was seen, of
DDP's time, which is what star watch speaks of, and of that in star run --mode ssgd.
"""

import argparse
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time

RANKS, BATCH, BASE, EVERY, FEATURES = 3, 16, 0.04, 0.2, 64


def now_and_then(rank, step, part, extra):
    return extra if random.Random(1000 * step + rank).random() < part else 0


# By rank and step: seconds of sleep more than BASE.
KINDS = {
    "none": lambda r, s: 0,
    "mild": lambda r, s: 0.015 * (r == 2),
    "steady": lambda r, s: 0.04 * (r == 2),
    "three times": lambda r, s: 0.08 * (r == 2),
    "five times": lambda r, s: 0.16 * (r == 2),
    "two": lambda r, s: 0.08 * (r > 0),
    "in turns": lambda r, s: 0.08 * (r == s // 10 % RANKS),
    "all now and then": lambda r, s: now_and_then(r, s, 0.1, 0.2),
    "one now and then": lambda r, s: now_and_then(r, s, 0.3, 0.15) * (r == 1),
    "data": lambda r, s: 0.08 * (r == 2),
}


def samples(n, seed):
    """Classes with means apart by a third of the scatter of samples."""
    import torch

    means = torch.randn(10, FEATURES, generator=torch.Generator().manual_seed(1))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (n,), generator=g)
    return means[y] + 3 * torch.randn(n, FEATURES, generator=g), y


def work(args):
    """A process of the job. Rank 0 writes what it has kept to a file."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    net = model = torch.nn.Linear(FEATURES, 10)
    opt = torch.optim.SGD(net.parameters(), 0.02)
    x, y = samples(RANKS * BATCH * args.steps * (1 if args.work == "ddp" else 2), 2)
    step, place = 0, {}

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return len(y)

        def __getitem__(self, i):
            if args.kind == "data" and place:
                time.sleep(KINDS["data"](place["rank"], step) / BATCH)
            return x[i], y[i]

    if args.work == "ddp":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank = dist.get_rank()
        model = torch.nn.parallel.DistributedDataParallel(net)
        loader = torch.utils.data.DataLoader(Data(), BATCH, sampler=torch.utils.data.distributed.DistributedSampler(y), drop_last=True)
        dist.barrier()
    else:
        import star_train.torch as star

        opt = star.attach(net, opt)
        loader = star.loader(Data(), BATCH)
    kept, begun = [], 0.0
    for a, b in loader:
        if not begun:
            begun, last = time.perf_counter(), 0.0
            place["rank"] = rank if args.work == "ddp" else star.rank()
        # In proportion to the samples: modes of STAR may give a worker fewer.
        time.sleep((BASE + (0 if args.kind == "data" else KINDS[args.kind](place["rank"], step))) * len(b) / BATCH)
        opt.zero_grad()
        torch.nn.functional.cross_entropy(model(a), b).backward()
        opt.step()
        step += 1
        at = time.perf_counter() - begun
        if place["rank"] == 0 and at >= last + EVERY:
            last = at
            kept.append((at, {k: v.clone() for k, v in net.state_dict().items()}))
    if place.get("rank") == 0:
        torch.save(kept, args.keep)


def ranks(args):
    """The processes of DDP, as a launcher starts them."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]), WORLD_SIZE=str(RANKS))
    own = [sys.executable, os.path.abspath(__file__), "--work", "ddp", "--kind", args.kind, "--steps", str(args.steps), "--keep", args.keep]
    ps = [subprocess.Popen(own, env=dict(env, RANK=str(r))) for r in range(RANKS)]
    return max([p.wait() for p in ps])


def turn(args, kind, mode):
    """Runs one job: times and losses of what was kept, and what was printed. mode "": DDP under star watch."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        keep = os.path.join(folder, "kept")
        own = [sys.executable, os.path.abspath(__file__), "--work", "star" if mode else "ranks", "--kind", kind, "--steps", str(args.steps), "--keep", keep]
        if mode:
            head = [args.star, "run", "--workers", str(RANKS), "--mode", mode, "--epochs", "1", "--progress", "off", "--http", "off", "--listen", "127.0.0.1:0", "--out", os.path.join(folder, "out"), "--"]
        else:
            head = [args.star, "watch", "--out", os.path.join(folder, "watch"), "--"]
        env = dict({k: v for k, v in os.environ.items() if not k.startswith("STAR_")}, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
        p = subprocess.run([*head, *own], env=env, capture_output=True, text=True, timeout=900)
        if p.returncode:
            sys.exit("%s ended with %d:\n%s%s" % (" ".join(head[:2]), p.returncode, p.stdout, p.stderr))
        kept = torch.load(keep)
    x, y = samples(20000, 3)
    net, losses = torch.nn.Linear(FEATURES, 10), []
    for _, state in kept:
        net.load_state_dict(state)
        with torch.no_grad():
            losses.append(torch.nn.functional.cross_entropy(net(x), y).item())
    return [at for at, _ in kept], losses, p.stdout + p.stderr


def reached(times, losses, target):
    """When the loss was the target, between two that were kept; None: never."""
    last = (0.0, None)
    for at, loss in zip(times, losses):
        if loss <= target:
            before = last[1] if last[1] is not None else loss
            return at if before <= loss else last[0] + (at - last[0]) * (before - target) / (before - loss)
        last = (at, loss)
    return None


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--star", default="./star")
    p.add_argument("--modes", default="x=2,asgd")
    p.add_argument("--only", default=",".join(KINDS))
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--work", help=argparse.SUPPRESS)
    p.add_argument("--kind", help=argparse.SUPPRESS)
    p.add_argument("--keep", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.work == "ranks":
        sys.exit(ranks(args))
    if args.work:
        return work(args)
    if unknown := set(args.only.split(",")) - set(KINDS):
        p.error("--only: %s: want some of %s" % (", ".join(sorted(unknown)), ", ".join(KINDS)))
    import torch

    torch.set_num_threads(1)
    near = {"DDP": [], "ssgd": []}
    print("kind,mode,said from,said to,seen of DDP,seen of ssgd,load")
    for kind in args.only.split(","):
        times, losses, said = turn(args, kind, "")
        target = losses[int(0.7 * len(losses))]
        before = reached(times, losses, target)
        line = next((s for s in reversed(said.splitlines()) if "spent waiting for slow ranks" in s or "STAR would save" in s or "would not save any" in s), "")
        whole = reached(*turn(args, kind, "ssgd")[:2], target)
        for mode in args.modes.split(","):
            m = re.search(r"%s (up to )?(\d+)(?: to (\d+))? %%" % re.escape(mode), line.split("STAR would save")[-1])
            low, high = (0 if m[1] else int(m[2]), int(m[3] or m[2])) if m else (0, 0)
            after = reached(*turn(args, kind, mode)[:2], target)
            seen = {}
            for of, t in ("DDP", before), ("ssgd", whole):
                seen[of] = 100 * (1 - after / t) if after and t else None
                # Of a mode that is not named nothing is promised: what it would cost is not forecast.
                near[of].append(seen[of] is not None and low - 10 <= max(seen[of], 0) <= high + 10)
            print("%s,%s,%d,%d,%s,%.0f" % (kind, mode, low, high, ",".join("never" if s is None else "%.0f" % s for s in seen.values()), os.getloadavg()[0]), flush=True)
    for of, ok in near.items():
        print("# within 10 points of %s's time: %d of %d" % (of, sum(ok), len(ok)))


if __name__ == "__main__":
    main()
