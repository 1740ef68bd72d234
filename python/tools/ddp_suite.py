#!/usr/bin/env python3
"""PyTorch's own tests of DistributedDataParallel (torch.testing._internal.distributed), over Gloo and with star.ddp_hook's exchange in each model that they wrap.

usage: ddp_suite.py STAR [NAME...]    STAR is the program; NAME a part of the names of tests

Two processes on a processor take the tests with ddp or DistributedDataParallel in their names. Those that want GPUs are given the processor in their place. Tests that do not
pass over Gloo that way (they look at streams, NCCL or mixed precision) say nothing of us and are left out. Exits with 1 if a test passes over Gloo, fails with
the hook, and has no reason in KNOWN. It needs expecttest, as those tests do.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any, List, Optional, cast

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch
import torch.distributed as dist
import torch_suite
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed

WORLD = 2
torch_suite.environment(WORLD)  # before distributed_test is imported

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


def wrap(star: Optional[str]) -> Any:
    """Models go to processors; star, if not None, is the program that exchanges their gradients. Returns the context of a test."""
    plain = DistributedDataParallel.__init__
    jobs: List[Any] = []

    def init(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any) -> None:
        plain(self, module, None, None, *args, **kwargs)
        if star is not None:
            exchange(self, star, jobs)

    init.__wrapped__ = plain  # type: ignore[attr-defined]
    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
    return OnProcessor()  # type: ignore[no-untyped-call]


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
    end = time.monotonic() + torch_suite.PATIENCE
    while time.monotonic() < end:
        for line in open(out + "/log", errors="replace"):
            if '"msg":"listening"' in line:
                return str(json.loads(line)["addr"])
        time.sleep(0.02)
    raise AssertionError("star ps does not listen")


def main() -> int:
    star, wanted = os.path.abspath(sys.argv[1]), sys.argv[2:]
    on_processor()
    tests, names = torch_suite.tests(WORLD, wanted)
    names = [n for n in names if "ddp" in n.lower() or "distributeddataparallel" in n.lower()]

    def run(name: str, star: Optional[str]) -> str:
        return torch_suite.run(tests, name, WORLD, lambda: wrap(star))

    counts = dict.fromkeys(("skipped", "fails over Gloo", "passed", "known", "failed"), 0)
    for name in names:
        plain = run(name, None)
        if plain != "passed":
            kind = "skipped" if plain == "skipped" else "fails over Gloo"
            print("%-16s %s%s" % (kind, name, "" if plain == "skipped" else ": " + plain[:160]), flush=True)
        else:
            hooked = run(name, star)
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
