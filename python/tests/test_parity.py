"""Two workers in SSGD make the same parameters as one process on the batches of both."""

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

MODEL = """
import torch, torch.nn as nn, torch.nn.functional as F

class Net(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.unused = nn.Linear(3, 2)
        self.frozen = nn.Linear(12, 12)
        for p in self.frozen.parameters():
            p.requires_grad = False
        self.hidden = nn.Linear(12, width)
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(self.frozen(x))))

def data():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(640, 12, generator=g)
    return x, (x[:, :4] + 0.3 * torch.randn(640, 4, generator=g)).argmax(1)

class Numbered(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.y = data()
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return i, self.x[i], self.y[i]

def groups(model):
    return [{"params": [model.hidden.weight, model.out.weight, model.unused.weight]},
            {"params": [model.hidden.bias, model.out.bias, model.unused.bias], "lr": 0.02, "weight_decay": 0.0}]

OPTIMIZERS = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), 0.1, weight_decay=0.01),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), 0.02, momentum=0.9, weight_decay=0.001),
    "small momentum": lambda m: torch.optim.SGD(m.parameters(), 1e-4, momentum=0.9),
    "nesterov": lambda m: torch.optim.SGD(m.parameters(), 0.02, momentum=0.8, nesterov=True),
    "adam": lambda m: torch.optim.Adam(m.parameters(), 0.003, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.01),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), 0.003, weight_decay=0.05),
    "sgd groups": lambda m: torch.optim.SGD(groups(m), 0.05, momentum=0.9, weight_decay=0.01),
    "own rmsprop": lambda m: torch.optim.RMSprop(groups(m), 0.001, momentum=0.5),
    "own adagrad": lambda m: torch.optim.Adagrad(m.parameters(), 0.01),
    "adamw groups": lambda m: torch.optim.AdamW(groups(m), 0.003, weight_decay=0.05),
}

# Steps of a scheduler come with each second update, of 32 samples.
SCHEDULES = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 30, 0.5),
    "warm-up": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: min(k / 20, 1.0)),
}
"""

TRAIN = (
    MODEL
    + """
import json, sys
import star_train.torch as star

torch.manual_seed(5)
name, width, schedule, accumulate = sys.argv[1:]
accumulate = int(accumulate)
model = Net(int(width))
opt = star.attach(model, OPTIMIZERS[name](model), own=name.startswith("own"))
if schedule:
    star.schedule(SCHEDULES[schedule](opt), every=64)
loader = star.loader(Numbered(), batch_size=16 // accumulate, accumulate=accumulate, epochs=10)
taken = []
for epoch in range(100):
    for i, x, y in loader:
        if not taken:
            opt.zero_grad()
        (F.cross_entropy(model(x), y) / accumulate).backward()
        taken.append(i.tolist())
        if len(taken) == accumulate:
            opt.step()
            print("batch", json.dumps(sum(taken, [])))
            taken = []
"""
)


def batches_of(worker: Any) -> Any:
    return [json.loads(line[6:]) for line in worker.log.splitlines() if line.startswith("batch ")]


PS, RING, PARTS = ("--shards", "2"), ("--arch", "allreduce"), ("--arch", "allreduce", "--bucket", "0.2")
CLIP = ("--arch", "allreduce", "--clip", "0.05")


@pytest.mark.parametrize(
    "name, width, schedule, accumulate, arch",
    [(name, 24, "", 1, PS) for name in ("sgd", "momentum", "nesterov", "adam", "adamw", "sgd groups", "adamw groups")]
    # A gradient of 1.4 MB leaves in parts.
    + [("sgd groups", 24, "step", 4, PS), ("adamw", 24, "warm-up", 1, RING), ("small momentum", 20_000, "", 1, PARTS), ("sgd", 24, "", 4, RING)]
    + [("own rmsprop", 24, "", 1, RING), ("own adagrad", 24, "step", 1, CLIP)],
    ids=lambda v: "-".join(v) if isinstance(v, tuple) else str(v),
)
def test_like_one_process(job: Any, name: str, width: int, schedule: str, accumulate: int, arch: Any) -> None:
    script = job.script(TRAIN)
    job.start("--mode", "ssgd", "--steps", "200", *arch)
    ws = [job.worker(script, name, str(width), schedule, str(accumulate), flags=(*arch, "--out", str(job.out)) if arch != PS else ()) for _ in range(2)]
    job.finish()
    own = {}  # type: Any
    exec(MODEL, own)
    x, y = own["data"]()
    torch.manual_seed(5)
    model = own["Net"](width)
    start = {k: v.clone() for k, v in model.state_dict().items()}
    opt = own["OPTIMIZERS"][name](model)
    scheduler = own["SCHEDULES"][schedule](opt) if schedule else None
    clipped = 0
    batches = list(zip(*map(batches_of, ws)))
    assert len(batches) == 200
    for k, (a, b) in enumerate(batches):
        if scheduler and k and k % 2 == 0:
            scheduler.step()
        opt.zero_grad()
        # The job adds up the mean gradients of both halves.
        (own["F"].cross_entropy(model(x[a]), y[a]) / 2 + own["F"].cross_entropy(model(x[b]), y[b]) / 2).backward()
        for p in model.parameters():  # PyTorch leaves out what has no gradient, the job takes it for zero
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)
        if arch == CLIP:
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            norm = float(torch.sqrt(sum((g.double() ** 2).sum() for g in grads)))
            clipped += norm > 0.05
            for g in grads:
                g.mul_(min(1.0, 0.05 / norm))
        opt.step()
    got = job.parameters()
    moved = 0.0
    for k, want in model.state_dict().items():
        assert k in got, "the checkpoint lacks %s" % k
        scale = max(float(want.abs().max()), 1e-3)
        error = float((got[k] - want).abs().max()) / scale
        assert error < 1e-5, "%s is off by %.2g of its largest element" % (k, error)
        moved = max(moved, float((want - start[k]).abs().max()))
    assert (arch == CLIP) == (clipped > 100)
    assert moved > (0.01 if width == 24 else 0.001)
    own["Net"](width).load_state_dict(got)
    # Every sample came once in each epoch: 20 batches of 32.
    seen = [i for a, b in batches for i in a + b]
    for e in range(10):
        assert sorted(seen[640 * e : 640 * (e + 1)]) == list(range(640))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon needs PyTorch 2.9")
@pytest.mark.parametrize("arch", [PS, RING], ids="-".join)
def test_muon(job: Any, arch: Any, monkeypatch: Any) -> None:
    """--optimizer muon is torch.optim.Muon for hidden matrices, with products in float32, and AdamW for the rest."""
    script = job.script(TRAIN)
    flags = ("--optimizer", "muon", "--lr", "0.003", "--momentum", "0.95", "--weight-decay", "0.05")
    job.start("--mode", "ssgd", "--steps", "200", *flags, *arch)
    ring = (*arch, *flags, "--out", str(job.out)) if arch != PS else ()
    ws = [job.worker(script, "adamw", "24", "", "1", flags=ring) for _ in range(2)]
    job.finish()
    own = {}  # type: Any
    exec(MODEL, own)
    x, y = own["data"]()
    torch.manual_seed(5)
    model = own["Net"]()
    hidden = [model.unused.weight, model.hidden.weight]
    rest = [model.unused.bias, model.hidden.bias, model.out.weight, model.out.bias]
    monkeypatch.setattr(torch, "bfloat16", torch.float32)
    opts = [torch.optim.Muon(hidden, 0.003, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"), torch.optim.AdamW(rest, 0.003, weight_decay=0.05)]
    for a, b in zip(*map(batches_of, ws)):
        for p in hidden + rest:
            p.grad = torch.zeros_like(p)
        (own["F"].cross_entropy(model(x[a]), y[a]) / 2 + own["F"].cross_entropy(model(x[b]), y[b]) / 2).backward()
        for opt in opts:
            opt.step()
    got = job.parameters()
    for k, want in model.state_dict().items():
        error = float((got[k] - want).abs().max()) / max(float(want.abs().max()), 1e-3)
        assert error < 1e-4, "%s is off by %.2g of its largest element" % (k, error)
