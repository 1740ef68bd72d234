"""star watch in jobs that hang: it names the call that ranks wait in, the rank that is missing, and its line."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from typing import List

import pytest
from conftest import PATIENCE
from test_ddp import ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

# All ranks are forked from one process that has imported torch.
SCRIPT = """
import os, signal, sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
kind = sys.argv[1]
for rank in range(1, 3):
    if not os.fork():
        os.environ["RANK"] = str(rank)
        break
dist.init_process_group("gloo")
rank = dist.get_rank()
class Data(torch.utils.data.Dataset):
    def __len__(self): return 800
    def __getitem__(self, i):
        if kind == "loader" and rank == 1 and i == 160: time.sleep(1000)  # loader
        return torch.randn(8), i % 4
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
opt = torch.optim.SGD(net.parameters(), 0.1)
for step, (x, y) in enumerate(torch.utils.data.DataLoader(Data(), 8, num_workers=1 if kind == "loader" else 0)):
    opt.zero_grad()
    torch.nn.functional.cross_entropy(net(x), y).backward()
    if step == 20:
        if kind == "branch" and rank == 1: dist.barrier()  # branch
        if kind == "stop" and rank == 1: os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "continued" and rank == 1: time.sleep(6)  # continued
        if kind == "shape": dist.all_reduce(torch.ones(2000 if rank == 1 else 1000))
        if kind == "checkpoint": time.sleep(3)
    opt.step()
    if step == 40: break
if rank == 0: os.wait(), os.wait()
"""


def line(kind: str) -> int:
    return next(i for i, text in enumerate(SCRIPT.splitlines(), 1) if text.endswith("# " + kind))


def watch(star: str, tmp: pathlib.Path, kind: str, until: str) -> str:
    """What star watch says of a job, until it says a text or the job ends."""
    script, said = tmp / "train.py", tmp / "said"
    script.write_text(SCRIPT)
    env = {**os.environ, **ranks(3)[0], "STAR_WATCH_HANG": "1.5", "OMP_NUM_THREADS": "1"}
    with open(said, "wb") as f:
        p = subprocess.Popen([star, "watch", "--out", str(tmp / "out"), "--", sys.executable, str(script), kind], env=env, stdout=f, stderr=f, start_new_session=True)
    try:
        end = time.monotonic() + PATIENCE
        while not re.search(until, said.read_text()) and p.poll() is None:
            assert time.monotonic() < end, "it does not say %r: %s" % (until, said.read_text())
            time.sleep(0.05)
        return said.read_text()
    finally:
        try:
            os.killpg(p.pid, signal.SIGKILL)  # the ranks, too
        except ProcessLookupError:
            pass
        p.wait(10)


def hangs(tmp: pathlib.Path) -> List[dict]:
    return [x for x in map(json.loads, (tmp / "out" / "run.jsonl").read_text().splitlines()) if x["type"] == "hang"]


def test_continued(star: str, tmp_path: pathlib.Path) -> None:
    """One episode, which ends when the job goes on."""
    said = watch(star, tmp_path, "continued", "star explain")
    assert re.search(r"hang: 2 of 3 ranks wait in .*#\d+.*; rank 1 is in train.py:%d in <module>" % line("continued"), said), said
    assert said.count("hang:") == 1 and "the job continued after" in said and "with 1 hang of" in said, said
    begun, over = hangs(tmp_path)
    assert begun["event"] == "begun" and over["event"] == "over" and begun["waiting"] == [0, 2] and begun["missing"] == [1], begun
    assert begun["ranks"][0]["why"] == "own code" and begun["ranks"][0]["stack"], begun
    story = subprocess.run([star, "explain", str(tmp_path / "out")], capture_output=True, text=True, check=True).stdout
    assert "rank 1 is in train.py:%d" % line("continued") in story, story


def test_branch(star: str, tmp_path: pathlib.Path) -> None:
    """A rank that takes another branch waits, too: it is the one of another call."""
    said = watch(star, tmp_path, "branch", "hang: .*\n")
    assert re.search(r"hang: 2 of 3 ranks wait in .*#\d+.*; rank 1 waits in barrier #\d+, at train.py:%d in <module>" % line("branch"), said), said


SLOW = pytest.mark.skipif(not os.environ.get("STAR_TEST_HANGS"), reason="STAR_TEST_HANGS=1 runs it, as does bench/hangs.py for more of them")


@SLOW
def test_stop(star: str, tmp_path: pathlib.Path) -> None:
    said = watch(star, tmp_path, "stop", "hang: .*\n")
    assert re.search(r"rank 1 is stopped by a signal \(process \d+", said), said


@SLOW
def test_loader(star: str, tmp_path: pathlib.Path) -> None:
    """The worker of the DataLoader says where it is."""
    said = watch(star, tmp_path, "loader", "hang: .*\n")
    assert re.search(r"rank 1 waits for a worker of its DataLoader, process \d+, which is in train.py:%d in __getitem__" % line("loader"), said), said


@SLOW
def test_shape(star: str, tmp_path: pathlib.Path) -> None:
    """Gloo ends a job of different shapes at once: the calls are still named."""
    said = watch(star, tmp_path, "shape", "the last calls .*\n")
    assert re.search(r"the last calls of the ranks differ: ranks 0,2 all_reduce #\d+ float32\[1000\], rank 1 all_reduce #\d+ float32\[2000\]", said), said


@SLOW
def test_checkpoint(star: str, tmp_path: pathlib.Path) -> None:
    """All ranks are outside of calls: no hang."""
    said = watch(star, tmp_path, "checkpoint", "star explain")
    assert "hang" not in said and "STAR would save nothing" in said, said
