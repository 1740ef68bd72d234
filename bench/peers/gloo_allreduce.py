"""All-reduce of PyTorch's Gloo: the float32 sum in place, as star bench allreduce measures it.

Arguments: RANK SIZE PORT bytes:inner:samples ... A sample is the time of `inner` operations in a row, after a
barrier, divided by inner; the slowest rank counts. Rank 0 writes one line of JSON for each size.
"""
import json
import resource
import sys
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
rank, size, port = map(int, sys.argv[1:4])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)


def cpu():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


for arg in sys.argv[4:]:
    nbytes, inner, samples = map(int, arg.split(":"))
    v = torch.zeros(max(1, nbytes // 4))
    times, used = [], 0.0
    for s in range(-1, samples):  # one to warm up
        dist.barrier()
        c, t = cpu(), time.perf_counter()
        for _ in range(inner):
            dist.all_reduce(v)
        mine = torch.tensor([(time.perf_counter() - t) / inner], dtype=torch.float64)
        c = cpu() - c
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        if s >= 0:
            times.append(mine.item())
            used += c
    total = torch.tensor([used], dtype=torch.float64)
    dist.all_reduce(total)
    if rank == 0:
        print(json.dumps({"bytes": nbytes, "times": times, "ops": inner * samples, "cpu": total.item()}), flush=True)
