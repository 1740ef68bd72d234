"""Makes flight_rank_N.gz: what PyTorch's flight recorder kept of a job of three ranks, of which rank 1 computes longer from step 20 on. With PyTorch 2.15:

    TORCH_FR_BUFFER_SIZE=2000 torchrun --nproc-per-node 3 flight.py
"""

import gzip
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

dist.init_process_group("gloo")
rank = dist.get_rank()
net = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10))
model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.1)  # more buckets than one
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100):
    time.sleep(0.03 + 0.06 * (rank == 1 and step >= 20))
    opt.zero_grad()
    model(torch.randn(32, 200)).square().mean().backward()
    opt.step()
    if step % 40 == 39:
        dist.all_reduce(torch.ones(1))  # of an evaluation
dist.barrier()
with gzip.GzipFile(f"flight_rank_{rank}.gz", "wb", mtime=0) as f:
    f.write(_dump_fr_trace(includeStackTraces=False))
dist.destroy_process_group()
