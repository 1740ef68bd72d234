"""Workers of several processes, each with a shard of the model (fully_shard of PyTorch 2.6 or later), or with --ddp with a copy of it.

star run --workers 2 --procs-per-worker 2 -- python fsdp.py
star run --workers 2 -- torchrun --standalone --nproc_per_node 2 fsdp.py
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import star_train.torch as star


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--epochs", type=int, default=5)
    args.add_argument("--count", type=int, default=4000)
    args.add_argument("--ddp", action="store_true", help="DistributedDataParallel instead of fully_shard")
    args.add_argument("--slow", type=float, default=0, help="seconds that the last process of worker 1 sleeps in each step")
    args = args.parse_args()
    dist.init_process_group("gloo")
    me, group = dist.get_rank(), dist.group.WORLD
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    if args.ddp:
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(model)
    opt = star.attach(model, torch.optim.AdamW(model.parameters(), 3e-3), group=group)
    x = torch.randn(args.count, 20, generator=torch.Generator().manual_seed(1))
    loader = star.loader(torch.utils.data.TensorDataset(x, x[:, :4].argmax(1)), batch_size=20)  # of each process
    for _ in range(args.epochs):
        for xs, ys in loader:
            if args.slow and star.rank() == 1 and me == dist.get_world_size() - 1:
                time.sleep(args.slow)
            opt.zero_grad()
            loss = F.cross_entropy(model(xs), ys)
            loss.backward()
            opt.step()
    if me == 0:
        print("worker %d of %d: %d processes, last loss %.4f" % (star.rank(), star.workers(), dist.get_world_size(), loss))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
