"""A GAN: two optimizers in turns with each batch:

star run --workers 4 --arch allreduce -- python gan.py

Each step of either optimizer takes the mean gradient of all workers. A batch of the data set counts once.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

import star_train.torch as star

CODE = 2


class Ring(torch.utils.data.Dataset):
    """Points near a circle."""

    def __init__(self, count):
        g = torch.Generator().manual_seed(1)
        angle = torch.rand(count, 1, generator=g) * 2 * torch.pi
        self.points = torch.cat([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2, generator=g)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        return self.points[i]


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--count", type=int, default=8000)
    args.add_argument("--epochs", type=int, default=20)
    args.add_argument("--batch-size", type=int, default=64)
    args = args.parse_args()
    torch.manual_seed(1)
    generator = nn.Sequential(nn.Linear(CODE, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    opt_g = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(critic.parameters(), 2e-3, betas=(0.5, 0.999))
    star.attach({"generator": generator, "critic": critic}, [opt_d, opt_g], own=True)  # in the order of their steps

    def test(codes):
        """How far from the circle points are, as a loss, and how many are near it."""
        off = (generator(codes).norm(dim=1) - 1).abs()
        return float(off.sum()), int((off < 0.2).sum()), len(codes)

    star.evaluate(test, torch.randn(1000, CODE, generator=torch.Generator().manual_seed(2)))
    loader = star.loader(Ring(args.count), args.batch_size, epochs=args.epochs)
    torch.seed()  # each worker has noise of its own
    for epoch in range(args.epochs):
        loss_d = None
        for real in loader:
            fake = generator(torch.randn(len(real), CODE))

            opt_d.zero_grad()
            loss_d = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
            loss_d.backward()
            opt_d.step()

            opt_g.zero_grad()
            loss_g = F.softplus(-critic(fake)).mean()
            loss_g.backward()
            opt_g.step()
        if loss_d is not None:  # a resumed job has no batches in the epochs before
            print("epoch %d, critic %.3f, generator %.3f" % (epoch, loss_d.item(), loss_g.item()))


if __name__ == "__main__":
    main()
