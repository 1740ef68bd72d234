#!/usr/bin/env python3
"""What STAR's exchange adds to a training step on a GPU, beside what the copies and the ring take, and beside DistributedDataParallel.

    bench/gpu_step.py STAR [--rows 25:2:float32:allreduce,…] [--out FILE]

STAR is the program. A row is millions of parameters : workers, all on one GPU : type of the parameters : arch (allreduce or ps). The workers of a row take turns between
these, in one run, in three rounds of steps; each time is the median of worker 0:

    plain      forward, backward and SGD of PyTorch, without an exchange, on all workers at once
    star       the same with STAR: gradients to the memory, the ring, the update there, parameters back
    ring       a step of STAR that computes and copies nothing: the link, the ring and the update
    copies     gradients to the memory and parameters back, all workers at once: bytes over measured bandwidth of the bus
    ddp        DistributedDataParallel over Gloo, with tensors on the GPU (NCCL refuses two ranks on one GPU)
    nccl       with one worker: DistributedDataParallel over NCCL

exposed is star - plain; ratio is exposed / (copies + ring). Needs PyTorch with CUDA.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROUNDS = 3
STEPS = {1: (3, 20), 25: (2, 8), 100: (1, 4)}  # of a round, by millions of parameters: not counted, and counted
ROWS = "1:1:float32:allreduce,1:2:float32:allreduce,1:4:float32:allreduce,25:1:float32:allreduce,25:2:float32:allreduce,25:4:float32:allreduce,100:1:float32:allreduce,"
ROWS += "100:2:float32:allreduce,100:4:float32:allreduce,25:2:bfloat16:allreduce,100:2:bfloat16:allreduce,25:2:float32:ps"
WIDTHS = {1: (512, 4), 25: (2048, 6), 100: (4096, 6)}  # millions of parameters: width and number of layers


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


def work(millions, workers, dtype, folder):
    """One worker of a row."""
    import torch
    import torch.distributed as dist
    import torch.nn as nn

    import star_train.torch as star

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # to try this script without a GPU
    sync = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    (width, layers), (warm, steps) = WIDTHS[millions], STEPS[millions]
    dtype = getattr(torch, dtype)
    x = torch.randn(1024, width).to(device, dtype)

    def net():
        torch.manual_seed(1)
        return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)]).to(device, dtype)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()

    def timed(times, f):
        for k in range(warm + steps):
            begun = time.perf_counter()
            f()
            sync()
            if k >= warm:
                times.append(time.perf_counter() - begun)

    model = net()
    opt = star.attach(model, torch.optim.SGD(model.parameters(), 1e-3))
    batches = iter(star.loader(list(range(1_000_000)), batch_size=8))
    next(batches)
    step(model, opt)
    rank = star.rank()
    dist.init_process_group("gloo", init_method="file://%s/group" % folder, rank=rank, world_size=workers)
    gpu, memory = star._session.gpu, star._session.memory
    plain, ddp = net(), nn.parallel.DistributedDataParallel(net())
    plain_opt, ddp_opt = (torch.optim.SGD(m.parameters(), 1e-3) for m in (plain, ddp))
    times = {k: [] for k in ("star", "plain", "ddp", "ring", "to", "from")}
    if workers == 1 and device.type == "cuda":
        group = dist.new_group(backend="nccl")
        nccl = nn.parallel.DistributedDataParallel(net(), process_group=group)
        nccl_opt = torch.optim.SGD(nccl.parameters(), 1e-3)
        times["nccl"] = []

    def with_star():
        next(batches)
        step(model, opt)

    def ring():
        next(batches)
        opt.step(loss=0.0)

    def bus():
        if gpu is None:
            return
        flat = torch.empty(memory.nparams, device=device)
        for _ in range(warm + steps):
            dist.barrier()
            begun = time.perf_counter()
            flat.copy_(gpu.params, non_blocking=True)
            sync()
            then = time.perf_counter()
            gpu.grads.copy_(flat, non_blocking=True)
            sync()
            times["to"].append(then - begun)
            times["from"].append(time.perf_counter() - then)

    for _ in range(ROUNDS):
        dist.barrier()
        timed(times["star"], with_star)
        dist.barrier()
        timed(times["plain"], lambda: step(plain, plain_opt))
        dist.barrier()
        timed(times["ddp"], lambda: step(ddp, ddp_opt))
        if "nccl" in times:
            timed(times["nccl"], lambda: step(nccl, nccl_opt))
        dist.barrier()
        if gpu is not None:
            gpu.leave, gpu.there, gpu.take = (lambda again: None), (lambda wait=False: 0), (lambda evaluate=False: None)
        timed(times["ring"], ring)
        if gpu is not None:
            del gpu.leave, gpu.there, gpu.take
        bus()
    if rank == 0:
        t = {k: 1e3 * median(v) for k, v in times.items() if v}
        t["copies"] = t.get("to", 0) + t.get("from", 0)
        t["exposed"] = t["star"] - t["plain"]
        t["ratio"] = t["exposed"] / (t["copies"] + t["ring"])
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "processor"
        megabytes = 4e-6 * memory.nparams
        row = dict(card=name, torch=torch.__version__, parameters=memory.nparams, megabytes=round(megabytes, 1), **{k: round(v, 3) for k, v in t.items()})
        pathlib.Path(folder, "row.json").write_text(json.dumps(row))
    dist.barrier()
    if rank == 0:
        print("worker 0 has measured", flush=True)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("star", help="the program")
    args.add_argument("--rows", default=ROWS)
    args.add_argument("--out", help="file for one line of JSON for each row")
    args.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    args = args.parse_args()
    if args.work:
        millions, workers, dtype, folder = args.work
        return work(int(millions), int(workers), dtype, folder)
    root = pathlib.Path(__file__).resolve().parents[1]
    path = os.pathsep.join(filter(None, [str(root / "python"), os.environ.get("PYTHONPATH", "")]))
    star = str(pathlib.Path(args.star).resolve())
    columns = ("plain", "star", "exposed", "copies", "ring", "ratio", "ddp", "nccl")
    print("%-28s" % "ms of a step" + "".join("%9s" % c for c in columns), flush=True)
    for spec in args.rows.split(","):
        millions, workers, dtype, arch = spec.split(":")
        with tempfile.TemporaryDirectory() as folder:
            steps = 1 + ROUNDS * 2 * sum(STEPS[int(millions)])
            command = [star, "run", "--workers", workers, "--arch", arch, "--mode", "ssgd", "--steps", str(steps), "--http", "off", "--out", folder + "/out"]
            command += ["--", sys.executable, os.path.abspath(__file__), star, "--work", millions, workers, dtype, folder]
            log = subprocess.run(command, cwd=folder, env=dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="2"), capture_output=True, text=True, timeout=120)
            found = pathlib.Path(folder, "row.json")
            if not found.exists():
                print("%-28s exit code %d: %s" % (spec, log.returncode, (log.stdout + log.stderr)[-1500:]), flush=True)
                continue
            row = json.loads(found.read_text())
        print("%-28s" % spec + "".join("%9s" % (("%.3f" % row[c]) if c in row else "-") for c in columns), flush=True)
        if args.out:
            with open(args.out, "a") as f:
                f.write(json.dumps(dict(row=spec, **row)) + "\n")


if __name__ == "__main__":
    main()
