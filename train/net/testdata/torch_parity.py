#!/usr/bin/env python3
"""What PyTorch makes of our models: the loss of 100 steps of plain SGD; of VGG-11
and MobileNetV2, which rounding makes chaotic sooner, of fewer.

Regenerate (Debian: apt install python3-torch; recorded with PyTorch 1.13.0):

    cd train/net/testdata && /usr/bin/python3 torch_parity.py

writes torch/NAME.json for each model (or for those named as arguments). The Go
test TestParity starts our models from the same parameters, feeds them the same
batches, and compares the loss of every step and the norm of the first
gradient of every parameter tensor.

Nothing random is stored: parameters and batches come from one integer hash, so
that both languages make the same bits.

    hash(x)   = lowbias32: x ^= x>>16; x *= 0x7feb352d; x ^= x>>15;
                x *= 0x846ca68b; x ^= x>>16                       (mod 2^32)
    u(s, i)   = hash(i + s*0x9e3779b9 mod 2^32) / 2^31 - 1        in [-1, 1)

    parameter tensor number p (in the order of the file's "params"), element i
    (row-major):        float32(base + scale * u(p+1, i))
        weights:        base 0, scale sqrt(6/fan_in), fan_in = elements / rows
                        (K. He et al.: Delving Deep into Rectifiers, ICCV 2015)
        biases:         base 0, scale 0.1
        norm scales:    base 1, scale 0.1; at the end of a residual branch base
                        0.1 (ResNet-20) and 0.25 (MobileNetV2): with 1, rounding
                        grows tenfold every five steps and PyTorch in float32 and
                        in float64 disagree by percents
        embeddings:     base 0, scale 1
    base and scale are in the file.

    sample s of the stream (step k takes samples k*batch ... k*batch+batch-1):
        class   y_s   = hash(s + 1002*0x9e3779b9) mod classes
        feature x_s,i = float32(0.5*u(1000, s*D + i) + 0.5*u(1001, y_s*D + i div 8))
    tokens of sample s, window T, vocabulary V (y is x one token later):
        t_0 = hash(s*(T+1) + 1003*0x9e3779b9) mod V
        t_j = (5*t_{j-1} + 3 + hash(s*(T+1) + j + 1003*0x9e3779b9) mod 2) mod V

"eval" is the mean loss of the batch after the last step in evaluation mode.
Each curve is also run in float64; if losses or the norms of the first gradient
differ by more than a quarter of the test's tolerance, rounding decides them, a
comparison would mean nothing, and the script refuses to write the file.
"""

import json
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

STEPS = 100
TOLERANCE, GRAD_TOLERANCE = 1e-3, 1e-4  # of the Go test, relative
GOLDEN = 0x9E3779B9


def hash32(x):
    x = np.asarray(x, dtype=np.uint64) & 0xFFFFFFFF
    x ^= x >> np.uint64(16)
    x = (x * np.uint64(0x7FEB352D)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(15)
    x = (x * np.uint64(0x846CA68B)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(16)
    return x


def stream(s, i):
    return hash32(np.asarray(i, dtype=np.uint64) + np.uint64((s * GOLDEN) & 0xFFFFFFFF))


def u(s, i):
    return stream(s, i).astype(np.float64) / 2.0**31 - 1.0


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 256)
        self.fc2 = nn.Linear(256, 128)
        self.fc3 = nn.Linear(128, 10)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class BasicBlock(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.bn2.base = 0.1
        self.stride, self.pad = stride, (out - channels) // 2

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        s = self.stride
        return F.relu(y + F.pad(x[:, :, ::s, ::s], (0, 0, 0, 0, self.pad, self.pad)))


class ResNet20(nn.Module):
    """He et al., CVPR 2016, section 4.2, shortcuts of kind A."""

    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        blocks, channels = [], width
        for out, stride in ((width, 1), (2 * width, 2), (4 * width, 2)):
            for i in range(3):
                blocks.append(BasicBlock(channels, out, stride if i == 0 else 1))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, 10)

    def forward(self, x):
        return self.fc(self.blocks(F.relu(self.bn1(self.conv1(x)))).mean((2, 3)))


class VGG11(nn.Module):
    """Simonyan and Zisserman, ICLR 2015, table 1 A; batch normalisation after each convolution."""

    def __init__(self, width):
        super().__init__()
        layers, channels = [], 3
        for v in (1, "M", 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M"):
            if v == "M":
                layers.append(nn.MaxPool2d(2))
                continue
            out = v * width
            layers += [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
            channels = out
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(channels, 10)

    def forward(self, x):
        return self.fc(self.features(x).flatten(1))


class Inverted(nn.Module):
    def __init__(self, channels, expand, out, stride):
        super().__init__()
        wide, layers = channels * expand, []
        if expand > 1:
            layers += [nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()]
        layers += [nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
                   nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out)]
        layers[-1].base = 0.25
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and channels == out

    def forward(self, x):
        y = self.body(x)
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    """Sandler et al., CVPR 2018, table 2, with the strides that suit 32x32."""

    def __init__(self, width):
        super().__init__()

        def scaled(n):  # half away from zero, as Go rounds
            return max(1, int(math.floor(n * width + 0.5)))

        channels = scaled(32)
        layers = [nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU6()]
        for expand, out, blocks, stride in ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2),
                                            (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
            for i in range(blocks):
                layers.append(Inverted(channels, expand, scaled(out), stride if i == 0 else 1))
                channels = scaled(out)
        last = scaled(1280)
        layers += [nn.Conv2d(channels, last, 1, bias=False), nn.BatchNorm2d(last), nn.ReLU6()]
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(last, 10)

    def forward(self, x):
        return self.fc(self.features(x).mean((2, 3)))


class LSTM(nn.Module):
    def __init__(self, vocabulary, embed, hidden, layers):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embed)
        self.lstm = nn.LSTM(embed, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, x):
        h, _ = self.lstm(self.embed(x))
        return self.head(h)


class Transformer(nn.Module):
    def __init__(self, vocabulary, positions, width, heads, ff, layers):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(positions, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, ff, dropout=0.0, activation="gelu",
                                       batch_first=True, norm_first=True)
            for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)
        mask = torch.triu(torch.full((positions, positions), float("-inf")), diagonal=1)
        self.register_buffer("mask", mask)

    def forward(self, x):
        y = self.embed(x) + self.position.weight[: x.shape[1]]
        for layer in self.layers:
            y = layer(y, src_mask=self.mask)
        return self.head(self.norm(y))


CASES = {
    # name: (our spec, input shape, classes, tokens, batch, learning rate, steps, make)
    "mlp": ("mlp:hidden=256-128", [784], 10, False, 16, 0.05, STEPS, MLP),
    "lenet": ("lenet", [1, 28, 28], 10, False, 16, 0.02, STEPS, LeNet),
    "resnet20": ("resnet20:width=0.5", [3, 32, 32], 10, False, 16, 0.05, STEPS, lambda: ResNet20(8)),
    "vgg11": ("vgg11:width=0.125", [3, 32, 32], 10, False, 8, 0.005, 20, lambda: VGG11(8)),
    "mobilenetv2": ("mobilenetv2:width=0.5", [3, 16, 16], 10, False, 16, 0.0001, 3, lambda: MobileNetV2(0.5)),
    "lstm": ("lstm:embed=24,hidden=32,layers=2", [12], 31, True, 8, 2.0, STEPS,
             lambda: LSTM(31, 24, 32, 2)),
    "transformer": ("transformer:layers=2,heads=4,width=32,ff=64", [12], 31, True, 8, 0.1, STEPS,
                    lambda: Transformer(31, 12, 32, 4, 64, 2)),
}


def fill_rule(module_of, name, p):
    """base and scale of a parameter tensor."""
    module = module_of[name]
    if isinstance(module, nn.Embedding):
        return 0.0, 1.0
    if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)) and name.endswith("weight"):
        return getattr(module, "base", 1.0), 0.1
    if p.dim() == 1:
        return 0.0, 0.1
    return 0.0, math.sqrt(6 * p.shape[0] / p.numel())


def batch(step, n, shape, classes, tokens):
    s = np.arange(step * n, (step + 1) * n, dtype=np.uint64)
    if tokens:
        T = shape[0]
        j = np.arange(T + 1, dtype=np.uint64)
        noise = stream(1003, s[:, None] * np.uint64(T + 1) + j[None, :])
        rows = np.zeros((n, T + 1), dtype=np.int64)
        rows[:, 0] = noise[:, 0] % np.uint64(classes)
        for k in range(1, T + 1):
            rows[:, k] = (5 * rows[:, k - 1] + 3 + (noise[:, k] % np.uint64(2)).astype(np.int64)) % classes
        return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())
    y = (stream(1002, s) % np.uint64(classes)).astype(np.int64)
    D = int(np.prod(shape))
    i = np.arange(D, dtype=np.uint64)
    x = 0.5 * u(1000, s[:, None] * np.uint64(D) + i) + 0.5 * u(1001, y.astype(np.uint64)[:, None] * np.uint64(D) + i // np.uint64(8))
    return torch.from_numpy(x.astype(np.float32)).reshape([n] + shape), torch.from_numpy(y)


def run(case, dtype):
    spec, shape, classes, tokens, n, lr, steps, make = case
    model = make()
    model.train()
    module_of = {f"{m}.{k}" if m else k: mod
                 for m, mod in model.named_modules() for k, _ in mod.named_parameters(recurse=False)}
    params = []
    with torch.no_grad():
        for i, (name, p) in enumerate(model.named_parameters()):
            base, scale = fill_rule(module_of, name, p)
            v = (base + scale * u(i + 1, np.arange(p.numel(), dtype=np.uint64))).astype(np.float32)
            p.copy_(torch.from_numpy(v).reshape(p.shape))
            params.append({"name": name, "shape": list(p.shape), "base": base, "scale": scale})
    model.to(dtype)
    losses = []
    for step in range(steps):
        x, y = batch(step, n, shape, classes, tokens)
        out = model(x if tokens else x.to(dtype))
        loss = F.cross_entropy(out.reshape(-1, classes), y.reshape(-1))
        model.zero_grad()
        loss.backward()
        losses.append(float(loss))
        if step == 0:
            for q, p in zip(params, model.parameters()):
                q["gradnorm"] = float(p.grad.double().norm())
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad
    model.eval()
    with torch.no_grad():
        x, y = batch(steps, n, shape, classes, tokens)
        out = model(x if tokens else x.to(dtype))
        losses.append(float(F.cross_entropy(out.reshape(-1, classes), y.reshape(-1))))
    return params, losses


def main():
    torch.set_num_threads(1)
    os.makedirs("torch", exist_ok=True)
    for name in sys.argv[1:] or CASES:
        case = CASES[name]
        params, losses = run(case, torch.float32)
        sharp, exact = run(case, torch.float64)
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses, exact))
        print(f"{name}: {losses[0]:.4f} -> {losses[-2]:.4f}, in evaluation mode {losses[-1]:.4f}, float32 differs from float64 by {worst:.1e} at most")
        if not worst < TOLERANCE / 4:
            sys.exit(f"torch_parity: {name}: rounding decides this curve; lower the learning rate or the width")
        # Some gradients are zero but for rounding (a bias before a batch
        # normalisation): a norm is judged beside a hundredth of that of them all.
        whole = math.sqrt(sum(q["gradnorm"] ** 2 for q in sharp))
        off = max(abs(p["gradnorm"] - q["gradnorm"]) / (q["gradnorm"] + whole / 100) for p, q in zip(params, sharp))
        print(f"    gradient norms by {off:.1e}")
        if not off < GRAD_TOLERANCE / 4:
            sys.exit(f"torch_parity: {name}: rounding decides the first gradient; take another width or batch")
        spec, shape, classes, tokens, n, lr, _, _ = case
        with open(f"torch/{name}.json", "w") as f:
            head = {"torch": torch.__version__, "model": spec, "shape": shape, "classes": classes,
                    "tokens": tokens, "batch": n, "lr": lr}
            f.write(json.dumps(head)[:-1] + ',\n"params": [\n')
            f.write(",\n".join(json.dumps(q) for q in params))
            f.write('\n],\n"loss": [\n')
            f.write(",\n".join(repr(v) for v in losses[:-1]))
            f.write(f'\n],\n"eval": {losses[-1]!r}}}\n')


if __name__ == "__main__":
    main()
