"""What cannot be trained ends with the name, the place, the fix and the right exit code; nothing hangs, and nothing stays: the memory is a memfd, which ends with the last process that has it."""

import subprocess
from typing import Any

import pytest
from conftest import PATIENCE, python

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

TRAIN = """
import os
import torch, torch.nn as nn, torch.nn.functional as F
import star_train.torch as star
from star_train import _link

do = os.environ.get("DO", "")
if do == "version":
    _link.VERSION = 2
x = torch.randn(330 if do == "samples" else 320, 6, generator=torch.Generator().manual_seed(3))
data = torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))
torch.manual_seed(5)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8 if do == "layout" else 3), nn.Linear(8 if do == "layout" else 3, 3))
opt = star.attach(model, torch.optim.SGD(model.parameters(), 0.02 if do != "rate" else 0.03))
if do == "float64":
    model.double()
if do == "twice":
    star.attach(model, opt)
steps = 0
for xs, ys in star.loader(data, batch_size=16):
    opt.zero_grad()
    loss = F.cross_entropy(model(xs), ys)
    if do == "nan" and steps == 3:
        loss = loss * float("nan")
    loss.backward()
    steps += 1
    if do == "sparse":
        model[0].weight.grad = torch.eye(16, 6).to_sparse()
    opt.step()
"""


@pytest.mark.parametrize(
    "do, code, says",
    [
        ("layout", 78, ["2.weight", "[8 16]", "[3 16]"]),
        ("samples", 78, ["320", "330"]),
        ("rate", 78, ["workers disagree on the optimiser", "0.03", "0.02"]),
        ("version", 78, ["version 2 of the link, this star version 1", "STAR_AGENT"]),
    ],
)
def test_other_than_the_first(job: Any, do: str, code: int, says: Any) -> None:
    """The job goes on to its end without the worker that does not fit."""
    script = job.script(TRAIN)
    ps = job.start("--mode", "ssgd", "--epochs", "1", workers=2)
    a = job.worker(script)
    a.until("joined")
    bad = job.worker(script, env={"DO": do})
    assert bad.wait() == code, bad.log
    for text in says:
        assert text in bad.log, bad.log
    good = job.worker(script)
    job.finish(ps, a, good)


@pytest.mark.parametrize("attach", [False, True])
@pytest.mark.parametrize("do, code, says", [("float64", 78, "0.weight is torch.float64"), ("twice", 2, "star.attach was called before"), ("sparse", 78, "sparse=False")])
def test_refused_here(job: Any, do: str, code: int, says: str, attach: bool) -> None:
    """A refusal of the package is in the job's log, and in the exit code of script and agent, whether script or agent was started first."""
    ps = job.start("--mode", "ssgd", "--epochs", "1", workers=1)
    bad = job.worker(job.script(TRAIN), env={"DO": do}, attach=attach)
    assert bad.wait() == code, bad.log
    assert says in bad.log and (attach or "the program failed: " in bad.log), bad.log
    if do == "sparse":  # the others had been trained with
        assert ps.wait() != 0 and says in ps.log, ps.log
    else:
        job.finish(ps, job.worker(job.script(TRAIN)))


@pytest.mark.skipif(torch.__version__ >= "2", reason="PyTorch 2 needs more than the limit itself")
def test_address_space(job: Any) -> None:
    """An agent that the limit leaves too little says so before anything is trained."""
    script = job.script("import resource\nresource.setrlimit(resource.RLIMIT_AS, (1_500_000_000, 1_500_000_000))\n" + TRAIN)
    ps = job.start("--mode", "ssgd", "--epochs", "1", workers=1)
    bad = job.worker(script, attach=True)
    assert bad.wait() == 69, bad.log
    assert "limited to 1500 MB" in bad.log and "ulimit -v" in bad.log, bad.log
    job.finish(ps, job.worker(job.script(TRAIN)))


def test_full_dev_shm(job: Any) -> None:
    """Python's semaphores, which the processes of a DataLoader want, are the only ones to need it."""
    full = """
import multiprocessing.synchronize
def full(*a, **k):
    raise OSError(28, "No space left on device")
multiprocessing.synchronize.SemLock.__init__ = full
"""
    ps = job.start("--mode", "ssgd", "--epochs", "1", workers=1)
    bad = job.worker(job.script(full + TRAIN.replace("batch_size=16", "batch_size=16, num_workers=2")))
    assert bad.wait() == 69 and "/dev/shm is full" in bad.log and "num_workers=0" in bad.log, bad.log
    assert ps.wait() != 0


def test_nan(job: Any) -> None:
    script = job.script(TRAIN)
    ps = job.start("--mode", "ssgd", "--epochs", "1", workers=1)
    a = job.worker(script, env={"DO": "nan"})
    assert a.wait() == 70 and "the gradient of worker 0 is" in a.log and "--on-nan=skip" in a.log
    assert ps.wait() != 0


def test_evaluated_without_a_test_set(job: Any) -> None:
    script = job.script(TRAIN)
    ps = job.start("--mode", "ssgd", "--epochs", "1", workers=1)
    job.finish(ps, job.worker(script))
    p = subprocess.run([job.star, "eval", str(job.out), "--", python(), str(script)], cwd=job.folder, env=job.env, capture_output=True, text=True, timeout=PATIENCE)
    assert p.returncode == 2, p.stderr
    assert "train.py has no test set: it has to call star.evaluate(f, testset) before its first batch" in p.stderr.splitlines()[-1], p.stderr


def test_alone(job: Any) -> None:
    """python train.py without a launcher is plain PyTorch, and says so."""
    p = subprocess.run([python(), str(job.script(TRAIN))], cwd=job.folder, env=job.env, capture_output=True, text=True, timeout=PATIENCE)
    assert p.returncode == 0 and "it trains alone, as plain PyTorch: start it by star run --workers N -- python" in p.stderr, p.stderr
