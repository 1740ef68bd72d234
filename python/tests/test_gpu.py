"""Models on a GPU: whole jobs where there is one, and anywhere what is copied when, on the processor in the place of a GPU, with streams and events that do nothing."""

# ruff: noqa: F811 (a fixture of another file)
import contextlib
import json
import struct
import subprocess
import sys
from typing import Any, Dict, List

import pytest
from conftest import PATIENCE, ROOT

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from test_semantics import RATE, Data, N, agent, attached, ce, flat, loop, plain, same, small  # noqa: E402, F401

import star_train.torch as star  # noqa: E402
from star_train import _cuda  # noqa: E402

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")


class Stream:
    def __init__(self, device: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        assert event.recorded

    def synchronize(self) -> None:
        pass


class Event:
    """It is over when it has been waited for, or asked for twice."""

    asked = recorded = False

    def record(self, stream: Any) -> None:
        self.recorded = True

    def query(self) -> bool:
        assert self.recorded
        was, self.asked = self.asked, True
        return was

    def synchronize(self) -> None:
        self.asked = True


class Sham:
    """What star_train uses of torch.cuda."""

    Stream, Event = Stream, Event

    def stream(self, s: Any) -> Any:
        return contextlib.nullcontext()

    def current_stream(self, device: Any) -> Stream:
        return Stream(device)

    def get_device_name(self, device: Any) -> str:
        return "a sham"

    def cudart(self) -> Any:
        return self

    def cudaHostRegister(self, at: int, size: int, flags: int) -> int:
        assert at % 4096 == 0 and size > 0 and flags == 0
        return 0


@pytest.fixture
def sham(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cuda, "cuda", Sham())
    monkeypatch.setattr(_cuda, "KIND", "cpu")
    monkeypatch.setattr(_cuda, "_BUCKET", 40)
    monkeypatch.setattr(star._job, "_PART", 20)


BATCHES = [list(range(i, i + 8)) for i in range(0, N, 8)]


def test_buckets(agent: Any, sham: Any) -> None:
    """Parts of a gradient are reported when they are in the memory, from the fourth step on. Parameters stay where they are."""
    a, model = agent(BATCHES, parts=True), small()
    want = plain(small(), BATCHES, lambda m, x, y: ce(m, x, y).backward())
    where = [p.data_ptr() for p in model.parameters()]
    opt = attached(model)

    def step(x: Any, y: Any) -> None:
        ce(model, x, y).backward()
        opt.step()

    loop(model, opt, star.loader(Data(), 8), step)
    assert a.told == [48] * (len(BATCHES) - 3)
    same(a.gradients, want)
    assert where == [p.data_ptr() for p in model.parameters()]
    assert a.about["program"].endswith(", a sham")
    loss = float(ce(small(), Data().x[:8], Data().y[:8]))
    assert abs(a.losses[0] - loss) < 1e-6


def test_masters(agent: Any, sham: Any) -> None:
    """Parameters in bfloat16 are roundings of float32 ones, which get all of each step."""
    a, model = agent(BATCHES), small().to(torch.bfloat16)
    twin = small().to(torch.bfloat16)
    masters = [p.detach().float() for p in twin.parameters()]
    opt, k = attached(model), 0

    def step(x: Any, y: Any) -> None:
        nonlocal k
        F.cross_entropy(model(x.to(torch.bfloat16)).float(), y).backward()
        opt.step()
        twin.zero_grad()
        F.cross_entropy(twin(x.to(torch.bfloat16)).float(), y).backward()
        assert torch.equal(a.gradients[k], flat(twin).float())
        for m, p in zip(masters, twin.parameters()):
            m -= RATE * p.grad.float()
            p.data.copy_(m)
        k += 1

    loop(model, opt, star.loader(Data(), 8), step)
    assert k == len(BATCHES) and torch.equal(a.params, torch.cat([m.flatten() for m in masters]))
    assert not torch.equal(a.params, a.params.to(torch.bfloat16).float())


@pytest.mark.parametrize("parts", [True, False])
def test_changed_late(agent: Any, sham: Any, parts: bool) -> None:
    """A gradient that is changed after it has left leaves again, unless it may be on its way to others."""
    a, model, steps = agent(BATCHES, parts=parts), small(), 0
    opt = attached(model)

    def step(x: Any, y: Any) -> None:
        nonlocal steps
        steps += 1
        ce(model, x, y).backward()
        if steps == 6:
            for p in model.parameters():
                p.grad.mul_(2)
        opt.step()

    if parts:
        with pytest.raises(star.StarError, match="overlap=False"):
            loop(model, opt, star.loader(Data(), 8), step)
        return
    loop(model, opt, star.loader(Data(), 8), step)
    k = 0

    def twice(m: Any, x: Any, y: Any) -> None:
        nonlocal k
        k += 1
        (ce(m, x, y) * (2 if k == 6 else 1)).backward()

    same(a.gradients, plain(small(), BATCHES, twice))


def test_accumulate(agent: Any, sham: Any) -> None:
    batches = [list(range(16)), list(range(16, 30)), list(range(30, 35)), [37], list(range(35, 37))]
    a, model, k = agent(batches, parts=True), small(), 0
    opt = attached(model)
    for x, y in star.loader(Data(), 4, accumulate=4):
        if k % 4 == 0:
            opt.zero_grad()
        (ce(model, x, y) / 4).backward()
        k += 1
        if k % 4 == 0:
            opt.step()
    same(a.gradients, plain(small(), batches, lambda m, x, y: ce(m, x, y).backward()))
    assert not a.told


def test_buffers(agent: Any, sham: Any) -> None:
    """Statistics and frozen parameters are in the memory, and what the job makes of them comes back."""

    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
        for p in model[0].parameters():
            p.requires_grad = False
        return model

    torch.manual_seed(5)
    model = make()
    twin = make()
    twin.load_state_dict(model.state_dict())
    a, seen = agent(BATCHES), 0
    opt = attached(model)

    def step(x: Any, y: Any) -> None:
        nonlocal seen
        (at,) = struct.unpack_from("<Q", a.map, 48)
        rest = torch.frombuffer(a.map, dtype=torch.float32, count=35 + 13, offset=at)
        if seen == 3:  # what the memory has changed to meanwhile is taken
            assert float(model[1].running_mean[0]) == 7
            model[1].running_mean.copy_(twin[1].running_mean)
        ce(model, x, y).backward()
        twin(x)
        seen += 1
        assert torch.allclose(model[1].running_mean, twin[1].running_mean)
        assert int(model[1].num_batches_tracked) == seen
        opt.step()
        assert [t["name"] for t in a.about["buffers"]][:2] == ["0.weight", "0.bias"] and torch.equal(rest[:30].view(5, 6), twin[0].weight)

    # Between done and compute the memory is the agent's.
    def rates(position: int) -> float:
        if position == 16:
            (at,) = struct.unpack_from("<Q", a.map, 48)
            torch.frombuffer(a.map, dtype=torch.float32, count=46, offset=at)[35] = 7
        return RATE

    a.rates = rates
    loop(model, opt, star.loader(Data(), 8), step)
    assert seen == len(BATCHES)


def test_pieces(agent: Any, sham: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker, one device: a model on several is refused."""
    monkeypatch.setattr(_cuda, "KIND", "meta")
    agent(BATCHES)
    attached(nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3, device="meta")))
    with pytest.raises(star.StarError, match="a worker trains on one device") as e:
        next(iter(star.loader(Data(), 8)))
    assert e.value.code == 78


# Whole jobs.

MODEL = """
import json, sys, torch, torch.nn as nn, torch.nn.functional as F

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.unused = nn.Linear(3, 2)
        self.frozen = nn.Linear(12, 12)
        for p in self.frozen.parameters():
            p.requires_grad = False
        self.hidden = nn.Linear(12, width)
        self.norm = nn.BatchNorm1d(12)
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        x = self.norm(self.frozen(x.to(dtype)).float())
        return self.out(torch.tanh(self.hidden(x.to(dtype)).float()))

def make(width):
    torch.manual_seed(5)
    model = Net(width)
    model.out.weight.data = model.out.weight.data.t().contiguous().t()  # of other strides
    model.hidden.to(dtype), model.frozen.to(dtype)
    return model.to(device)

def data():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(640, 12, generator=g)
    return x, (x[:, :4] + 0.3 * torch.randn(640, 4, generator=g)).argmax(1)

OPTIMIZERS = {
    "momentum": lambda m: torch.optim.SGD(m.parameters(), 0.02, momentum=0.9, weight_decay=0.001),
    "sgd": lambda m: torch.optim.SGD(m.parameters(), 0.02),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), 0.003, weight_decay=0.05),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), 0.001, momentum=0.5),
}
"""

TRAIN = (
    MODEL
    + """
import os, signal
import star_train.torch as star
star._job._cuda._BUCKET = 500

class Numbered(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.y = data()
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return i, self.x[i], self.y[i]

parts = []
if "ring" in ask:
    tell = star._job._link.Link.part
    star._job._link.Link.part = lambda link, step, at: (parts.append(at), tell(link, step, at))
    star._job._PART = 100
model = make(width)
where = [p.data_ptr() for p in model.parameters()]
opt = star.attach(model, OPTIMIZERS[name](model), own="own" in ask)
def right(batch):
    _, x, y = batch
    assert not model.training
    z = model(x.to(device))
    return float(F.cross_entropy(z, y.to(device), reduction="sum")), int((z.argmax(1) == y.to(device)).sum()), len(y)
star.evaluate(right, Numbered())
accumulate = 2 if "accumulate" in ask else 1
scaler = torch.cuda.amp.GradScaler(init_scale=1024.0) if "scaler" in ask else None
steps = 0
taken = []
for epoch in range(100):
    for i, x, y in star.loader(Numbered(), batch_size=16 // accumulate, accumulate=accumulate, epochs=10) if epoch == 0 else star._job.session.loader:
        if not taken:
            opt.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device)) / accumulate
        (scaler.scale(loss) if scaler else loss).backward()
        taken += i.tolist()
        if len(taken) < 16:
            continue
        if "clip" in ask:
            nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 0.05)
        if scaler:
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()
        print("batch", json.dumps(taken), flush=True)
        taken = []
        steps += 1
        if steps == die:
            os.kill(os.getpid(), signal.SIGKILL)
assert where == [p.data_ptr() for p in model.parameters()]
assert model.out.weight.stride() == (1, 4)
print("parts", json.dumps(parts))
print("batches of the norm", int(model.norm.num_batches_tracked))
"""
)


def text(name: str, dtype: str, ask: str = "", die: int = 0) -> str:
    return "device, name, width, ask, die = 'cuda', %r, 60, %r, %d\nimport torch\ndtype = torch.%s\n" % (name, ask, die, dtype) + TRAIN


def lines_of(worker: Any, kind: str) -> List[Any]:
    return [json.loads(line[len(kind) :]) for line in worker.log.splitlines() if line.startswith(kind + " ")]


PS, RING = ("--shards", "2"), ("--arch", "allreduce", "--bucket", "0.002")


@needs_cuda
@pytest.mark.parametrize(
    "name, dtype, ask, arch",
    [
        ("adamw", "float32", "", PS),
        ("momentum", "bfloat16", "", PS),
        ("momentum", "float32", "ring", RING),
        ("rmsprop", "float32", "own ring clip accumulate", RING),
        ("sgd", "bfloat16", "ring", RING),
    ],
    ids=lambda v: "servers" if v == PS else "ring" if v == RING else str(v),
)
def test_like_one_process(job: Any, name: str, dtype: str, ask: str, arch: Any) -> None:
    """Two workers make the parameters of one process, with float32 masters, on the batches of both."""
    width, steps = 60, 40
    script = job.script(text(name, dtype, ask))
    job.start("--mode", "ssgd", "--steps", str(steps), "--eval-every", "10", *arch)
    ws = [job.worker(script, flags=(*arch, "--out", str(job.out)) if arch == RING else ()) for _ in range(2)]
    job.finish()
    own: Dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, dtype)}
    exec(MODEL, own)
    x, y = (t.to(own["device"]) for t in own["data"]())
    model = own["make"](width)
    start = {k: v.clone() for k, v in model.state_dict().items()}
    masters = [p.detach().float().clone().requires_grad_(True) for p in model.parameters() if p.requires_grad]
    opt = own["OPTIMIZERS"][name](type("M", (), {"parameters": lambda self: masters})())
    for a, b in list(zip(*(lines_of(w, "batch") for w in ws))):
        total = [torch.zeros_like(m) for m in masters]
        for half in (a, b):
            grads = [torch.zeros_like(m) for m in masters]
            for part in (half[:8], half[8:]) if "accumulate" in ask else (half,):
                model.zero_grad()
                own["F"].cross_entropy(model(x[part]), y[part]).backward()
                for g, p in zip(grads, (p for p in model.parameters() if p.requires_grad)):
                    if p.grad is not None:
                        g += p.grad.float() * len(part) / 16
            if "clip" in ask:
                norm = float(torch.sqrt(sum((g.double() ** 2).sum() for g in grads)))
                grads = [g * min(1.0, 0.05 / norm) for g in grads]
            for t, g in zip(total, grads):
                t += g / 2
        for m, t in zip(masters, total):
            m.grad = t
        opt.step()
        with torch.no_grad():
            for m, p in zip(masters, (p for p in model.parameters() if p.requires_grad)):
                p.copy_(m)
    got = job.parameters()
    want = dict(zip((n for n, p in model.named_parameters() if p.requires_grad), masters))
    most = 1e-4 if dtype == "float32" else 0.02
    for k, m in want.items():
        v = m.detach().cpu()
        error = float((got[k] - v).abs().max()) / max(float(v.abs().max()), 1e-3)
        assert error < most, "%s is off by %.2g of its largest element" % (k, error)
    assert torch.equal(got["frozen.weight"], start["frozen.weight"].float().cpu())
    assert float((got["hidden.weight"] - start["hidden.weight"].float().cpu()).abs().max()) > 1e-4
    if dtype != "float32":  # the masters have more than the model
        assert not torch.equal(got["hidden.weight"], got["hidden.weight"].to(own["dtype"]).float())
    assert float(got["norm.running_var"].max()) != 1.0
    for w in ws:
        (parts,) = lines_of(w, "parts")
        assert bool(parts) == ("ring" in ask), parts
        assert lines_of(w, "batches of the norm") == [steps * (2 if "accumulate" in ask else 1)]
    assert job.lines("eval")[-1]["accuracy"] > 0.1


@needs_cuda
def test_scaler(job: Any) -> None:
    """fp16 by GradScaler: its scale is taken out of the gradient."""
    script = job.script(text("momentum", "float32", "scaler"))
    ps = job.start("--mode", "ssgd", "--steps", "20")
    ws = [job.worker(script) for _ in range(2)]
    job.finish(ps, *ws)
    norms = [float(v.abs().max()) for v in job.parameters().values() if v.numel()]
    assert max(norms) < 100


@needs_cuda
@pytest.mark.parametrize("arch, ask", [(PS, ""), (RING, "own ring")], ids=["servers", "own"])
def test_killed_and_resumed(job: Any, arch: Any, ask: str) -> None:
    """The others go on without a worker that is killed; the job resumes from its checkpoint, with what the optimizer remembers."""
    flags = (*arch, "--out", str(job.out)) if arch == RING else ()
    ps = job.start("--mode", "ssgd", "--steps", "60", *arch, workers=3)
    good = job.script(text("momentum", "float32", ask))
    ws = [job.worker(good, flags=flags) for _ in range(2)]
    victim = job.worker(job.script(text("momentum", "float32", ask, die=15), "bad.py"), flags=flags)
    assert victim.wait() != 0
    job.finish(ps, *ws)
    before = job.parameters()
    resume = ("--resume", str(job.out))
    ps = job.start("--mode", "ssgd", "--steps", "140", *resume, *arch)
    ws = [job.worker(good, flags=(*flags, *resume) if flags else ()) for _ in range(2)]
    job.finish(ps, *ws)
    after = job.parameters()
    assert 0 < max(float((after[k] - before[k]).abs().max()) for k in before if not k.endswith("num_batches_tracked")) < 1.0


@needs_cuda
def test_ddp_hook(job: Any) -> None:
    """A script of DistributedDataParallel on a GPU makes the parameters that it makes by Gloo."""
    from test_ddp import ranks

    script, args = ROOT / "examples" / "pytorch" / "ddp.py", ("--count", "400", "--epochs", "3", "--device", "cuda")
    plain = [subprocess.Popen([sys.executable, str(script), "--plain", *args, "--save", str(job.folder / "plain.pt")], env={**job.env, **e}) for e in ranks(2)]
    assert [p.wait(PATIENCE) for p in plain] == [0, 0]
    ps = job.start("--arch", "allreduce", "--mode", "ssgd", "--epochs", "3")
    ws = [job.worker(script, *args, "--save", str(job.folder / ("own%s.pt" % e["RANK"])), flags=("--arch", "allreduce", "--out", str(job.out)), env=e) for e in ranks(2)]
    job.finish(ps, *ws)
    want, a, b = (torch.load(job.folder / n, map_location="cpu") for n in ("plain.pt", "own0.pt", "own1.pt"))
    for k, v in want.items():
        assert torch.allclose(v, a[k], rtol=1e-4, atol=1e-6) and torch.equal(a[k], b[k]), k
