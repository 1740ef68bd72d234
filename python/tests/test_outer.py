"""Four workers that make local steps and outer ones have the parameters of DiLoCo (Douillard et al., arXiv 2311.08105, 2023, algorithm 1) in one process."""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

from test_parity import MODEL, batches_of  # noqa: E402
from test_replica import batches, sharded  # noqa: E402

WORKERS, LOCAL, OUTER = 4, 4, 5
PARTS, EACH = 4, 2  # fragments, and the steps between two exchanges

TRAIN = (
    MODEL
    + """
import json, os, sys
import star_train.torch as star

torch.manual_seed(5)
name, schedule, clip, sharded = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[5:]
model = Net()
together, group = int(os.environ.get("WORLD_SIZE", 1)), None
if together > 1:
    torch.distributed.init_process_group("gloo")
    group = torch.distributed.group.WORLD
if sharded:
    from torch.distributed.fsdp import fully_shard
    fully_shard(model)
opt = star.attach(model, OPTIMIZERS[name](model), own=name.startswith("own"), group=group)
if schedule:
    star.schedule(torch.optim.lr_scheduler.StepLR(opt, 1, 0.7), every=int(sys.argv[4]))  # an outer step
loader = star.loader(Numbered(), batch_size=16 // together, epochs=9)
for epoch in range(9):
    for i, x, y in loader:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        print("batch", json.dumps(i.tolist()), flush=True)
if together > 1:
    torch.distributed.destroy_process_group()
"""
)

PS, RING = ("--shards", "2"), ("--arch", "allreduce")


class Reference:
    """The workers' local steps in this process, of the batches that they took, and what they exchange: vectors of all trained parameters."""

    def __init__(self, name: str, schedule: str, clip: float, taken: Any) -> None:
        self.module = {}  # type: Any
        exec(MODEL, self.module)
        self.x, self.y = self.module["data"]()
        self.name, self.schedule, self.clip, self.taken, self.clipped = name, schedule, clip, taken, 0
        torch.manual_seed(5)
        self.model = self.module["Net"]()
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.start = {k: v.clone() for k, v in self.model.state_dict().items()}
        opt = self.module["OPTIMIZERS"][name](self.model)
        self.rates = [g["lr"] for g in opt.param_groups]
        self.inner = [self.module["OPTIMIZERS"][name](self.model).state_dict() for _ in taken]
        self.shared = self.vector()
        self.velocity = torch.zeros_like(self.shared)

    def vector(self) -> Any:
        return torch.cat([p.detach().reshape(-1) for p in self.trained])

    def put(self, vector: Any) -> None:
        with torch.no_grad():
            for p, v in zip(self.trained, vector.split([p.numel() for p in self.trained])):
                p.copy_(v.view(p.shape))

    def steps(self, k: int, begin: Any, batches: slice, outer: int) -> Any:
        """Where the steps of worker k with these of its batches, in an outer step, lead from begin."""
        self.put(begin)
        opt = self.module["OPTIMIZERS"][self.name](self.model)
        opt.load_state_dict(self.inner[k])
        for group, rate in zip(opt.param_groups, self.rates):
            group["lr"] = rate * (0.7**outer if self.schedule else 1)
        for batch in self.taken[k][batches]:
            opt.zero_grad()
            self.module["F"].cross_entropy(self.model(self.x[batch]), self.y[batch]).backward()
            for p in self.trained:  # PyTorch leaves out what has no gradient, the job takes it for zero
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
            if self.clip:
                norm = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in self.trained))
                self.clipped += norm > self.clip
                for p in self.trained:
                    p.grad.mul_(min(1.0, self.clip / norm))
            opt.step()
        self.inner[k] = opt.state_dict()
        return self.vector()

    def outer(self, mean: Any, mu: float, eta: float, of: Any) -> None:
        """The outer step with a mean distance, of the elements where of is true."""
        v = mu * self.velocity + mean
        self.velocity = torch.where(of, v, self.velocity)
        self.shared = torch.where(of, self.shared - eta * (mu * v + mean), self.shared)

    def compare(self, job: Any) -> None:
        self.put(self.shared)
        got = job.parameters()
        moved = 0.0
        for key, want in self.model.state_dict().items():
            scale = max(float(want.abs().max()), 1e-3)
            error = float((got[key] - want).abs().max()) / scale
            assert error < 1e-5, "%s is off by %.2g of its largest element" % (key, error)
            moved = max(moved, float((want - self.start[key]).abs().max()))
        assert moved > 0.01
        assert not self.clip or self.clipped > 10


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
    ws = [job.worker(script, name, schedule, str(clip), str(LOCAL * WORKERS * 16), flags=(*flags, *own) if own else ()) for _ in range(WORKERS)]
    job.finish()
    taken = [batches_of(w) for w in ws]
    assert [len(t) for t in taken] == [LOCAL * OUTER] * WORKERS
    ref = Reference(name, schedule, clip or (0.3 if "--clip" in flags else 0.0), taken)
    all_of_it = torch.ones_like(ref.shared, dtype=torch.bool)
    for t in range(OUTER):
        ends = [ref.steps(k, ref.shared, slice(LOCAL * t, LOCAL * (t + 1)), t) for k in range(WORKERS)]
        ref.outer(sum(ref.shared - end for end in ends) / WORKERS, mu, eta, all_of_it)
    ref.compare(job)


@pytest.mark.parametrize(
    "name, schedule, clip, outer, flags, kind",
    [
        ("momentum", "", 0.0, (0.9, 0.7), PS, ""),
        ("adamw groups", "step", 0.3, (0.5, 0.7), PS, ""),
        ("adam", "", 0.0, (0.6, 0.7), ("--shards", "3", "--clip", "0.3"), ""),
        ("adamw", "step", 0.0, (0.9, 0.7), PS, "two processes"),
        pytest.param("nesterov", "", 0.0, (0.9, 0.7), PS, "two processes with fully_shard", marks=sharded),
        ("adamw groups", "step", 0.3, (0.9, 0.7), RING, ""),
        ("own rmsprop", "step", 0.3, (0.6, 0.7), RING, ""),
        pytest.param("own adagrad", "", 0.0, (0.5, 1.0), RING, "two processes with fully_shard", marks=sharded),
    ],
    ids=lambda v: "-".join(map(str, v)) if isinstance(v, tuple) else str(v),
)
def test_like_streaming_diloco_in_one_process(job: Any, name: str, schedule: str, clip: float, outer: Any, flags: Any, kind: str) -> None:
    """Fragments: Douillard et al., arXiv 2501.18512, 2025, algorithm 2, with alpha = 1/2.

    After each LOCAL / PARTS steps a worker hands over the distance of the next part. The part comes back LOCAL / PARTS steps later, which the worker has made from its own
    parameters, and is mixed with those that these steps have led to. The last exchange is of all parameters.
    """
    script = job.script(TRAIN)
    mu, eta = outer
    job.start("--mode", "ssgd local=%d outer=nesterov(%g,%g) fragments=%d" % (PARTS * EACH, mu, eta, PARTS), "--steps", str(PARTS * EACH * OUTER), *flags, workers=WORKERS)
    last = (str(PARTS * EACH * WORKERS * 16), *kind.split()[3:])
    own = (*flags, "--out", str(job.out)) if flags == RING else ()
    ws = [job.worker(script, name, schedule, str(clip), *last, flags=own, processes=2 if kind else 1) for _ in range(WORKERS)]
    job.finish()
    taken = [[sum(parts, []) for parts in batches(w)] for w in ws]
    assert [len(t) for t in taken] == [PARTS * EACH * OUTER] * WORKERS
    assert all(len(batch) == 16 for t in taken for batch in t)
    ref = Reference(name, schedule, clip or (0.3 if "--clip" in flags else 0.0), taken)
    shards, n = 1 if flags == RING else int(flags[1]), len(ref.shared)
    parts = [torch.zeros(n, dtype=torch.bool) for _ in range(PARTS)]
    for s in range(shards):
        first, size = n * s // shards, n * (s + 1) // shards - n * s // shards
        for p, part in enumerate(parts):
            part[first + size * p // PARTS : first + size * (p + 1) // PARTS] = True
    local = [ref.shared] * WORKERS
    rounds = PARTS * OUTER
    for t in range(rounds):
        local = [ref.steps(k, w, slice(EACH * t, EACH * (t + 1)), t // PARTS) for k, w in enumerate(local)]
        if t > 0:
            local = [torch.where(parts[(t - 1) % PARTS], (w + ref.shared) / 2, w) for w in local]
        of = parts[t % PARTS] if t < rounds - 1 else torch.ones(n, dtype=torch.bool)
        ref.outer(sum(ref.shared - w for w in local) / WORKERS, mu, eta, of)
    ref.compare(job)
