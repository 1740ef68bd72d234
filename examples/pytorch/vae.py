"""A variational autoencoder of small images, with a loss that is a sum over the batch:

star run --workers 4 -- python vae.py

Batches are whole in every mode, so the loss is that of plain PyTorch. With divisible=True, which allows cutting them, loss="sum" keeps the length of an update.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

import star_train.torch as star

SIDE = 12


class Pictures(torch.utils.data.Dataset):
    """A bright bar across a dark picture, at any height, of either direction."""

    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.at = torch.randint(0, SIDE - 2, (count,), generator=g)
        self.upright = torch.rand(count, generator=g) < 0.5

    def __len__(self):
        return len(self.at)

    def __getitem__(self, i):
        x = torch.zeros(SIDE, SIDE)
        x[self.at[i] : self.at[i] + 3] = 1
        return (x.t() if self.upright[i] else x).flatten()


class VAE(nn.Module):
    def __init__(self, hidden, code):
        super().__init__()
        self.encoder, self.mean, self.spread = nn.Linear(SIDE * SIDE, hidden), nn.Linear(hidden, code), nn.Linear(hidden, code)
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, SIDE * SIDE))

    def forward(self, x):
        h = torch.relu(self.encoder(x))
        mean, log_variance = self.mean(h), self.spread(h)
        z = mean + torch.randn_like(mean) * torch.exp(log_variance / 2) if self.training else mean
        return self.decoder(z), mean, log_variance


def loss_of(model, x):
    """Reconstruction and divergence, summed over the batch (Kingma and Welling, ICLR 2014, equation 10)."""
    out, mean, log_variance = model(x)
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return F.binary_cross_entropy_with_logits(out, x, reduction="sum") + divergence


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--count", type=int, default=4000)
    args.add_argument("--epochs", type=int, default=5)
    args.add_argument("--batch-size", type=int, default=32)
    args.add_argument("--divisible", action="store_true")
    args = args.parse_args()
    torch.manual_seed(1)
    model = VAE(64, 4)
    opt = star.attach(model, torch.optim.Adam(model.parameters(), lr=2e-3))
    star.evaluate(lambda x: (loss_of(model, x).item(), 0, len(x)), Pictures(args.count // 4, 2))
    loader = star.loader(Pictures(args.count, 1), args.batch_size, epochs=args.epochs, divisible=args.divisible, loss="sum")
    for epoch in range(args.epochs):
        loss = None
        for x in loader:
            opt.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            opt.step()
        if loss is not None:  # a resumed job has no batches in the epochs before
            print("epoch %d, loss of a picture %.2f" % (epoch, loss.item() / len(x)))


if __name__ == "__main__":
    main()
