"""What the runs of PyTorch's own tests share: each test in a few processes that are forked, so that PyTorch is imported once."""

import datetime
import gc
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import unittest
from typing import Any, Callable, Dict, List, Sequence, cast

import torch
import torch.distributed as dist

PATIENCE = float(os.environ.get("SUITE_PATIENCE", "180"))  # for one test, in seconds

PASSED, SKIPPED = "passed", "skipped"


def environment(world: int) -> None:
    """Sets what distributed_test reads when it is imported. Only then may torch.testing._internal.distributed be imported."""
    os.environ.update(WORLD_SIZE=str(world), BACKEND="gloo", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    os.environ["TEMP_DIR"] = tempfile.mkdtemp(prefix="torch-suite-")
    torch.set_num_threads(1)


def tests(world: int, wanted: Sequence[str]) -> "tuple[Any, List[str]]":
    """The class of PyTorch's tests, and the names that have one of the wanted parts, or all."""
    from torch.testing._internal import common_distributed
    from torch.testing._internal.common_utils import TestCase
    from torch.testing._internal.distributed import distributed_test as theirs

    common_distributed.initialize_temp_directories()

    class Tests(TestCase, theirs.DistributedTest._DistTestBase):
        world_size = world

        @property
        def init_method(self) -> str:
            return "file://" + str(self.file_name)

    names = [n for n in dir(Tests) if n.startswith("test_") and any(w in n for w in wanted or [""])]
    return Tests, names


def _process(test: Any, name: str, rank: int, world: int, folder: str, begin: Callable[[], Any]) -> int:
    """The exit code of a process: 0 passed, 77 skipped, 1 failed."""
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test as theirs

    around = begin()
    limit = getattr(theirs, "CUSTOM_PG_TIMEOUT", {}).get(name, PATIENCE)
    dist.init_process_group("gloo", init_method="file://%s/store" % folder, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=limit))
    case = test(name)
    case.rank = rank
    case.file_name = folder + "/file"
    cast(Any, theirs.Barrier).sync(world)  # a test that is skipped ends at once, while the others still connect
    try:
        with around:
            getattr(case, name)()
    except unittest.SkipTest:
        return 77
    except SystemExit as e:
        return 77 if e.code in [s.exit_code for s in common_distributed.TEST_SKIPS.values()] else int(e.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def skipped(test: Any, names: Sequence[str]) -> List[str]:
    """The tests that end for want of GPUs or of processes before they do anything. One process calls all of them, without a process group."""
    from torch.testing._internal import common_distributed

    codes = [s.exit_code for s in common_distributed.TEST_SKIPS.values()]
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        for name in names:
            signal.alarm(5)  # ends this process, so the rest is not known to be skipped
            try:
                getattr(test(name), name)()
            except SystemExit as e:
                if e.code in codes:
                    os.write(w, (name + "\n").encode())
            except BaseException:  # it has begun
                pass
        os._exit(0)
    os.close(w)
    with open(r) as f:
        found = f.read().split()
    os.waitpid(pid, 0)
    return found


def run(test: Any, name: str, world: int, begin: Callable[[], Any]) -> str:
    """Runs a test in as many processes as the world has; each calls begin first, for a context in which the test runs.
    Returns PASSED, SKIPPED, or why it failed."""
    folder = tempfile.mkdtemp(dir=os.environ["TEMP_DIR"])
    sys.modules["torch.testing._internal.distributed.distributed_test"].Barrier.init()
    pids: List[int] = []
    sys.stdout.flush()
    gc.freeze()  # the processes do not copy what is never freed
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            log = os.open("%s/rank%d.log" % (folder, rank), os.O_CREAT | os.O_WRONLY)
            os.dup2(log, 1)
            os.dup2(log, 2)
            code = 1
            try:
                code = _process(test, name, rank, world, folder, begin)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    codes: Dict[int, int] = {}
    end = time.monotonic() + PATIENCE
    failed = False
    while len(codes) < world and time.monotonic() < end:
        for pid in pids:
            done, status = os.waitpid(pid, os.WNOHANG) if pid not in codes else (0, 0)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        if not failed and any(c not in (0, 77) for c in codes.values()):
            failed, end = True, min(end, time.monotonic() + 2)  # the other ranks' logs say more
        time.sleep(0.01)
    for pid in pids:
        try:
            os.killpg(pid, signal.SIGKILL)  # with all that it has started
        except ProcessLookupError:
            pass
        if pid not in codes:
            os.waitpid(pid, 0)
            codes[pid] = -9
    if all(c == 0 for c in codes.values()):
        return PASSED
    if all(c in (0, 77) for c in codes.values()):
        return SKIPPED
    logs = [open("%s/rank%d.log" % (folder, r), errors="replace").read() for r in range(world)]
    last = [m[-1] for m in (re.findall(r"^(?:[\w.]*Error|[\w.]*Exception)\b.*", log, re.M) for log in logs) if m]
    return ("" if failed else "hangs: ") + (" | ".join(dict.fromkeys(last)) or "ended with %s" % list(codes.values()))
