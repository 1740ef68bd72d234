"""What a job keeps beside its parameters: buffers of every type, names, and what its optimizer remembers, in whole jobs."""

import json
import os
import subprocess
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

from conftest import load, python  # noqa: E402

BUFFERS = """
import os, sys, torch, torch.nn as nn, torch.nn.functional as F
import star_train.torch as star

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)
        self.norm = nn.BatchNorm1d(16)
        self.register_buffer("ids", torch.arange(16777210, 16777226))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("bytes", torch.arange(3, dtype=torch.uint8))
        self.register_buffer("narrow", torch.tensor([1.0, 2.0]).bfloat16())
        self.register_buffer("wide", torch.tensor([0.1], dtype=torch.float64))
        self.register_buffer("freqs", torch.polar(torch.ones(4), torch.arange(4.0)))
        self.frozen = nn.Parameter(torch.tensor([1.5], dtype=torch.float16), requires_grad=False)
    def forward(self, x):
        self.count += self.training
        return self.b(torch.relu(self.norm(self.a(x))))

torch.manual_seed(0)
model = Net()
opt = star.attach(model, torch.optim.SGD(model.parameters(), 0.05))
x = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))

def judge(batch):
    xs, ys = batch
    assert model.ids[-1] == 16777225 and model.wide[0] == 0.1 and model.freqs.dtype == torch.complex64
    out = model(xs)
    return F.cross_entropy(out, ys, reduction="sum"), (out.argmax(1) == ys).sum(), len(ys)

star.evaluate(judge, data)
first = None
loader = star.loader(data, batch_size=16)
for epoch in range(100):
    for xs, ys in loader:
        if first is None:
            first = int(model.count)
        opt.zero_grad()
        F.cross_entropy(model(xs), ys).backward()
        opt.step()
print("rank", star.rank(), "began with", first, "and has", int(model.count), flush=True)
"""

KINDS = dict(ids=torch.int64, count=torch.int64, mask=torch.bool, bytes=torch.uint8, narrow=torch.bfloat16, wide=torch.float64, freqs=torch.complex64, frozen=torch.float16)
KINDS.update({"norm.running_mean": torch.float32, "norm.num_batches_tracked": torch.int64})


@pytest.mark.parametrize("arch", [("--shards", "2"), ("--arch", "allreduce")], ids=lambda a: a[-1])
def test_buffers_keep_their_type(job: Any, star: str, tmp_path: Any, arch: Any) -> None:
    """In the checkpoint, in what is converted from it and back, after a resume, and in an evaluation by star eval."""
    script = job.script(BUFFERS)
    ring = ("--out", str(job.out)) if arch[0] == "--arch" else ()

    def leg(epochs: int, *flags: str) -> Any:
        job.start("--mode", "ssgd", "--epochs", str(epochs), *arch, *flags)
        ws = [job.worker(script, flags=(*(arch if ring else ()), *ring, *(flags if ring else ()))) for _ in range(2)]
        job.finish()
        return [w.log for w in ws], job.parameters()

    logs, got = leg(1)
    for name, kind in KINDS.items():
        assert got[name].dtype == kind, name
    assert torch.equal(got["ids"], torch.arange(16777210, 16777226)) and got["count"] == 8 and got["norm.num_batches_tracked"] == 8
    assert got["mask"].tolist() == [True, False, True] and got["bytes"].tolist() == [0, 1, 2] and got["wide"] == 0.1
    assert torch.equal(got["freqs"], torch.polar(torch.ones(4), torch.arange(4.0))) and got["frozen"] == 1.5
    listed = subprocess.run([star, "checkpoint", "ls", "--json", str(job.out)], check=True, capture_output=True).stdout
    assert [c["state"] for c in json.loads(listed)] == ["complete"]

    # Out and back in: the same numbers.
    model = job.folder / "model.safetensors"
    subprocess.run([star, "checkpoint", "convert", str(model), str(tmp_path / "in"), "--like", str(job.out)], check=True, capture_output=True)
    again = tmp_path / "again.safetensors"
    subprocess.run([star, "checkpoint", "convert", str(tmp_path / "in"), str(again)], check=True, capture_output=True)
    back = load(again)
    assert set(back) == set(got) and all(torch.equal(back[k], got[k]) and back[k].dtype == got[k].dtype for k in got)

    env = dict(job.env, PATH=os.path.dirname(star) + ":" + os.environ["PATH"])
    out = subprocess.run([star, "eval", str(job.out), "--", python(), str(script)], env=env, capture_output=True, text=True, timeout=120)
    assert out.returncode == 0 and "256 predictions" in out.stdout, out.stdout + out.stderr

    logs, later = leg(2, "--resume", str(job.out))
    assert later["count"] == 16 and later["norm.num_batches_tracked"] == 16 and torch.equal(later["ids"], got["ids"]) and later["wide"] == 0.1
    assert all("began with 8 and has 16" in log for log in logs), logs


WRAPPED = """
import os, torch, torch.nn as nn, torch.nn.functional as F
import star_train.torch as star
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
if os.environ["HOW"] == "parallel":
    model = nn.DataParallel(model)
opt = star.attach(model, torch.optim.SGD(model.parameters(), 0.05))
x = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
loader = star.loader(torch.utils.data.TensorDataset(x, x[:, :3].argmax(1)), batch_size=32)
for epoch in range(100):
    for xs, ys in loader:
        opt.zero_grad()
        F.cross_entropy(model(xs), ys).backward()
        opt.step()
"""


def test_resume_of_a_wrapped_model(job: Any, star: str) -> None:
    """A job of a model in DataParallel goes on without it. So does one of an earlier version: its checkpoint has the wrapper's names and float32 alone."""
    script = job.script(WRAPPED)
    for epochs, how, flags in ((1, "parallel", ()), (2, "plain", ("--resume", str(job.out)))):
        job.start("--mode", "ssgd", "--epochs", str(epochs), *flags)
        for _ in range(2):
            job.worker(script, env={"HOW": how})
        job.finish()
        got = job.parameters()
        assert set(got) == {"0.weight", "0.bias", "3.weight", "3.bias", *("1." + k for k in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"))}
        assert got["1.num_batches_tracked"] == 4 * epochs


TRAINED = """
import json, os, sys
import torch, torch.nn as nn, torch.nn.functional as F

OPTIMIZERS = {
    "momentum": lambda m: torch.optim.SGD(m.parameters(), 0.02, momentum=0.9, weight_decay=0.001),
    "nesterov": lambda m: torch.optim.SGD(m.parameters(), 0.02, momentum=0.8, nesterov=True),
    "adam": lambda m: torch.optim.Adam(m.parameters(), 0.003, betas=(0.8, 0.99)),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), 0.003, weight_decay=0.05),
    "amsgrad": lambda m: torch.optim.Adam(m.parameters(), 0.003, amsgrad=True),
    "sgd": lambda m: torch.optim.SGD(m.parameters(), 0.02),
}

def data():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(640, 12, generator=g)
    return x, (x[:, :4] + 0.3 * torch.randn(640, 4, generator=g)).argmax(1)

def make():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4))

def before(name, x, y):
    # A script's own checkpoint, after 30 steps.
    model = make()
    opt = OPTIMIZERS[name](model)
    for k in range(30):
        opt.zero_grad()
        F.cross_entropy(model(x[16 * k:16 * k + 16]), y[16 * k:16 * k + 16]).backward()
        opt.step()
    return model.state_dict(), opt.state_dict()
"""

GOES_ON = (
    TRAINED
    + """
import star_train.torch as star

class Numbered(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.y = data()
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return i, self.x[i], self.y[i]

name = sys.argv[1]
set_ = Numbered()
parameters, state = before(name, set_.x, set_.y)
model = make()
model.load_state_dict(parameters)
opt = OPTIMIZERS[os.environ.get("OTHER", name)](model)
opt.load_state_dict(state)
opt = star.attach(model, opt)
loader = star.loader(set_, batch_size=16, epochs=10)
for epoch in range(100):
    for i, x, y in loader:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
        print("batch", json.dumps(i.tolist()), flush=True)
"""
)

PS, RING = ("--shards", "2"), ("--arch", "allreduce")


def alone(name: str, batches: Any, kept: Any = None) -> Any:
    """One process that goes on from the same checkpoint, with the batches of both workers."""
    own = {}  # type: Any
    exec(TRAINED, own)
    x, y = own["data"]()
    model = own["make"]()
    opt = own["OPTIMIZERS"][name](model)
    parameters, state = own["before"](name, x, y)
    model.load_state_dict(parameters)
    opt.load_state_dict(state)
    for a, b in batches:
        opt.zero_grad()
        (own["F"].cross_entropy(model(x[a]), y[a]) / 2 + own["F"].cross_entropy(model(x[b]), y[b]) / 2).backward()
        opt.step()
    return model, opt


def batches_of(*workers: Any) -> Any:
    return list(zip(*([json.loads(line[6:]) for line in w.log.splitlines() if line.startswith("batch ")] for w in workers)))


def close(got: Any, want: Any, what: str) -> None:
    scale = max(float(want.abs().max()), 1e-3)
    assert float((got - want).abs().max()) / scale < 1e-5, what


@pytest.mark.parametrize("arch", [PS, RING], ids=lambda a: a[-1])
@pytest.mark.parametrize("name", ["momentum", "nesterov", "adam", "adamw"])
def test_goes_on_from_a_scripts_own_checkpoint(job: Any, name: str, arch: Any) -> None:
    """What an optimizer remembers when it is attached is where the job's begins: the parameters are those of one process that goes on."""
    script = job.script(GOES_ON)
    job.start("--mode", "ssgd", "--steps", "40", *arch)
    ws = [job.worker(script, name, flags=(*arch, "--out", str(job.out)) if arch == RING else ()) for _ in range(2)]
    job.finish()
    batches = batches_of(*ws)
    assert len(batches) == 40
    model, _ = alone(name, batches)
    got = job.parameters()
    for k, want in model.state_dict().items():
        close(got[k], want, k)


def test_state_in_every_velocity(job: Any) -> None:
    """The rule with a velocity for each worker begins with one in common, as Nesterov's momentum has it."""
    script = job.script(GOES_ON)
    job.start("--mode", "ssgd", "--steps", "40", "--optimizer", "dana", "--lr", "0.02", "--momentum", "0.8", *PS)
    ws = [job.worker(script, "nesterov") for _ in range(2)]
    job.finish()
    model, _ = alone("nesterov", batches_of(*ws))
    got = job.parameters()
    for k, want in model.state_dict().items():
        close(got[k], want, k)


@pytest.mark.parametrize("arch", [PS, RING], ids=lambda a: a[-1])
def test_state_of_another_rule(job: Any, arch: Any) -> None:
    """What the job's rule cannot use is no silent new beginning: every worker says so, with exit code 2."""
    script = job.script(GOES_ON)
    flags = ("--optimizer", "sgd", "--lr", "0.1", "--schedule", "constant", *arch)
    job.start("--mode", "ssgd", "--steps", "40", *flags, workers=1)
    w = job.worker(script, "adam", flags=(*flags, "--out", str(job.out)) if arch == RING else ())
    assert w.wait() == 2, w.log
    assert "the script's adam has made 30 steps" in w.log and "sgd" in w.log


ASKS = (
    GOES_ON.replace('print("batch", json.dumps(i.tolist()), flush=True)', 'print("batch", json.dumps(i.tolist()), flush=True)\n        taken += 1\n        look()').replace(
        "loader = ",
        """
import copy, pickle
taken = 0

def look():
    if taken not in (3, 10):
        return
    kept = opt.state_dict()
    torch.save(kept, "opt-%d-%d.pt" % (star.rank(), taken))
    opt.load_state_dict(copy.deepcopy(kept))  # what it is already
    other = copy.deepcopy(kept)
    other["param_groups"][0]["lr"] += 1
    try:
        opt.load_state_dict(other)
    except star.StarError as e:
        assert "load_state_dict() after the first batch" in str(e)
    else:
        raise AssertionError("another state was loaded")
    for again in (pickle.loads(pickle.dumps(opt)), copy.deepcopy(opt)):
        assert type(again) is type(opt).__mro__[2] and not isinstance(again, type(opt)), type(again)
        same = again.state_dict()
        assert same["param_groups"] == kept["param_groups"]
        assert all(torch.equal(same["state"][i][k], v) for i, s in kept["state"].items() for k, v in s.items())
    torch.save(model, "model-%d.pt" % taken)

loader = """,
    )
    + """
try:
    torch.save(opt.state_dict(), "opt-%d-end.pt" % star.rank())
except star.StarError as e:
    print("refused", star.rank(), e)
"""
)


@pytest.mark.parametrize("arch", [PS, RING], ids=lambda a: a[-1])
@pytest.mark.parametrize("name", ["nesterov", "adamw", "sgd"])
def test_state_dict_is_the_jobs(job: Any, name: str, arch: Any) -> None:
    """What state_dict() has within a job and behind it is what one process would have; so do pickle and deepcopy, as the plain optimizer."""
    script = job.script(ASKS)
    job.start("--mode", "ssgd", "--steps", "12", *arch)
    ws = [job.worker(script, name, flags=(*arch, "--out", str(job.out)) if arch == RING else ()) for _ in range(2)]
    job.finish()
    batches = batches_of(*ws)
    for taken in (3, 10, 12):
        _, opt = alone(name, batches[:taken])
        want = opt.state_dict()
        for rank in range(2 if taken < 12 else 1):
            got = torch.load(job.folder / ("opt-%d-%s.pt" % (rank, taken if taken < 12 else "end")))
            assert got["param_groups"] == want["param_groups"]
            kept = {i: {k: v for k, v in s.items() if v is not None} for i, s in want["state"].items()}
            assert {i: set(s) for i, s in got["state"].items()} == {i: set(s) for i, s in kept.items() if s}
            for i, state in got["state"].items():
                for k, v in state.items():
                    close(v, torch.as_tensor(kept[i][k]), "%s of %d after %d" % (k, i, taken))
        opt.load_state_dict(got)
    assert sum("refused 1 the job is over" in w.log for w in ws) == 1
