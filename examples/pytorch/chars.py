"""A small Transformer that learns to write a text, character by character:

star run --workers 4 -- python chars.py --text FILE
"""

import argparse
import math
import pathlib

import torch
import torch.nn as nn
import torch.nn.functional as F

import star_train.torch as star


class Text(torch.utils.data.Dataset):
    """Windows of a text."""

    def __init__(self, numbers, length):
        self.numbers, self.length = numbers, length

    def __len__(self):
        return (len(self.numbers) - 1) // self.length

    def __getitem__(self, i):
        at = i * self.length
        return self.numbers[at : at + self.length], self.numbers[at + 1 : at + self.length + 1]


class Writer(nn.Module):
    def __init__(self, letters, width, heads, layers, length):
        super().__init__()
        self.letter = nn.Embedding(letters, width)
        self.place = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, letters, bias=False)
        self.out.weight = self.letter.weight  # tied
        self.register_buffer("mask", torch.full((length, length), -math.inf).triu(1), persistent=False)

    def forward(self, x):
        h = self.letter(x) + self.place
        for block in self.blocks:
            h = block(h, src_mask=self.mask)
        return self.out(self.norm(h))


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--text", default=__file__, help="file to learn (default: this one)")
    args.add_argument("--epochs", type=int, default=3)
    args.add_argument("--width", type=int, default=64)
    args.add_argument("--layers", type=int, default=2)
    args.add_argument("--length", type=int, default=64)
    args.add_argument("--batch-size", type=int, default=16)
    args = args.parse_args()
    text = pathlib.Path(args.text).read_text()
    letters = sorted(set(text))
    numbers = torch.tensor([letters.index(c) for c in text])
    cut = len(numbers) * 9 // 10
    trainset, testset = Text(numbers[:cut], args.length), Text(numbers[cut:], args.length)
    torch.manual_seed(1)
    model = Writer(len(letters), args.width, 4, args.layers, args.length)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    opt = star.attach(model, torch.optim.AdamW(groups, lr=3e-3))
    steps = -(-len(trainset) * args.epochs // args.batch_size)
    warmup = max(steps // 20, 1)
    star.schedule(torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min((k + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * min(k / steps, 1)))), every=args.batch_size)

    def test(batch):
        out, y = model(batch[0]), batch[1]
        return F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum").item(), (out.argmax(2) == y).sum().item(), y.numel()

    star.evaluate(test, testset)
    loader = star.loader(trainset, args.batch_size, epochs=args.epochs)
    for epoch in range(args.epochs):
        loss = None
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        if loss is not None:  # a resumed job has no batches in the epochs before
            print("epoch %d, loss %.4f" % (epoch, loss.item()))


if __name__ == "__main__":
    main()
