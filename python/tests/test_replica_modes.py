"""Workers of several processes in every mode, architecture and codec, over the backend star: each sample exactly once, checkpoints with full names, deaths.

The processes are forks of this one, so that none imports PyTorch again.
"""

import atexit
import collections
import faulthandler
import importlib
import itertools
import json
import os
import pathlib
import signal
import time
import traceback
from datetime import timedelta
from typing import Any, Counter, Dict, List, Sequence

import pytest
from conftest import PATIENCE

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
    pytest.skip("fully_shard is public since PyTorch 2.6", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

importlib.import_module("torch._dynamo")  # DistributedDataParallel and fully_shard import it, for seconds

import star_train.backend  # noqa: E402
import star_train.torch as star_torch  # noqa: E402

ROWS = 64
NAMES = ["first.weight", "first.bias", "last.weight", "last.bias"]


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg,name-defined]
    def __init__(self) -> None:
        g = torch.Generator().manual_seed(1)
        self.x = torch.randn(ROWS, 6, generator=g)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> Any:
        return i, self.x[i], i % 3


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 16), torch.nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        return self.last(torch.relu(self.first(x)))


def train(kind: str, rank: int, store: pathlib.Path, out: Any, dies_at: int, pause: float, divisible: bool, joins: bool) -> None:
    worlds, pair = (4, rank // 2) if kind == "mesh" else (2, 0)
    dist.init_process_group("star", init_method="file://%s" % store, rank=rank if kind == "mesh" else rank % 2, world_size=worlds, timeout=timedelta(seconds=PATIENCE))
    group: Any = dist.group.WORLD
    torch.manual_seed(5)
    model: Any = Net()
    if kind == "mesh":  # one world; its dimension "shard" is a worker
        group = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("worker", "shard"))["shard"]
        assert dist.get_process_group_ranks(group.get_group()) == [2 * pair, 2 * pair + 1]
    if kind in ("fsdp", "mesh"):
        for m in (model.first, model.last, model):
            fully_shard(m, **({"mesh": group} if kind == "mesh" else {}))
    elif kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    opt = star_torch.attach(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), group=group)
    step, loader = 0, star_torch.loader(Rows(), batch_size=2, epochs=1000, divisible=divisible)
    for i, x, y in itertools.chain.from_iterable(loader for _ in range(1000)):
        F.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()
        step += 1
        own = [getattr(p.detach(), "_local_tensor", p.detach()) for p in model.parameters()]
        line = {"worker": star_torch.rank(), "rows": i.tolist(), "time": time.time(), "parameters": [p.double().sum().item() for p in own]}
        print(json.dumps(line), file=out, flush=True)
        if step == dies_at and rank % 2 == 1 and star_torch.rank() == 1:
            print(json.dumps({"dies": time.time()}), file=out, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05 if joins and rank < 2 and not begun(store.parent, 2, 1) else pause)
    dist.destroy_process_group()


def begun(folder: pathlib.Path, rank: int, steps: int) -> bool:
    """Whether a process has made some steps."""
    path = folder / ("rank%d.json" % rank)
    return path.exists() and path.read_text().count("\n") >= steps


def replicas(job: Any, kind: str, flags: Sequence[str] = (), dies_at: int = 0, pause: float = 0.0, divisible: bool = False, joins: bool = False) -> List[int]:
    """Trains with two workers of two processes, and returns their exit codes. flags are the settings of workers. joins: the second one begins after some steps."""
    pids = []
    for rank in range(4):
        store = job.folder / ("store%d" % (0 if kind == "mesh" else rank // 2))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
                log = os.open(job.folder / ("rank%d.log" % rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                os.dup2(log, 1)
                os.dup2(log, 2)
                for k in [k for k in os.environ if k.startswith("STAR_")]:
                    del os.environ[k]
                os.environ.update(STAR_AGENT=job.star, STAR_COORDINATOR=job.addr, STAR_HTTP="off", STAR_WATCH="false", STAR_JOIN_TIMEOUT="4m")
                for f, v in zip(flags[::2], flags[1::2]):
                    os.environ["STAR_" + f.lstrip("-").upper().replace("-", "_")] = v
                while joins and rank >= 2 and not begun(job.folder, 0, 5):
                    time.sleep(0.01)
                torch.set_num_threads(1)
                faulthandler.dump_traceback_later(PATIENCE / 2, file=2)
                with open(job.folder / ("rank%d.json" % rank), "w") as out:
                    train(kind, rank, store, out, dies_at, pause, divisible, joins)
                code = 0
            except star_train._link.StarError as e:
                traceback.print_exc()
                code = e.code
            except BaseException:
                traceback.print_exc()
            finally:
                atexit._run_exitfuncs()
                os._exit(code)
        pids.append(pid)
    codes, end = [], time.monotonic() + PATIENCE
    for pid in pids:
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes.append(os.waitstatus_to_exitcode(status))
                break
            if time.monotonic() > end:
                for p in pids[len(codes) :]:
                    os.kill(p, signal.SIGKILL)
                    os.waitpid(p, 0)
                raise AssertionError("the job did not end:\n" + logs(job))
            time.sleep(0.01)
    return codes


def logs(job: Any) -> str:
    return "\n".join("%s: %s" % (p.name, p.read_text()) for p in sorted(job.folder.glob("*.log")))


def said(job: Any, rank: int) -> List[Dict[str, Any]]:
    return [json.loads(line) for line in (job.folder / ("rank%d.json" % rank)).read_text().splitlines()]


def seen(job: Any) -> Counter[int]:
    return collections.Counter(i for rank in range(4) for line in said(job, rank) for i in line.get("rows", []))


RING = ("--arch", "allreduce")


def more(*case: Any) -> Any:
    """A case that a short run leaves out: its mode, kind and codec are in others, which it runs."""
    return pytest.param(*case, marks=pytest.mark.skipif(bool(os.environ.get("SHORT")), reason="a short run; make peers has it"))


MODES = [
    ("ddp", "asgd", ()),
    more("fsdp", "asgd", ()),
    more("ddp", "auto", ()),
    ("fsdp", "auto", RING),
    more("ddp", "x=1", ()),
    ("fsdp", "x=1", ()),
    ("ddp", "groups=0/1", ()),
    ("fsdp", "ssp=2", ()),
    ("ddp", "ssgd queue=8", ()),
    more("fsdp", "ssgd queue=8", ()),
    more("ddp", "ssgd local=4", ()),
    ("fsdp", "ssgd local=4", ()),
    ("fsdp", "ssgd local=4 outer=nesterov", ()),
    ("fsdp", "ssgd tree=0(1)", ()),
    ("ddp", "ring-minus=1", RING),
    ("fsdp", "ssgd local=4", RING),
    more("plain", "asgd", ()),
    ("mesh", "ssgd", ()),
    ("mesh", "ssgd", RING),
    more("ddp", "ssgd", ("--compress", "fp16")),
    ("fsdp", "ssgd", ("--compress", "bf16")),
    more("fsdp", "ssgd", ("--compress", "int8")),
    ("fsdp", "ssgd", (*RING, "--compress", "bf16")),
    more("ddp", "backup=1", ()),
    ("fsdp", "backup=1", ()),
    more("ddp", "kbatch=2", ()),
    ("fsdp", "kbatch-async=2", ()),
    more("ddp", "ssgd micro=2 cap=1s", ()),
    ("fsdp", "ssgd micro=2 cap=1s", ()),
    more("ddp", "ssgd", ("--compress", "topk=0.5")),
    ("fsdp", "ssgd", ("--compress", "topk=0.5")),
    more("ddp", "ssgd", (*RING, "--compress", "topk=0.5")),
    more("fsdp", "ssgd", (*RING, "--compress", "topk=0.5")),
    more("ddp", "ssgd", ("--compress", "powersgd=2")),
    more("fsdp", "ssgd", ("--compress", "powersgd=2")),
    more("ddp", "ssgd", (*RING, "--compress", "powersgd=2")),
    ("fsdp", "ssgd", (*RING, "--compress", "powersgd=2")),
    more("ddp", "ssgd", ("--compress", "int2")),
    ("fsdp", "ssgd", (*RING, "--compress", "int2")),
    ("ddp", "ssgd", ("--compress", "int8-stochastic")),
]


@pytest.mark.parametrize("kind, mode, flags", MODES, ids=lambda v: "-".join(v).replace("--", "") if isinstance(v, tuple) else str(v))
def test_every_sample_once(job: Any, kind: str, mode: str, flags: Any) -> None:
    """Three epochs; modes in which a worker can be ahead may end in the middle of its batch."""
    job.start("--mode", mode, "--epochs", "3", *(() if "allreduce" in flags else ("--shards", "2")), *flags)
    codes = replicas(job, kind, (*flags, "--out", str(job.out)) if "allreduce" in flags else flags, divisible="micro" in mode)
    assert codes == [0] * 4, (codes, logs(job))
    assert job.all[0].wait() == 0, job.all[0].log
    counts = seen(job)
    assert sorted(counts) == list(range(ROWS)), counts
    times = sorted(counts.values())
    assert times[0] >= 3 and sum(times) - 3 * ROWS <= 2 * 4, counts  # a batch of each process more
    if mode == "ssgd":
        assert times == [3] * ROWS, counts
    got = job.parameters()
    assert list(got) == NAMES or sorted(got) == sorted(NAMES), list(got)
    assert all(bool(torch.isfinite(t).all()) for t in got.values())


@pytest.mark.parametrize(
    "kind, mode, flags", [("ddp", "ssgd", ()), more("fsdp", "ssgd", ()), more("fsdp", "asgd", ()), ("fsdp", "ssgd", RING)], ids=lambda v: "-".join(v) if isinstance(v, tuple) else v
)
def test_joins(job: Any, kind: str, mode: str, flags: Any) -> None:
    """A second worker joins the running job, and has its parameters."""
    epochs = 30
    job.start("--mode", mode, "--epochs", str(epochs), "--max-workers", "2", *flags, workers=1)
    codes = replicas(job, kind, (*flags, "--out", str(job.out)) if flags else (), joins=True)
    assert codes == [0] * 4, (codes, logs(job))
    assert job.all[0].wait() == 0, job.all[0].log
    assert len(job.lines("join")) == 2, job.lines("join")
    counts = seen(job)
    assert sorted(counts) == list(range(ROWS)) and min(counts.values()) >= epochs and sum(counts.values()) - epochs * ROWS <= 2 * 4, counts
    for rank in 0, 1:
        first, joined = ([line["parameters"] for line in said(job, r) if "parameters" in line] for r in (rank, rank + 2))
        assert len(joined) > 1 and len(first) >= 5, (len(first), len(joined))
        assert mode != "ssgd" or all(p in first for p in joined), (first, joined)


def test_resume(job: Any) -> None:
    """A job of sharded workers goes on from its checkpoint: the same as one that was not interrupted."""
    whole: Dict[str, Any] = {}
    for name, part in ("whole", ["4"]), ("parts", ["2", "4"]):
        job.out = job.folder / name
        for n, epochs in enumerate(part):
            for p in job.folder.glob("store*"):
                p.unlink()
            job.start("--mode", "ssgd", "--epochs", epochs, *(("--resume", "auto") if n else ()))
            codes = replicas(job, "fsdp" if name == "whole" or n else "ddp")
            assert codes == [0] * 4, (codes, logs(job))
            assert job.all[-1].wait() == 0, job.all[-1].log
        if name == "whole":
            whole = job.parameters()
    got = job.parameters()
    for k, v in whole.items():
        assert torch.allclose(got[k], v, rtol=1e-5, atol=1e-6), k


@pytest.mark.parametrize("kind, flags", [("ddp", ()), more("fsdp", ()), ("fsdp", RING)], ids=lambda v: "-".join(v) if isinstance(v, tuple) else str(v))
def test_a_dead_process_takes_its_replica_out(job: Any, kind: str, flags: Any) -> None:
    """The other worker goes on with all samples, and the leave is in the run log soon after the death."""
    job.start("--mode", "ssgd", "--epochs", "3", *flags)
    codes = replicas(job, kind, (*flags, "--out", str(job.out)) if flags else (), dies_at=4, pause=0.02)
    assert job.all[0].wait() == 0, job.all[0].log
    assert sorted(codes, key=abs) == [0, 0, -9, 69], (codes, logs(job))
    (leave,) = job.lines("leave")
    assert "process 1 of the 2 of this worker" in leave["why"], leave
    died = next(line["dies"] for rank in range(4) for line in said(job, rank) if "dies" in line)
    after = min(line["time"] for rank in range(4) for line in said(job, rank) if line.get("worker") == 0 and line["time"] > died + 0.02)
    print("the other worker made a step %.2f s after the death" % (after - died))
    assert after - died < 60
    counts = seen(job)
    assert sorted(counts) == list(range(ROWS)) and min(counts.values()) >= 3, counts
