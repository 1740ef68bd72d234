"""Records what torch.optim.Muon, and AdamW for a vector, do, for TestMuonAgainstTorch.

    python3 record_muon.py > muon.json

Recorded with PyTorch 2.15, with float32 in place of the bfloat16 in which it orthogonalises. The last number is the weight of a
head, which AdamW updates too.
"""
import json
import math

import torch

torch.bfloat16 = torch.float32
SHAPES, STEPS = [[3, 5], [6, 2], [4], [4, 4]], 12
SIZES = [math.prod(s) for s in SHAPES] + [1]
N = sum(SIZES)


def grads():
    return [[math.sin(0.7 * i + 1.3 * t) * 10 ** ((i % 5) - 2) for i in range(N)] for t in range(STEPS)]


def run(muon, adamw):
    flat = torch.tensor([math.cos(1.1 * i) for i in range(N)], dtype=torch.float32)
    ps = [torch.nn.Parameter(p.reshape(s).clone()) for p, s in zip(flat.split(SIZES), SHAPES + [[1]])]
    opts = [muon([p for p in ps if p.ndim == 2]), adamw([p for p in ps if p.ndim == 1])]
    after = []
    for t, g in enumerate(grads()):
        for p, part in zip(ps, torch.tensor(g, dtype=torch.float32).split(SIZES)):
            p.grad = part.reshape(p.shape).clone()
        for opt in opts:
            opt.param_groups[0]["lr"] = 0.05 / (1 + t // 4)
            opt.step()
        after.append(torch.cat([p.detach().flatten() for p in ps]).tolist())
    return flat.tolist(), after


def case(momentum, decay):
    return (
        dict(name="muon", momentum=momentum, weight_decay=decay),
        lambda ps: torch.optim.Muon(ps, lr=1, momentum=momentum, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
        lambda ps: torch.optim.AdamW(ps, lr=1, weight_decay=decay),
    )


out = {"torch": torch.__version__, "lr": [0.05 / (1 + t // 4) for t in range(STEPS)], "shapes": SHAPES, "grads": grads(), "cases": []}
for config, muon, adamw in [case(0.95, 0.0), case(0.8, 0.1)]:
    start, after = run(muon, adamw)
    out["cases"].append({"config": config, "start": start, "after": after})
print(json.dumps(out, indent=None, separators=(",", ":")))
