"""Measures the backend star of torch.distributed beside Gloo, in turns in the same processes.

    python3 bench/backend.py [all_reduce] [ddp] [fsdp] [--ranks 2,4] [--rounds 7]

all_reduce: medians of float32 sums of 4 KiB to 100 MB. ddp: a training step of DistributedDataParallel with 1 M and 25 M parameters. fsdp: the same with
fully_shard. Each round measures both backends one after the other, in an order that alternates, so that load of other programs meets both. Prints the
median of each, and their ratio. PyTorch 2.5 or later is needed; each process has one thread, as under torchrun.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import star_train.backend  # noqa: E402, F401

SIZES = ((4 << 10, 300), (64 << 10, 150), (1 << 20, 40), (16 << 20, 5), (100_000_000, 1))  # bytes, calls in a row


def turns(rounds, measure):
    """Median seconds of star and of Gloo, from the slowest rank of each round."""
    times = {"star": [], "gloo": []}
    for i in range(rounds):
        for backend in ("star", "gloo") if i % 2 == 0 else ("gloo", "star"):
            times[backend].append(measure(backend))
    slowest = torch.tensor([times["star"], times["gloo"]], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return [statistics.median(t) for t in slowest.tolist()]


def report(what, star, gloo):
    if dist.get_rank() == 0:
        print("| %d | %s | %.3f | %.3f | %.2f |" % (dist.get_world_size(), what, star * 1e3, gloo * 1e3, gloo / star), flush=True)


def all_reduce(groups, rounds):
    for size, calls in SIZES:
        x = torch.ones(size // 4)
        for group in groups.values():
            for _ in range(2):
                dist.all_reduce(x.fill_(1), group=group)

        def measure(backend, x=x, calls=calls):
            x.zero_()
            dist.barrier(groups["gloo"])
            begin = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(x, group=groups[backend])
            return (time.perf_counter() - begin) / calls

        report("all_reduce, %d bytes" % size, *turns(rounds, measure))


def model(parameters):
    width = 512 if parameters < 5_000_000 else 1024
    layers = round(parameters / (width * width))
    return torch.nn.Sequential(*[m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())]), width


def steps(net, width, groups, group):
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    x = torch.randn(8, width)

    def step():
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(4):
        step()

    def measure():
        dist.barrier(groups["gloo"])
        begin = time.perf_counter()
        for _ in range(3):
            step()
        return (time.perf_counter() - begin) / 3

    return measure


def ddp(groups, rounds):
    for parameters in (1_000_000, 25_000_000):
        made = {}
        for backend, group in groups.items():
            torch.manual_seed(0)
            net, width = model(parameters)
            made[backend] = steps(torch.nn.parallel.DistributedDataParallel(net, process_group=group), width, groups, group)
        report("DDP step, %d M parameters" % (parameters // 1_000_000), *turns(rounds, lambda backend, made=made: made[backend]()))


def fsdp(groups, rounds):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    made = {}
    for backend, group in groups.items():
        torch.manual_seed(0)
        net, width = model(25_000_000)
        mesh = DeviceMesh.from_group(group, "cpu")
        for m in net:
            if isinstance(m, torch.nn.Linear):
                fully_shard(m, mesh=mesh)
        made[backend] = steps(fully_shard(net, mesh=mesh), width, groups, group)
    report("FSDP2 step, 25 M parameters", *turns(rounds, lambda backend: made[backend]()))


def run(rank, ranks, port, args):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("star", rank=rank, world_size=ranks)
    groups = {"star": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    measures = {"all_reduce": all_reduce, "ddp": ddp, "fsdp": fsdp}
    for what in measures if "all" in args.what else args.what:
        measures[what](groups, args.rounds)
    dist.destroy_process_group()


def main():
    p = argparse.ArgumentParser(description="Measures the backend star of torch.distributed beside Gloo.")
    p.add_argument("what", nargs="*", choices=["all_reduce", "ddp", "fsdp", "all"], default="all")
    p.add_argument("--ranks", default="2,4", help="numbers of processes (default: 2,4)")
    p.add_argument("--rounds", type=int, default=7, help="measurements of each backend (default: 7)")
    args = p.parse_args()
    print("PyTorch %s, %d processors, load %.1f\n" % (torch.__version__, os.cpu_count() or 0, os.getloadavg()[0]))
    print("| ranks | what | star ms | gloo ms | gloo/star |\n|---|---|---|---|---|", flush=True)
    for ranks in map(int, args.ranks.split(",")):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        mp.spawn(run, (ranks, port, args), ranks)


if __name__ == "__main__":
    main()
