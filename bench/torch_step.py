#!/usr/bin/env python3
"""Time one training step of PyTorch on the models of star/train/net.

    bench/torch_step.py MODEL BATCH STEPS

MODEL is mlp, lenet, resnet20, lstm or transformer, with the architecture that
`net.Build` makes of

    mlp                                  on 784 features, 10 classes
    lenet                                on 1x28x28, 10 classes
    resnet20                             on 3x32x32, 10 classes
    lstm:layers=1,embed=128,hidden=128   on 50 tokens of a vocabulary of 64
    transformer:layers=1,width=64        on 32 tokens of a vocabulary of 64

A step is zero_grad, forward, cross-entropy, backward; no optimiser, as in
train.Model.Grad. One thread. Prints one line of JSON:

    {"model", "spec", "batch", "steps", "cpu_s_per_step", "min_s", "parameters", "torch"}

spec is the model as net.Parse reads it.

cpu_s_per_step is processor time of the process over all steps; min_s the wall time
of the fastest step. Needs PyTorch (Debian: python3-torch).
"""
import json
import os
import sys
import time

for library in ("OMP", "MKL", "OPENBLAS", "BLIS"):  # set_num_threads does not reach all of them
    os.environ[library + "_NUM_THREADS"] = "1"

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError as e:
    sys.exit(f"torch_step.py: PyTorch is missing ({e}); install python3-torch")


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.stride, self.pad = stride, (cout - cin) // 2

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.pad or self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(y + x)


def resnet20():
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    cin = 16
    for stage in range(3):
        for block in range(3):
            cout = 16 << stage
            layers.append(Block(cin, cout, 2 if stage and not block else 1))
            cin = cout
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def images(shape):
    def data(batch):
        return torch.randn(batch, *shape), torch.randint(0, 10, (batch,))

    return data


SPECS = {"lstm": "lstm:layers=1,embed=128,hidden=128", "transformer": "transformer:layers=1,width=64"}
LSTM_SETTINGS = dict(vocabulary=64, steps=50, embed=128, hidden=128, layers=1)
TRANSFORMER_SETTINGS = dict(vocabulary=64, steps=32, width=64, heads=4, layers=1, ff=256)


class LSTM(nn.Module):
    def __init__(self, vocabulary, steps, embed, hidden, layers):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embed)
        self.lstm = nn.LSTM(embed, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0]).flatten(0, 1)


class TransformerBlock(nn.Module):
    def __init__(self, width, heads, ff):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, ff), nn.Linear(ff, width)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        a = q @ k.transpose(-2, -1) / (w // self.heads) ** 0.5
        a = a.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
        x = x + self.out((a @ v).transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Transformer(nn.Module):
    def __init__(self, vocabulary, steps, width, heads, layers, ff):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(steps, width))
        self.blocks = nn.Sequential(*[TransformerBlock(width, heads, ff) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.token(x) + self.position))).flatten(0, 1)


def tokens(s):
    def data(batch):
        x = torch.randint(0, s["vocabulary"], (batch, s["steps"]))
        return x, torch.randint(0, s["vocabulary"], (batch * s["steps"],))

    return data


MODELS = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)),
        images((784,)),
    ),
    "lenet": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        ),
        images((1, 28, 28)),
    ),
    "resnet20": (resnet20, images((3, 32, 32))),
    "lstm": (lambda: LSTM(**LSTM_SETTINGS), tokens(LSTM_SETTINGS)),
    "transformer": (lambda: Transformer(**TRANSFORMER_SETTINGS), tokens(TRANSFORMER_SETTINGS)),
}


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in MODELS:
        sys.exit(f"usage: torch_step.py {'|'.join(MODELS)} BATCH STEPS")
    name = sys.argv[1]
    try:
        batch, steps = int(sys.argv[2]), int(sys.argv[3])
    except ValueError:
        sys.exit("torch_step.py: BATCH and STEPS must be whole numbers")
    if batch < 1 or steps < 1:
        sys.exit("torch_step.py: BATCH and STEPS must be at least 1")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    make, data = MODELS[name]
    model = make()
    x, y = data(batch)

    def step():
        model.zero_grad(set_to_none=False)
        F.cross_entropy(model(x), y).backward()

    for _ in range(10):  # the first steps allocate and choose algorithms
        step()
    fastest, cpu = float("inf"), time.process_time()
    for _ in range(steps):
        t = time.perf_counter()
        step()
        fastest = min(fastest, time.perf_counter() - t)
    cpu = time.process_time() - cpu
    print(json.dumps({
        "model": name, "spec": SPECS.get(name, name), "batch": batch, "steps": steps, "cpu_s_per_step": cpu / steps, "min_s": fastest,
        "parameters": sum(p.numel() for p in model.parameters()), "torch": torch.__version__,
    }))


if __name__ == "__main__":
    main()
