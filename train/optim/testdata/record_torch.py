"""Records what torch.optim does, for TestAgainstTorch.

    python3 record_torch.py > torch.json

Recorded with PyTorch 1.13 (Debian). Gradients and learning rates are recorded
too, so the test needs no Python.
"""
import json
import math

import torch

N, STEPS = 11, 12


def grads():
    return [[math.sin(0.7 * i + 1.3 * t) * 10 ** ((i % 5) - 2) for i in range(N)] for t in range(STEPS)]


def run(make):
    p = torch.nn.Parameter(torch.tensor([math.cos(1.1 * i) for i in range(N)], dtype=torch.float32))
    start = p.detach().tolist()
    opt = make([p])
    after = []
    for t, g in enumerate(grads()):
        for group in opt.param_groups:
            group["lr"] = 0.05 / (1 + t // 4)
        p.grad = torch.tensor(g, dtype=torch.float32)
        opt.step()
        after.append(p.detach().tolist())
    return start, after


CASES = [
    (dict(name="sgd"), lambda ps: torch.optim.SGD(ps, lr=1)),
    (dict(name="sgd", weight_decay=0.01), lambda ps: torch.optim.SGD(ps, lr=1, weight_decay=0.01)),
    (dict(name="momentum", momentum=0.9), lambda ps: torch.optim.SGD(ps, lr=1, momentum=0.9)),
    (dict(name="momentum", momentum=0.5, weight_decay=0.02), lambda ps: torch.optim.SGD(ps, lr=1, momentum=0.5, weight_decay=0.02)),
    (dict(name="nesterov", momentum=0.9), lambda ps: torch.optim.SGD(ps, lr=1, momentum=0.9, nesterov=True)),
    (dict(name="nesterov", momentum=0.8, weight_decay=0.02), lambda ps: torch.optim.SGD(ps, lr=1, momentum=0.8, weight_decay=0.02, nesterov=True)),
    (dict(name="adam"), lambda ps: torch.optim.Adam(ps, lr=1)),
    (dict(name="adam", beta1=0.8, beta2=0.95, epsilon=1e-4, weight_decay=0.03), lambda ps: torch.optim.Adam(ps, lr=1, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.03)),
    (dict(name="adamw", weight_decay=0.01), lambda ps: torch.optim.AdamW(ps, lr=1, weight_decay=0.01)),
    (dict(name="adamw", beta1=0.7, weight_decay=0.3), lambda ps: torch.optim.AdamW(ps, lr=1, betas=(0.7, 0.999), weight_decay=0.3)),
]

out = {"torch": torch.__version__, "lr": [0.05 / (1 + t // 4) for t in range(STEPS)], "grads": grads(), "cases": []}
for config, make in CASES:
    start, after = run(make)
    out["cases"].append({"config": config, "start": start, "after": after})
print(json.dumps(out, indent=None, separators=(",", ":")))
