#!/usr/bin/env python3
"""Times a sum of float32 among the processes of one host, through memory that they share and through an agent for each process.

    go build -o /tmp/star ./cmd/star
    PYTHONPATH=python STAR_AGENT=/tmp/star python3 bench/agents.py --ranks 2,4

shared: the backend star, where each process adds up what the others have in shared memory.
agents: each process copies its tensor to memory shared with an agent of its own; the agents add up among themselves (allreduce over its shared memory), and the process
copies the result back.

Both are timed in turns in the same processes. The table has, over the operations, the median and the tenth
percentile of the slowest rank's time, in microseconds. It needs PyTorch 2.5 or newer.
"""

import argparse
import mmap
import os
import socket
import statistics
import subprocess
import sys
import time

SIZES = {"4 KiB": 4 << 10, "1 MiB": 1 << 20, "16 MiB": 16 << 20}


def rank_main(rounds: int) -> None:
    import torch
    import torch.distributed as dist

    import star_train.backend  # noqa: F401
    from star_train import _agent

    torch.set_num_threads(1)
    dist.init_process_group("star")
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("bench", dist.distributed_c10d._get_default_store())
    os.environ["STAR_HOST_ID"] = str(rank)  # an agent for each process
    agent = _agent.Agent.ensure(store, rank, size, 0, 60)
    assert agent is not None
    _agent.host_id = lambda: "one"  # their links are shared memory
    total = max(SIZES.values())
    fd = os.memfd_create("bench")
    os.truncate(fd, total)
    memory = torch.frombuffer(mmap.mmap(fd, total), dtype=torch.float32)
    hosts = agent.group(store, "bench", rank, size, fd, total, 60)

    def shared(x: torch.Tensor) -> None:
        dist.all_reduce(x)

    def agents(x: torch.Tensor) -> None:
        n = x.numel()
        memory[:n].copy_(x)
        hosts.all_reduce(0, n, "float32", "sum", 60)
        x.copy_(memory[:n])

    for name, length in SIZES.items():
        x = torch.ones(length // 4)
        times: "dict[object, list[float]]" = {shared: [], agents: []}
        for r in range(rounds):
            for f in (shared, agents) if r % 2 == 0 else (agents, shared):
                for _ in range(max(2, min(50, (32 << 20) // length))):
                    x.fill_(1)
                    dist.barrier()
                    begun = time.perf_counter()
                    f(x)
                    took = time.perf_counter() - begun
                    if r > 0:
                        times[f].append(took)
                assert x[0] == x[-1] == size
        for f in (shared, agents):
            slowest = torch.tensor(times[f], dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if rank == 0:
                all_of = sorted(slowest.tolist())
                print("%d\t%s\t%s\t%.0f\t%.0f" % (size, name, f.__name__, statistics.median(all_of) * 1e6, all_of[len(all_of) // 10] * 1e6), flush=True)
    hosts.close()
    dist.barrier()
    agent.close()
    dist.destroy_process_group()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--ranks", default="2,4")
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.rank:
        return rank_main(args.rounds)
    print("ranks\tsize\tway\tmedian µs\ttenth µs")
    for n in map(int, args.ranks.split(",")):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(n), STAR_WATCH="false", OMP_NUM_THREADS="1")
        ranks = [subprocess.Popen([sys.executable, __file__, "--rank", "--rounds", str(args.rounds)], env=dict(env, RANK=str(r))) for r in range(n)]
        codes = [r.wait() for r in ranks]
        if any(codes):
            sys.exit("ranks ended with %s" % codes)


if __name__ == "__main__":
    main()
