"""When a job is over, and what ends it."""

import json
import subprocess
from typing import Any

import pytest
from conftest import PATIENCE, python
from test_examples import environment

SCRIPT = """
import sys, torch, torch.nn as nn, torch.nn.functional as F
import star_train.torch as star
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
opt = star.attach(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), own=%(own)s)
x = torch.randn(512, 8, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))
%(before)s
loader = star.loader(data, batch_size=16, %(loader)s)
star.evaluate(lambda b: (float(F.cross_entropy(model(b[0]), b[1], reduction="sum")), int((model(b[0]).argmax(1) == b[1]).sum()), len(b[1])), data)
n = 0
def train():
    global n
    for epoch in range(1000):
        for a, b in loader:
            opt.zero_grad()
            F.cross_entropy(model(a), b).backward()
            opt.step()
            n += 1
            %(step)s
train()
print("END", star.rank(), n, flush=True)
"""


def script(job: Any, step: str = "pass", before: str = "", loader: str = "", own: bool = False) -> Any:
    return job.script(SCRIPT % {"step": step, "before": before, "loader": loader, "own": own})


def result(job: Any) -> Any:
    return json.loads((job.out / "run.jsonl").read_text().splitlines()[-1])


def launch(star: str, folder: Any, flags: Any, script: str) -> Any:
    """star run with two workers."""
    command = [star, "run", "--http", "off", "--listen", "127.0.0.1:0", "--join-timeout", "4m", "--progress", "off", "--workers", "2", "--mode", "ssgd", *flags]
    return subprocess.run([*command, "--", python(), script], cwd=folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE)


RING = ("--arch", "allreduce")


@pytest.mark.parametrize("flags", [(), RING], ids=["servers", "ring"])
@pytest.mark.parametrize("step", ["if n == 20: return", "if n == 20 + star.rank(): raise SystemExit(0)"], ids=["return", "exit"])
def test_every_loop_ends(job: Any, flags: Any, step: str) -> None:
    ps = job.start("--epochs", "100", "--mode", "ssgd", *flags)
    s = script(job, step, own=bool(flags))
    workers = [job.worker(s, flags=[*flags, "--out", str(job.out)]) for _ in range(2)]
    job.finish(ps, *workers)
    r = result(job)
    assert r["evaluated"] and "left; the last one is worker" in r["ended"] and 20 <= r["updates"] <= 21, r
    assert r["test_accuracy"] > 0.5, r
    # a checkpoint of a job with BatchNorm has what it needs from its workers, and the job continues from it
    assert "1.running_mean" in job.parameters()


def test_one_loop_ends(job: Any) -> None:
    ps = job.start("--epochs", "20", "--mode", "ssgd")
    s = script(job, "if n == 20 and star.rank() == 0: return")
    workers = [job.worker(s) for _ in range(2)]
    job.finish(ps, *workers)
    r = result(job)
    assert "ended" not in r and r["samples"] == 20 * 512, r


@pytest.mark.parametrize("flags", [(), RING], ids=["servers", "ring"])
def test_stop(job: Any, flags: Any) -> None:
    ps = job.start("--epochs", "100", *flags)
    s = script(job, "if n == 20 and star.rank() == 1: star.stop('good enough')")
    workers = [job.worker(s, flags=[*flags, "--out", str(job.out)]) for _ in range(2)]
    job.finish(ps, *workers)
    r = result(job)
    assert r["ended"] == "worker 1: good enough" and r["evaluated"] and r["samples"] < 50 * 512, r


def test_the_last_program_fails(job: Any) -> None:
    ps = job.start("--epochs", "100", "--mode", "ssgd", *RING)
    s = script(job, "if n == 20: raise ValueError('no more of this')")
    workers = [job.worker(s, flags=[*RING, "--out", str(job.out)]) for _ in range(2)]
    assert ps.wait() == 69 and all(w.wait() == 1 for w in workers), ps.log
    assert "1.running_mean" in job.parameters()


@pytest.mark.parametrize("flags", [(), RING], ids=["servers", "ring"])
def test_an_exit_code_is_a_failure(job: Any, flags: Any) -> None:
    """sys.exit(3) behind the loop is no good order; one that is caught is."""
    ps = job.start("--epochs", "100", "--mode", "ssgd", *flags)
    s = script(job, "if n == 20: sys.exit(3)", own=bool(flags))
    s.write_text(s.read_text().replace("            n += 1", "            n += 1\n            try: sys.exit(n == 1 and 4)\n            except SystemExit: pass"))
    workers = [job.worker(s, flags=[*flags, "--out", str(job.out)], attach=k == 1) for k in range(2)]
    assert [p.wait() for p in (ps, *workers)] == [69, 3, 3], ps.log
    assert "the script ended with sys.exit(3)" in result(job)["error"] and job.checkpoint()


@pytest.mark.parametrize("flags", [(), RING], ids=["servers", "ring"])
@pytest.mark.parametrize("step", ["pass", "if n == 20: return"], ids=["complete", "left"])
def test_code_behind_the_loop(star: str, tmp_path: Any, flags: Any, step: str) -> None:
    """It may take longer than processes have to end, and its exit code is that of star run. The job is complete, with its checkpoint."""
    behind = "import os, time; time.sleep(10); open('behind%d' % star.rank(), 'w').close()\nif star.rank() == 1 or n == 20: raise SystemExit(3)\n"
    (tmp_path / "train.py").write_text(SCRIPT % {"step": step, "before": "", "loader": "", "own": bool(flags)} + behind)
    p = launch(star, tmp_path, [*flags, "--epochs", "2", "--out", "out"], "train.py")
    assert p.returncode == 3 and "trained" in p.stdout and "ended with exit code 3" in p.stderr, p.stdout + p.stderr
    assert (tmp_path / "behind0").exists() and (tmp_path / "behind1").exists() and list((tmp_path / "out" / "checkpoints").iterdir())


def test_a_loop_that_waits_for_more_batches(job: Any) -> None:
    """while n < steps: for batch in loader, where the job has fewer steps, ends with an error. The job is complete."""
    ps = job.start("--epochs", "1", "--mode", "ssgd")
    s = script(job)
    s.write_text(s.read_text().replace("for epoch in range(1000)", "while n < 10**6"))
    workers = [job.worker(s) for _ in range(2)]
    assert ps.wait() == 0 and result(job)["samples"] == 512, ps.log
    for w in workers:
        w.wait()
        assert "StarError: the job is over, and this script waits for more batches: it has iterated star.loader" in w.log, w.log


@pytest.mark.parametrize(
    "flags, loader, says",
    [
        ([], "", "note      the job makes 10 epochs, a default: none of star.loader(epochs=…), --epochs, --steps and --samples is set; then the loops"),
        (["--epochs", "5"], "epochs=2", "note      the job makes 5 epochs (--epochs), but the program has 2 (star.loader)"),
        (["--steps", "32"], "epochs=2", "job length set epochs=2 by=--steps"),
        ([], "epochs=3", 'job length set epochs=3 by="star.loader(epochs=…)"'),
    ],
    ids=["nothing", "both", "steps", "script"],
)
def test_the_length_is_said(star: str, tmp_path: Any, flags: Any, loader: str, says: str) -> None:
    """A script with a for loop that is longer or shorter than the job gets a message at the start."""
    (tmp_path / "train.py").write_text(SCRIPT % {"step": "pass", "before": "", "loader": loader, "own": False})
    p = launch(star, tmp_path, flags, "train.py")
    out = p.stdout + p.stderr
    assert p.returncode == 0 and says in out, out
    first = next(i for i, line in enumerate(p.stderr.splitlines()) if "the job makes" in line or "job length set" in line)
    assert not any("checkpoint" in line or "END" in line for line in p.stderr.splitlines()[:first]), out


@pytest.mark.parametrize("flags", [("--coordinators", "3"), ("--servers", "2", "--replicas", "2")], ids=["coordinators", "replicas"])
def test_every_loop_ends_with_copies(star: str, tmp_path: Any, flags: Any) -> None:
    """Several coordinators, and copies of shards, end with the workers, too."""
    (tmp_path / "train.py").write_text(SCRIPT % {"step": "if n == 20: return", "before": "", "loader": "", "own": False})
    p = launch(star, tmp_path, [*flags, "--epochs", "100"], "train.py")
    assert p.returncode == 0 and "left; the last one is worker" in p.stdout and "in 20 updates" in p.stdout and "accuracy" in p.stdout, p.stdout + p.stderr


@pytest.mark.parametrize("flags", [(), RING], ids=["servers", "ring"])
def test_misuse_ends_the_job(job: Any, flags: Any) -> None:
    ps = job.start("--epochs", "1000", *flags)
    s = script(job, "if n == 20 and star.rank() == 0: opt.param_groups[0]['lr'] /= 4")
    workers = [job.worker(s, flags=[*flags, "--out", str(job.out)]) for _ in range(2)]
    assert [p.wait() for p in (ps, *workers)] == [2, 2, 2], ps.log
    assert "worker 0: the program failed: the settings of the optimizer were changed" in result(job)["error"]
    assert ps.log.count("the settings of the optimizer were changed") == 1 and "(as above)" in ps.log, ps.log
    assert job.checkpoint()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_scheduler_that_the_job_does_not_have(job: Any, when: str) -> None:
    s = script(job, before="torch.optim.lr_scheduler.StepLR(opt, 1)")
    if when == "before":
        text = s.read_text().replace("opt = star.attach(model, torch", "opt = torch").replace("momentum=0.9), own=False)", "momentum=0.9)")
        s.write_text(text.replace("StepLR(opt, 1)", "StepLR(opt, 1); star.attach(model, opt)"))
    job.start(workers=1)
    w = job.worker(s)
    assert w.wait() == 2 and "give it to star.schedule" in w.log, w.log


@pytest.mark.parametrize("scheduler, epochs", [("CosineAnnealingLR(opt, T_max=400)", "400"), ("StepLR(opt, 1, gamma=0.7)", "0")])
def test_long_schedule(job: Any, scheduler: str, epochs: str) -> None:
    """A table of more than a header of the wire takes."""
    ps = job.start("--epochs", "2")
    s = script(job, before="star.schedule(torch.optim.lr_scheduler.%s)" % scheduler, loader="epochs=%s" % epochs)
    workers = [job.worker(s) for _ in range(2)]
    job.finish(ps, *workers)
    assert result(job)["samples"] == 2 * 512


@pytest.mark.parametrize("flags", [(), RING], ids=["servers", "ring"])
def test_schedule_beyond_the_script(job: Any, flags: Any) -> None:
    """The job is longer than the script says: the rate goes on as the scheduler's does."""
    ps = job.start("--epochs", "5", "--mode", "ssgd", *flags)
    s = script(
        job,
        "rates[int(loader.progress())] = opt.param_groups[0]['lr']",
        before="rates = {}; star.schedule(torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5))",
        loader="epochs=2",
    )
    s.write_text(s.read_text() + "print('RATES', [rates[k] for k in range(5)], flush=True)\n")
    workers = [job.worker(s, flags=[*flags, "--out", str(job.out)]) for _ in range(2)]
    job.finish(ps, *workers)
    assert all("RATES [0.1, 0.05, 0.025, 0.0125, 0.00625]" in w.log for w in workers), workers[0].log
    assert "2048:0.0625" in json.loads((job.out / "run.jsonl").read_text().splitlines()[0])["config"]["schedule"] or flags
