"""What a job keeps beside its parameters: buffers of every type, names, and what its optimizer remembers, in whole jobs."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

from conftest import load  # noqa: E402

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

KINDS = dict(
    ids=torch.int64, count=torch.int64, mask=torch.bool, bytes=torch.uint8, narrow=torch.bfloat16, wide=torch.float64, freqs=torch.complex64, frozen=torch.float16
)
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
    out = subprocess.run([star, "eval", str(job.out), "--", sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=120)
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
    """A job of a model in DataParallel goes on without it. So does one of an earlier version, whose checkpoint has the wrapper's names and float32 alone."""
    script = job.script(WRAPPED)
    for epochs, how, flags in ((1, "parallel", ()), (2, "plain", ("--resume", str(job.out)))):
        job.start("--mode", "ssgd", "--epochs", str(epochs), *flags)
        for _ in range(2):
            job.worker(script, env={"HOW": how})
        job.finish()
        got = job.parameters()
        assert set(got) == {"0.weight", "0.bias", "3.weight", "3.bias", *("1." + k for k in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"))}
        assert got["1.num_batches_tracked"] == 4 * epochs
