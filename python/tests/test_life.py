"""What happens when a Python, or its agent, dies, hangs, raises, leaves or comes."""

import collections
import json
import os
import pathlib
import random
import signal
import sys
import time
from typing import Any, List

import pytest
from conftest import PATIENCE

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

TRAIN = """
import json, os, sys, time
import torch, torch.nn as nn, torch.nn.functional as F
import star_train.torch as star

N = 320
pause = float(os.environ.get("PAUSE", "0"))
do = os.environ.get("DO", "")

class Data(torch.utils.data.Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(3)
        self.x = torch.randn(N, 6, generator=g)
        self.y = (self.x[:, :3]).argmax(1)
    def __len__(self):
        return N
    def __getitem__(self, i):
        if do == "bad sample" and i == 17:
            raise KeyError("sample 17 is damaged")
        return i, self.x[i], self.y[i]

torch.manual_seed(5)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
opt = star.attach(model, torch.optim.SGD(model.parameters(), 0.02))
schedule = torch.optim.lr_scheduler.StepLR(opt, step_size=3) if do == "schedule" else None
loader = star.loader(Data(), batch_size=16, num_workers=int(os.environ.get("LOADERS", "0")))
step = 0
for epoch in range(1000):
    for i, x, y in loader:
        os.write(1, ("batch %s\\n" % json.dumps(i.tolist())).encode())  # one write: two processes may have one log
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        step += 1
        if do == "raise" and step == 5:
            raise ValueError("the fifth step is too much")
        if do == "hang" and step == 5:
            print("hanging", flush=True)
            time.sleep(1000)
        if do == "leave" and step == 5:
            sys.exit(0)
        if do == "die" and step == 5:
            os.kill(os.getpid(), 9)
        while do == "held" and step > int(open("allowed").read() or "0"):
            time.sleep(0.02)
        if do == "fork" and step == 5:
            pid = os.fork()
            if pid == 0:
                try:
                    opt.step()
                except star.StarError as e:
                    print("child:", e, flush=True)
                os._exit(0)
            os.waitpid(pid, 0)
        opt.step()
        if schedule:
            schedule.step()
        if do == "come" and step == 1:
            open("came", "w").close()
        time.sleep(pause if do != "wait" or os.path.exists("came") else 1)  # a new worker gets its first batch after a step of these
print("over after", step, flush=True)
"""


def indices(*workers: Any) -> List[int]:
    return [i for w in workers for line in w.log.splitlines() if line.startswith("batch ") for i in json.loads(line[6:])]


def complete(job: Any, epochs: int, *workers: Any) -> None:
    """The job has applied each sample once in each epoch. A worker that died may have begun a batch that others repeat."""
    begun = collections.Counter(indices(*workers))
    assert min(begun[i] for i in range(320)) >= epochs
    assert job.lines("summary")[-1]["samples"] == 320 * epochs
    positions = {p for r in job.lines("record") for p in range(r["start"], r["start"] + r["samples"])}
    assert positions == set(range(320 * epochs))


def child(p: Any) -> int:
    """The process that p has started: the Python of an agent, or the agent of a Python."""
    (pid,) = [int(n) for f in pathlib.Path("/proc/%d/task" % p.p.pid).glob("*/children") for n in f.read_text().split()]
    return pid


def ended(pid: int) -> bool:
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("mode", ["ssgd", "asgd"])
def test_kills(job: Any, mode: str) -> None:
    """Pythons and agents are killed at a step or on the way to it, STAR_TEST_KILLS of them, and others come. The other half of a worker ends by itself."""
    kills = int(os.environ.get("STAR_TEST_KILLS", "3"))
    rng = random.Random(kills)
    script = job.script(TRAIN)

    steps = 0

    def allow(more: int = 1) -> None:
        nonlocal steps
        steps += more
        new = job.folder / "new"
        new.write_text(str(steps))
        os.replace(new, job.folder / "allowed")

    def arrived(count: int) -> None:
        """Waits for as many workers; a new worker has its first batch after a step of the others."""
        end = time.monotonic() + PATIENCE
        while sum("batch" in w.log for w in live) < min(count, len(live)):
            assert time.monotonic() < end, [w.log for w in live]
            allow()
            time.sleep(0.5)

    allow()
    epochs = 4 * kills
    ps = job.start("--mode", mode, "--epochs", str(epochs), "--max-workers", "64", workers=4)
    live = {job.worker(script, env={"DO": "held"}, attach=attach, starts=True): attach for attach in (False, True, False, True)}
    for w in live:
        w.until("batch")
    for k in range(kills):
        if kills > 3:  # none of the first four may be left
            live[job.worker(script, env={"DO": "held"}, attach=k % 2 == 0, starts=True)] = k % 2 == 0
        arrived(2)
        allow()
        time.sleep(rng.random() * 0.2)
        w = rng.choice([w for w in live if "batch" in w.log])
        pids = [w.p.pid, child(w)]
        python = rng.random() < 0.5
        os.kill(pids[0] if python == live.pop(w) else pids[1], signal.SIGKILL)
        allow()  # a Python that is held does not hear of its agent
        assert w.wait() != 0
        end = time.monotonic() + PATIENCE
        while not ended(pids[1]):
            assert time.monotonic() < end, "process %d is left of\n%s" % (pids[1], w.log)
            time.sleep(0.02)
        assert python or "AgentLost: the agent (star worker)" in w.log, w.log
    arrived(len(live))
    allow(100_000)
    job.finish(ps, *live)
    complete(job, epochs, *job.all[1:])


def test_torchrun(job: Any) -> None:
    """Plain torchrun train.py: each Python starts its agent, and the job's ranks are torchrun's."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 0):
        pytest.skip("torchrun of PyTorch %s does not start on this Python; make torch2 has a newer one" % torch.__version__)
    script = job.script(TRAIN)
    ps = job.start("--mode", "ssgd", "--epochs", "2")
    env = dict(job.env, STAR_AGENT=job.star, STAR_COORDINATOR=job.addr, STAR_HTTP="off")
    args = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", "0", str(script)]
    run = job._run(args, "torchrun.log", env)
    job.finish(ps, run)
    complete(job, 2, run)


def test_exception(job: Any) -> None:
    script = job.script(TRAIN)
    ps = job.start("--mode", "ssgd", "--epochs", "4")
    a = job.worker(script)
    b = job.worker(script, env={"DO": "raise"})
    job.finish(ps, a)
    assert b.wait() == 1
    assert "ValueError: the fifth step is too much" in b.log and "the program failed: ValueError: the fifth step is too much" in b.log and b.log.count("Traceback") == 1
    complete(job, 4, a, b)


def test_scheduler(job: Any) -> None:
    """The shards make the updates: a scheduler in the script would change nothing there, so it ends the script at the first batch, in place of being passed over."""
    script = job.script(TRAIN)
    job.start("--mode", "ssgd", "--epochs", "4", workers=1)
    b = job.worker(script, env={"DO": "schedule"})
    assert b.wait() == 2
    assert "give it to star.schedule" in b.log and "--schedule" in b.log and not indices(b)


def test_sample_that_raises(job: Any) -> None:
    script = job.script(TRAIN)
    job.start("--mode", "ssgd", "--epochs", "4", workers=1)
    b = job.worker(script, env={"DO": "bad sample"})
    assert b.wait() == 1
    assert "KeyError: 'sample 17 is damaged'" in b.log


@pytest.mark.parametrize("attach", [False, True], ids=["agent first", "python first"])
def test_early_exit(job: Any, attach: bool) -> None:
    script = job.script(TRAIN)
    ps = job.start("--mode", "ssgd", "--epochs", "4")
    a = job.worker(script, attach=attach)
    b = job.worker(script, env={"DO": "leave"}, attach=attach)
    job.finish(ps, a)
    assert b.wait() == 0
    assert "leaving the job" in b.log
    complete(job, 4, a, b)


def test_hang_shows_stack(job: Any) -> None:
    script = job.script(TRAIN)
    ps = job.start("--mode", "ssgd", "--epochs", "4")
    a = job.worker(script)
    b = job.worker(script, env={"DO": "hang"})
    b.until("hanging")
    os.kill(b.p.pid, signal.SIGQUIT)
    b.until("Current thread")
    b.until('train.py", line')
    b.kill()
    job.finish(ps, a)
    complete(job, 4, a, b)


def test_fork(job: Any) -> None:
    script = job.script(TRAIN)
    job.start("--mode", "ssgd", "--epochs", "2", workers=1)
    a = job.worker(script, env={"DO": "fork"})
    job.finish()
    assert "child: process" in a.log and "was forked from process" in a.log
    complete(job, 2, a)


def test_signal(job: Any) -> None:
    """SIGTERM to a Python that has started its agent: a checkpoint, then the end."""
    script = job.script(TRAIN)
    ps = job.start("--mode", "ssgd", "--epochs", "1000", "--grace", "3m", workers=1)
    a = job.worker(script, attach=True, starts=True, env={"PAUSE": "0.01"})
    a.until("batch")
    os.kill(a.p.pid, signal.SIGTERM)
    assert a.wait() == 143, a.log
    ps.wait()
    assert job.checkpoint().name.startswith("ckpt-")


def test_signal_twice(job: Any) -> None:
    """SIGTERM twice, a wrapper's and its group's, is one: a checkpoint, then the end."""
    script = job.script(TRAIN)
    ps = job.start("--mode", "ssgd", "--epochs", "1000", "--grace", "3m", workers=1)
    a = job.worker(script, attach=True, starts=True, env={"PAUSE": "0.01"})
    a.until("batch")
    for _ in range(3):
        os.kill(a.p.pid, signal.SIGTERM)
        time.sleep(0.02)
    assert a.wait() == 143, a.log
    ps.wait()
    assert job.checkpoint().name.startswith("ckpt-")


def test_second_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal of the same kind within a second of the first is that one; a later one ends the process."""
    from star_train import _link as link

    class Agent:
        closed, _pid, told = False, os.getpid(), 0

        def interrupt(self, number: int) -> None:
            self.told += 1

    now, agent, killed = [100.0], Agent(), []
    monkeypatch.setattr(link, "_link", agent)
    monkeypatch.setattr(link, "_signals", {})
    monkeypatch.setattr(link.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(link.signal, "signal", lambda *_: None)
    monkeypatch.setattr(link.os, "kill", lambda _, number: killed.append(number))
    for now[0], number, told, ends in [
        (100.0, signal.SIGTERM, 1, False),
        (100.003, signal.SIGTERM, 1, False),
        (100.9, signal.SIGTERM, 1, False),
        (100.95, signal.SIGINT, 2, False),
        (101.0, signal.SIGTERM, 2, True),
    ]:
        link._on_signal(number, None)
        assert agent.told == told and (killed != []) == ends, (now[0], number)


def test_joiner(job: Any) -> None:
    """A worker that joins later has the job's parameters and epoch before its first batch."""
    script = job.script(TRAIN)
    ps = job.start("--mode", "ssgd", "--epochs", "24", "--max-workers", "3")
    a, b = (job.worker(script, env={"DO": "wait"}) for _ in range(2))
    a.until("batch")
    c = job.worker(script, env={"DO": "come"})
    job.finish(ps, a, b, c)
    assert len(indices(c)) >= 100
    complete(job, 24, a, b, c)


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "x=2"])
def test_loading_processes(job: Any, mode: str) -> None:
    """With num_workers each sample still comes once, and most batches are there before they are asked for."""
    script = job.script(TRAIN)
    job.start("--mode", mode, "--epochs", "6", workers=3)
    ws = [job.worker(script, env={"LOADERS": "2"}) for _ in range(3)]
    job.finish()
    seen = collections.Counter(indices(*ws))
    assert set(seen) == set(range(320)) and set(seen.values()) == {6}
