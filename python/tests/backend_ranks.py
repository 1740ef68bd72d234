"""Runs a function in several processes, each a rank of the backend star. The processes are forks of this one, so that none imports PyTorch again."""

import faulthandler
import os
import signal
import tempfile
import time
import traceback
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional

import torch
import torch.distributed as dist
from conftest import PATIENCE


def run(
    n: int, function: Callable[..., Any], *args: Any, backend: str = "star", env: Optional[Callable[[int], Dict[str, str]]] = None, seconds: float = 60, begin: bool = True
) -> List[str]:
    """Calls function(rank, n, *args) in n ranks. Returns for each what it printed by return value, "died" or an error's text.

    env is called in the process of a rank, and may also move it to another host."""
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for r in range(n):
            pid = os.fork()
            if pid == 0:
                _rank(folder, r, n, function, args, backend, env, seconds, begin)
            pids.append(pid)
        end = time.monotonic() + PATIENCE
        out: List[str] = []
        try:
            for r, pid in enumerate(pids):
                while os.waitpid(pid, os.WNOHANG)[0] == 0:
                    if time.monotonic() > end:
                        os.kill(pid, signal.SIGABRT)  # its stack goes to the log of the test
                        raise AssertionError("rank %d of %s did not end" % (r, function.__name__))
                    time.sleep(0.005)
                pids[r] = 0
                path = os.path.join(folder, "out%d" % r)
                with open(path if os.path.exists(path) else os.devnull) as f:
                    out.append(f.read() or "died")
        finally:
            for pid in pids:
                if pid:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        return out


def _rank(folder: str, r: int, n: int, function: Callable[..., Any], args: Any, backend: str, env: Any, seconds: float, begin: bool) -> None:
    faulthandler.enable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        torch.set_num_threads(1)
        os.environ.update(env(r) if env else {})
        os.environ["RANK"], os.environ["WORLD_SIZE"] = str(r), str(n)
        if begin:
            dist.init_process_group(backend, init_method="file://%s/store" % folder, rank=r, world_size=n, timeout=timedelta(seconds=seconds))
        else:
            args = (folder, *args)
        said = str(function(r, n, *args))
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException as e:
        said = "".join(traceback.format_exception_only(type(e), e)).strip()
        if os.environ.get("STAR_TEST_TRACE"):
            said = traceback.format_exc()
    with open(os.path.join(folder, "part%d" % r), "w") as f:
        f.write(said)
    os.rename(os.path.join(folder, "part%d" % r), os.path.join(folder, "out%d" % r))
    os._exit(0)
