#!/usr/bin/env python3
"""A training step of PyTorch: alone, with DistributedDataParallel over Gloo, and in a ring of STAR, in turns, and the ratio of their medians.

    bench/pytorch.py --star bin/star [--rounds 3] [--steps 60] [--ranks 1,2,4] [--sizes 26k,1M,25M]

All have the same model (one square matrix), data set, loader and SGD, one thread for each process. *Alone* is as many processes that do not speak
with each other, so what the others take beyond it is exposed communication. star_train is found as PYTHONPATH says.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = {"26k": 160, "1M": 1000, "25M": 5000}
BATCH, WARM = 8, 10


def work(kind, width, steps):
    """One process: prints the median of its steps."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Linear(width, width)
    data = torch.utils.data.TensorDataset(torch.randn(512, width), torch.randn(512, width))
    opt = torch.optim.SGD(model.parameters(), 1e-4)
    if kind == "star":
        import star_train.torch as star

        opt = star.attach(model, opt)
        loader = star.loader(data, BATCH)
    else:
        sampler = None
        if kind == "ddp":
            dist.init_process_group("gloo")
            model = torch.nn.parallel.DistributedDataParallel(model)
            sampler = torch.utils.data.distributed.DistributedSampler(data)
        loader = torch.utils.data.DataLoader(data, BATCH, shuffle=sampler is None, sampler=sampler)
    times = []
    last = time.perf_counter()
    while len(times) < steps:
        before = len(times)
        for x, y in loader:
            opt.zero_grad() if kind == "star" else opt.zero_grad(set_to_none=False)
            torch.nn.functional.mse_loss(model(x), y).backward()
            opt.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) == steps:
                break
        if len(times) == before:
            break  # the job is over
    print("MEDIAN %.9f" % statistics.median(times[WARM:]), flush=True)


def medians(text):
    return [float(line.split("MEDIAN ")[1]) for line in text.splitlines() if "MEDIAN " in line]


def turn(kind, ranks, width, steps, star, folder):
    """The median step of the slowest process."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("STAR_")}
    env.update(OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    own = [sys.executable, os.path.abspath(__file__), "--work", kind, str(width), str(steps)]
    if kind == "star":
        run = [star, "run", "--workers", str(ranks), "--arch", "allreduce", "--mode", "ssgd", "--steps", str(steps), "--http", "off", "--listen", "127.0.0.1:0", "--out", folder]
        p = subprocess.run([*run, "--keep", "1", "--", *own], env=env, capture_output=True, text=True, timeout=600)
        if p.returncode:
            sys.exit("star run ended with %d:\n%s%s" % (p.returncode, p.stdout, p.stderr))
        found = medians(p.stdout + p.stderr)
    else:
        import socket

        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]), WORLD_SIZE=str(ranks))
        ps = [subprocess.Popen(own, env=dict(env, RANK=str(r)), stdout=subprocess.PIPE, text=True) for r in range(ranks)]
        found = [m for p in ps for m in medians(p.communicate(timeout=600)[0])]
    if len(found) != ranks:
        sys.exit("%s: %d of %d processes have measured" % (kind, len(found), ranks))
    return max(found)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--star", default="bin/star")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--ranks", default="2,4")
    p.add_argument("--sizes", default=",".join(SIZES))
    p.add_argument("--json", action="store_true", help="one line of JSON for each row")
    args = p.parse_args()
    import torch

    if not args.json:
        print("PyTorch %s, medians of %d turns of %d steps; ms a step\n" % (torch.__version__, args.rounds, args.steps))
        print("| parameters | ranks | alone | DDP, Gloo | STAR, ring | exposed: DDP, STAR | STAR / DDP |\n|---|---|---|---|---|---|---|")
    for name in args.sizes.split(","):
        for ranks in map(int, args.ranks.split(",")):
            kinds = ("alone", "ddp", "star")
            times = {k: [] for k in kinds}
            for _ in range(args.rounds):
                for k in kinds:
                    with tempfile.TemporaryDirectory() as folder:
                        times[k].append(turn(k, ranks, SIZES[name], args.steps, args.star, folder))
            ratios = sorted(s / d for s, d in zip(times["star"], times["ddp"]))
            alone, ddp, star = (1e3 * statistics.median(times[k]) for k in kinds)
            if args.json:
                print(json.dumps({"parameters": name, "ranks": ranks, "ms": times, "ratios": ratios}), flush=True)
            else:
                row = (name, ranks, alone, ddp, star, ddp - alone, star - alone, statistics.median(ratios), ratios[0], ratios[-1])
                print("| %s | %d | %.2f | %.2f | %.2f | %.2f, %.2f | %.2f (%.2f to %.2f) |" % row, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
