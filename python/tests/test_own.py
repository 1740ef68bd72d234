"""Jobs with workers that have their own optimizers: any kind, in a ring."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

TRAIN = """
import os, sys, time
import torch, torch.nn as nn, torch.nn.functional as F
import star_train.torch as star

g = torch.Generator().manual_seed(3)
x = torch.randn(320, 6, generator=g)
data = torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))
do = os.environ.get("DO", "")
if do != "other start":
    torch.manual_seed(5)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
make = torch.optim.LBFGS if do == "closure" else torch.optim.Adamax
opt = star.attach(model, make(model.parameters(), 0.005), own=True)
loader = star.loader(data, batch_size=16)
steps = 0
for epoch in range(1000):
    for xs, ys in loader:
        opt.zero_grad()
        F.cross_entropy(model(xs), ys).backward()
        opt.step()
        steps += 1
        if do == "clamp":
            with torch.no_grad():
                for p in model.parameters():
                    p.clamp_(-0.02, 0.02)
            nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()).detach().clone(), model.parameters())
        if do == "come" and steps == 1:
            open("came", "w").close()
        if do == "wait" and not os.path.exists("came"):
            time.sleep(1)
print("steps", steps, flush=True)
"""

RING = ("--arch", "allreduce", "--mode", "ssgd")
OUTER = ("--mode", "ssgd local=2 outer=nesterov(0.5,0.7)")


def ring(job: Any, env: Any, *flags: str, count: int = 2) -> Any:
    ps = job.start(*RING, *flags, workers=count)
    return ps, [job.worker(job.folder / "train.py", flags=("--arch", "allreduce", "--out", str(job.out), *(f for f in flags if f == "--resume" or "/" in f)), env=e) for e in env]


@pytest.mark.parametrize("mode", [(), OUTER], ids=["ssgd", "outer"])
def test_joiner(job: Any, mode: Any) -> None:
    """A worker that joins later gets the state of the optimizers: all have the same parameters at the end, or the coordinator ends the job."""
    job.script(TRAIN)
    ps, ws = ring(job, [{"DO": "wait"}] * 2, *mode, "--epochs", "40", "--max-workers", "3", "--eval-every", "20")
    ws[0].until("joined")
    c = job.worker(job.folder / "train.py", flags=("--arch", "allreduce", "--out", str(job.out)), env={"DO": "come"})
    job.finish(ps, *ws, c)
    assert int(c.log.split("steps ")[-1].split()[0]) > 20
    assert "received the parameters" in c.log
    assert job.lines("summary")[-1]["samples"] == 320 * 40


def test_scripts_that_begin_differently(job: Any) -> None:
    """A script without a seed: all take the parameters of one."""
    job.script(TRAIN)
    ps, ws = ring(job, [{"DO": "other start"}] * 2, "--steps", "20")
    job.finish()


@pytest.mark.parametrize("mode, workers", [((), 2), (OUTER, 1)], ids=["ssgd", "outer"])
def test_resume(job: Any, star: str, tmp_path: Any, mode: Any, workers: int) -> None:
    """20 steps, and 20 more from the checkpoint, make the parameters of 40 steps, to the bit. Of workers with steps of their own a checkpoint has one's state."""
    from conftest import Job

    ends = []
    for name, legs in (("whole", [("--steps", "40")]), ("halves", [("--steps", "20"), ("--steps", "40", "--resume")])):
        (tmp_path / name).mkdir()
        for leg in legs:
            j = Job(star, tmp_path / name)
            try:
                j.script(TRAIN)
                flags = leg if leg[-1] != "--resume" else (*leg, str(j.out))
                ring(j, [{"DO": ""}] * workers, *mode, *flags, count=workers)
                j.finish()
                ends.append(j.parameters())
            finally:
                j.close()
    whole, half, halves = ends
    for k, v in whole.items():
        assert torch.equal(v, halves[k]), k
        assert not torch.equal(v, half[k])


def test_changed_between_steps(job: Any) -> None:
    """What a script does to parameters behind its step is in the next one, and in the checkpoint of the last one, as in one process."""
    job.script(TRAIN)
    ring(job, [{"DO": "clamp"}] * 2, "--steps", "20")
    job.finish()
    assert max(float(v.abs().max()) for v in job.parameters().values()) == pytest.approx(0.02)


def test_refused(job: Any) -> None:
    """With parameter servers it is said what to do; so it is of optimizers that call a closure."""
    job.script(TRAIN)
    job.start("--mode", "ssgd", "--epochs", "1", workers=1)
    a = job.worker(job.folder / "train.py")
    assert a.wait() == 78 and "makes the updates itself (own=True), which needs --arch allreduce" in a.log
    b = job.worker(job.folder / "train.py", env={"DO": "closure"})
    assert b.wait() != 0 and "LBFGS needs a closure" in b.log
