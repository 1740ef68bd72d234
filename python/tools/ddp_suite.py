#!/usr/bin/env python3
"""PyTorch's own tests of DistributedDataParallel (torch.testing._internal.distributed), over Gloo and with star.ddp_hook's exchange in each model that they wrap.

usage: ddp_suite.py STAR [NAME...]    STAR is the program; NAME a part of the names of tests

Two processes on a processor take the tests with ddp or DistributedDataParallel in their names. Those that want GPUs are given the processor in their place. Tests that do not
pass over Gloo that way (they look at streams, NCCL or mixed precision) say nothing of us and are left out. Exits with 1 if a test passes over Gloo, fails with
the hook, and has no reason in KNOWN. It needs expecttest, as those tests do.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from typing import Any, Dict, List, Optional, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed

WORLD = 2
PATIENCE = float(os.environ.get("DDP_SUITE_PATIENCE", "180"))  # for one test, in seconds

os.environ.update(WORLD_SIZE=str(WORLD), BACKEND="gloo", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="ddp-suite-"))

torch.set_num_threads(1)

# Why a test that passes over Gloo does not with the hook.
_OWN = "registers a hook of its own, and a model has one"
KNOWN = {
    "test_ddp_comm_hook_logging": "looks for the name of DDP's own hook",
    "test_ddp_hook_parity_allreduce": _OWN,
    "test_ddp_hook_parity_allreduce_process_group": _OWN,
    "test_ddp_hook_parity_powerSGD": _OWN,
    "test_ddp_hook_parity_post_localSGD": _OWN,
    "test_ddp_hook_pickling_powerSGD": _OWN,
    "test_ddp_uneven_inputs": _OWN,
    "test_ddp_logging_data_cpu": "trains float64, and the job exchanges float32",
    "test_ddp_profiling_autograd_profiler": "counts Gloo's all-reduces",
    "test_ddp_profiling_torch_profiler": "counts Gloo's all-reduces",
}


# A processor in the place of GPUs.


def _device(d: Any) -> Any:
    """A device as a test names it."""
    return "cpu" if isinstance(d, int) and not isinstance(d, bool) or isinstance(d, (str, torch.device)) and str(d).startswith("cuda") else d


class OnProcessor(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, tensor = dict(kwargs or {}), cast(Any, torch.Tensor)
        if func is tensor.cuda:
            return args[0]
        if kwargs.get("device") is not None:
            kwargs["device"] = _device(kwargs["device"])
        if func is tensor.to and len(args) > 1:
            args = (args[0], _device(args[1]), *args[2:])
        return func(*args, **kwargs)


def _passes(*args: Any, **kwargs: Any) -> Any:
    """The place of a decorator that skips tests where there are no GPUs."""
    return args[0] if args and callable(args[0]) else lambda f: f


def on_processor() -> None:
    few: Any = common_distributed.skip_if_lt_x_gpu
    common_distributed.skip_if_lt_x_gpu = lambda n, *a, **k: _passes if n <= WORLD else few(n, *a, **k)
    common_distributed.skip_if_no_gpu = _passes
    module: Any = torch.nn.Module
    module.cuda = lambda self, *a: self
    to = module.to
    module.to = lambda self, *a, **k: to(self, *[_device(x) for x in a], **{n: _device(x) if n == "device" else x for n, x in k.items()})
    cuda: Any = torch.cuda
    for name in ("set_device", "synchronize", "manual_seed", "manual_seed_all"):
        setattr(cuda, name, lambda *a, **k: None)
    cuda.current_device = lambda: 0
    cuda.device_count = lambda: WORLD


# The hook, in each model that a test wraps.


def wrap(star: Optional[str]) -> None:
    """Models go to processors; star, if not None, is the program that exchanges their gradients."""
    plain = DistributedDataParallel.__init__
    jobs: List[Any] = []

    def init(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any) -> None:
        plain(self, module, None, None, *args, **kwargs)
        if star is not None:
            exchange(self, star, jobs)

    init.__wrapped__ = plain  # type: ignore[attr-defined]
    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


def exchange(model: Any, star: str, jobs: List[Any]) -> None:
    from star_train import _ddp
    from star_train._data import Loader

    said: List[Any] = [None]
    group = model.process_group
    if dist.get_rank(group) == 0:
        said = [start(star, dist.get_world_size(group), jobs)]
    broadcast: Any = dist.broadcast_object_list
    broadcast(said, src=dist.get_global_rank(group, 0) if hasattr(dist, "get_global_rank") else 0, group=group)
    os.environ.update(STAR_COORDINATOR=said[0], STAR_AGENT=star, STAR_HTTP="off", STAR_ARCH="allreduce", STAR_OUT=tempfile.mkdtemp(dir=os.environ["TEMP_DIR"]))
    parameters = [p for p in model.parameters() if p.requires_grad]
    _ddp.join(model, [torch.optim.SGD(parameters, 0.1)], Loader(torch.utils.data.DataLoader(cast(Any, range(1000)), 10), 10, 1, 0, 1000, {}))


def start(star: str, workers: int, jobs: List[Any]) -> str:
    """A job; its address."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("STAR_")}
    out = tempfile.mkdtemp(dir=os.environ["TEMP_DIR"])
    args = [star, "ps", "--listen", "127.0.0.1:0", "--http", "off", "--workers", str(workers), "--arch", "allreduce", "--join-timeout", "4m", "--out", out + "/out"]
    with open(out + "/log", "wb") as log:
        jobs.append(subprocess.Popen(args, stdout=log, stderr=subprocess.STDOUT, env=env))
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for line in open(out + "/log", errors="replace"):
            if '"msg":"listening"' in line:
                return str(json.loads(line)["addr"])
        time.sleep(0.02)
    raise AssertionError("star ps does not listen")


# A test in two processes.


def process(test: Any, name: str, rank: int, folder: str, star: Optional[str]) -> int:
    """What a process ends with: 0 passed, 77 skipped, 1 failed."""
    wrap(star)
    dist.init_process_group("gloo", init_method="file://%s/store" % folder, rank=rank, world_size=WORLD)
    case = test(name)
    case.rank = rank
    case.file_name = folder + "/file"
    try:
        with OnProcessor():  # type: ignore[no-untyped-call]
            getattr(case, name)()
    except unittest.SkipTest:
        return 77
    except SystemExit as e:
        return 77 if e.code in [s.exit_code for s in common_distributed.TEST_SKIPS.values()] else int(e.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run(test: Any, name: str, star: Optional[str]) -> str:
    """passed, skipped, or why it failed."""
    folder = tempfile.mkdtemp(dir=os.environ["TEMP_DIR"])
    sys.modules["torch.testing._internal.distributed.distributed_test"].Barrier.init()
    pids: List[int] = []
    for rank in range(WORLD):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            log = os.open("%s/rank%d.log" % (folder, rank), os.O_CREAT | os.O_WRONLY)
            os.dup2(log, 1)
            os.dup2(log, 2)
            code = 1
            try:
                code = process(test, name, rank, folder, star)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    codes: Dict[int, int] = {}
    end = time.monotonic() + PATIENCE
    while len(codes) < WORLD and time.monotonic() < end and not any(c not in (0, 77) for c in codes.values()):
        for pid in pids:
            done, status = os.waitpid(pid, os.WNOHANG) if pid not in codes else (0, 0)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    hangs = not any(c not in (0, 77) for c in codes.values())
    for pid in pids:
        try:
            os.killpg(pid, signal.SIGKILL)  # also its star ps
        except ProcessLookupError:
            pass
        if pid not in codes:
            os.waitpid(pid, 0)
            codes[pid] = -9
    if all(c == 0 for c in codes.values()):
        return "passed"
    if all(c in (0, 77) for c in codes.values()):
        return "skipped"
    logs = [open("%s/rank%d.log" % (folder, r), errors="replace").read() for r in range(WORLD)]
    last = [m[-1] for m in (re.findall(r"^(?:[\w.]*Error|[\w.]*Exception)\b.*", log, re.M) for log in logs) if m]
    return "hangs" if hangs else " | ".join(dict.fromkeys(last)) or "ended with %s" % list(codes.values())


def main() -> int:
    star, wanted = os.path.abspath(sys.argv[1]), sys.argv[2:]
    on_processor()
    from torch.testing._internal.common_utils import TestCase
    from torch.testing._internal.distributed import distributed_test as theirs

    common_distributed.initialize_temp_directories()

    class Tests(TestCase, theirs.DistributedTest._DistTestBase):
        world_size = WORLD

        @property
        def init_method(self) -> str:
            return "file://" + str(self.file_name)

    names = [n for n in dir(Tests) if n.startswith("test_") and ("ddp" in n.lower() or "distributeddataparallel" in n.lower()) and any(w in n for w in wanted or [""])]
    counts = dict.fromkeys(("skipped", "fails over Gloo", "passed", "known", "failed"), 0)
    for name in names:
        plain = run(Tests, name, None)
        if plain != "passed":
            kind = "skipped" if plain == "skipped" else "fails over Gloo"
            print("%-16s %s%s" % (kind, name, "" if plain == "skipped" else ": " + plain[:160]), flush=True)
        else:
            hooked = run(Tests, name, star)
            kind = hooked if hooked == "passed" else "known" if name in KNOWN else "failed"
            print("%-16s %s%s" % (kind, name, "" if hooked == "passed" else ": " + KNOWN.get(name, hooked[:400])), flush=True)
        counts[kind] += 1
    over = counts["passed"] + counts["known"] + counts["failed"]
    print(
        "PyTorch %s: %d tests, %d pass over Gloo on a processor; with the hook %d of these, %d do not for a known reason, %d fail"
        % (torch.__version__, len(names), over, counts["passed"], counts["known"], counts["failed"])
    )
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
