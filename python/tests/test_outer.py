"""Four workers that make local steps and outer ones have the parameters of DiLoCo (Douillard et al., arXiv 2311.08105, 2023, algorithm 1) in one process."""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

from test_parity import MODEL, batches_of  # noqa: E402

WORKERS, LOCAL, OUTER, BATCH = 4, 4, 5, 16

TRAIN = (
    MODEL
    + """
import json, sys
import star_train.torch as star

torch.manual_seed(5)
name, schedule, clip = sys.argv[1], sys.argv[2], float(sys.argv[3])
model = Net()
opt = star.attach(model, OPTIMIZERS[name](model), own=name.startswith("own"))
if schedule:
    star.schedule(torch.optim.lr_scheduler.StepLR(opt, 1, 0.7), every=256)  # an outer step
loader = star.loader(Numbered(), batch_size=16, epochs=9)
for epoch in range(9):
    for i, x, y in loader:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        print("batch", json.dumps(i.tolist()))
"""
)

PS, RING = ("--shards", "2"), ("--arch", "allreduce")


@pytest.mark.parametrize(
    "name, schedule, clip, outer, flags",
    [
        ("momentum", "", 0.0, (0.9, 0.7), PS),
        ("adamw", "step", 0.3, (0.5, 0.7), PS),
        ("adam", "step", 0.0, (0.0, 1.0), ("--shards", "2", "--clip", "0.3")),
        ("adamw groups", "", 0.0, (0.9, 0.7), RING),
        ("own rmsprop", "step", 0.3, (0.9, 0.7), RING),
        ("own adagrad", "", 0.0, (0.5, 1.0), ("--arch", "allreduce", "--clip", "0.3")),
    ],
    ids=lambda v: "-".join(map(str, v)) if isinstance(v, tuple) else str(v),
)
def test_like_diloco_in_one_process(job: Any, name: str, schedule: str, clip: float, outer: Any, flags: Any) -> None:
    script = job.script(TRAIN)
    mu, eta = outer
    job.start("--mode", "ssgd local=%d outer=nesterov(%g,%g)" % (LOCAL, mu, eta), "--steps", str(LOCAL * OUTER), *flags, workers=WORKERS)
    own = ("--out", str(job.out)) if "allreduce" in flags else ()
    ws = [job.worker(script, name, schedule, str(clip), flags=(*flags, *own) if own else ()) for _ in range(WORKERS)]
    job.finish()
    module = {}  # type: Any
    exec(MODEL, module)
    x, y = module["data"]()
    clip = clip or (0.3 if "--clip" in flags else 0.0)
    torch.manual_seed(5)
    model = module["Net"]()
    trained = [p for p in model.parameters() if p.requires_grad]
    start = {k: v.clone() for k, v in model.state_dict().items()}
    shared = [p.detach().clone() for p in trained]
    velocity = [torch.zeros_like(p) for p in trained]
    inner = [module["OPTIMIZERS"][name](model).state_dict() for _ in ws]
    taken = [batches_of(w) for w in ws]
    assert [len(t) for t in taken] == [LOCAL * OUTER] * WORKERS
    opt = module["OPTIMIZERS"][name](model)
    rates = [g["lr"] for g in opt.param_groups]
    clipped = 0
    for t in range(OUTER):
        mean = [torch.zeros_like(p) for p in trained]
        for k in range(WORKERS):
            with torch.no_grad():
                for p, s in zip(trained, shared):
                    p.copy_(s)
            opt = module["OPTIMIZERS"][name](model)
            opt.load_state_dict(inner[k])
            for group, rate in zip(opt.param_groups, rates):
                group["lr"] = rate * (0.7**t if schedule else 1)
            for batch in taken[k][LOCAL * t : LOCAL * (t + 1)]:
                opt.zero_grad()
                module["F"].cross_entropy(model(x[batch]), y[batch]).backward()
                for p in trained:  # PyTorch leaves out what has no gradient, the job takes it for zero
                    if p.grad is None:
                        p.grad = torch.zeros_like(p)
                if clip:
                    norm = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in trained))
                    clipped += norm > clip
                    for p in trained:
                        p.grad.mul_(min(1.0, clip / norm))
                opt.step()
            inner[k] = opt.state_dict()
            for m, p, s in zip(mean, trained, shared):
                m += (s - p.detach()) / WORKERS
        for s, v, m in zip(shared, velocity, mean):
            v.mul_(mu).add_(m)
            s -= eta * (mu * v + m)
    with torch.no_grad():
        for p, s in zip(trained, shared):
            p.copy_(s)
    got = job.parameters()
    moved = 0.0
    for key, want in model.state_dict().items():
        scale = max(float(want.abs().max()), 1e-3)
        error = float((got[key] - want).abs().max()) / scale
        assert error < 1e-5, "%s is off by %.2g of its largest element" % (key, error)
        moved = max(moved, float((want - start[key]).abs().max()))
    assert moved > 0.01
    assert not clip or clipped > 10
