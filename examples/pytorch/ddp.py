"""A script of DistributedDataParallel with STAR's ring instead of NCCL or Gloo: if a process dies, the others continue.

torchrun --nproc_per_node 4 ddp.py    # with STAR_COORDINATOR, and STAR_ARCH=allreduce: see docs/python.md
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import star_train.torch as star


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--epochs", type=int, default=5)
    args.add_argument("--count", type=int, default=4000)
    args.add_argument("--plain", action="store_true", help="without STAR")
    args.add_argument("--die", type=int, default=0, help="step in which this process kills itself")
    args.add_argument("--device", default="cpu", help="such as cuda")
    args.add_argument("--save", help="file for the parameters at the end")
    args = args.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.randn(args.count, 20, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(x, x[:, :4].argmax(1))
    sampler = torch.utils.data.distributed.DistributedSampler(data, world, rank)
    loader = torch.utils.data.DataLoader(data, 20, sampler=sampler)
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4)).to(args.device)
    model = nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
    opt = torch.optim.RMSprop(model.parameters(), 1e-3)
    if not args.plain:
        opt = star.ddp_hook(model, opt, samples=args.count, batch_size=20, epochs=args.epochs)
    steps = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for xs, ys in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(xs.to(args.device)), ys.to(args.device))
            loss.backward()
            opt.step()
            steps += 1
            if steps == args.die:
                os.kill(os.getpid(), signal.SIGKILL)
        print("epoch %d, loss %.4f" % (epoch, loss.item()), flush=True)
    if args.save:
        torch.save({k: v.clone() for k, v in model.module.state_dict().items()}, args.save)


if __name__ == "__main__":
    main()
