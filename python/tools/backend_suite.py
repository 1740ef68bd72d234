#!/usr/bin/env python3
"""PyTorch's own tests of torch.distributed (torch.testing._internal.distributed.distributed_test), over Gloo and over backend="star".

usage: backend_suite.py [--world N[,N]] [--star-only] [NAME...]    NAME is a part of the names of tests

Each test runs as PyTorch wrote it for Gloo, then with every Gloo group replaced by one of "star", so tests that ask for Gloo by name run, too.
Tests that do not pass over Gloo on processors (they need GPUs or another world size) are left out; --star-only trusts the list of those that do.
Exits with 1 if a test passes over Gloo, fails over star and has no reason in KNOWN, or if a test with a reason passes. It needs expecttest, as those tests do.
"""

import contextlib
import importlib
import os
import sys
from typing import Any, Dict

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch
import torch.distributed as dist
import torch_suite

# Why a test that passes over Gloo does not over star. The list only shrinks: a test here that passes is an error.
KNOWN: Dict[str, str] = {
    "test_ddp_logging_data_cpu": "expects the name of one of PyTorch's own backends in DDP's log, which has custom for all others",
    "test_get_backend": "compares the backend's name with gloo",
}

# Tests that do not pass over Gloo on processors, with PyTorch 2.15. --star-only leaves them out.
NOT_OVER_GLOO = {
    "test_SyncBatchNorm_process_group",
    "test_all_to_all_cuda",
    "test_all_to_all_cuda_complex",
    "test_all_to_all_full_group_cuda",
    "test_barrier_timeout_full_group",
    "test_barrier_timeout_global",
    "test_batch_isend_irecv_mixed_backend_err",
    "test_batch_isend_irecv_op_err",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_new_subgroups_with_group_param",
}


def gloo() -> Any:
    return contextlib.nullcontext()


def star() -> Any:
    """Has all groups that would be of Gloo be of star."""
    import torch.distributed.distributed_c10d as c10d

    def renamed(f: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            args = tuple("star" if isinstance(a, str) and a.lower() == "gloo" else a for a in args)
            kwargs = {k: "star" if k == "backend" and (v is None or str(v).lower() == "gloo") else v for k, v in kwargs.items()}
            return f(*args, **kwargs)

        return call

    for name in ("init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration"):
        f = renamed(getattr(c10d, name))
        setattr(c10d, name, f)
        setattr(dist, name, f)
    return contextlib.nullcontext()


def main() -> int:
    args = sys.argv[1:]
    worlds = [2, 3]
    only = False
    while args and args[0].startswith("--"):
        option = args.pop(0)
        if option == "--world" and args:
            worlds = [int(n) for n in args.pop(0).split(",")]
        elif option == "--star-only":
            only = True
        else:
            print("unknown option %s\n%s" % (option, (__doc__ or "").split("\n\n")[1]), file=sys.stderr)
            return 2
    if len(worlds) > 1:  # distributed_test reads the world size when it is imported
        codes = [
            os.waitstatus_to_exitcode(os.spawnv(os.P_WAIT, sys.executable, [sys.executable, __file__, "--world", str(n)] + ["--star-only"] * only + args) << 8) for n in worlds
        ]
        return max(codes)
    world = worlds[0]
    torch_suite.environment(world)
    test, names = torch_suite.tests(world, args)
    importlib.import_module("star_train.backend")  # the wheel does this when PyTorch is imported
    if only:
        names = [n for n in names if n not in NOT_OVER_GLOO]
    counts = dict.fromkeys(("skipped", "fails over Gloo", "passed", "known", "failed", "stale"), 0)
    without = set(torch_suite.skipped(test, names)) - NOT_OVER_GLOO
    for name in names:
        if name in without:
            counts["skipped"] += 1
            print("skipped          " + name)
            continue
        plain = torch_suite.PASSED if only else torch_suite.run(test, name, world, gloo)
        said = ""
        if plain != torch_suite.PASSED:
            kind = "skipped" if plain == torch_suite.SKIPPED else "fails over Gloo"
            said = "" if plain == torch_suite.SKIPPED else plain
        else:
            ours = torch_suite.run(test, name, world, star)
            if ours not in (torch_suite.PASSED, torch_suite.SKIPPED) and name not in KNOWN:  # a test of timeouts can fail because the machine is busy
                print("second try of     %s: %s" % (name, ours[:400]), flush=True)
                ours = torch_suite.run(test, name, world, star)
            if ours == torch_suite.SKIPPED and only:
                kind = "skipped"
            elif ours == torch_suite.PASSED:
                kind = "stale" if name in KNOWN else "passed"
                said = "it passes: remove it from KNOWN" if name in KNOWN else ""
            else:
                kind, said = ("known", KNOWN[name]) if name in KNOWN else ("failed", ours)
        counts[kind] += 1
        print("%-16s %s%s" % (kind, name, ": " + said[:400] if said else ""), flush=True)
    over = counts["passed"] + counts["known"] + counts["failed"] + counts["stale"]
    print(
        "PyTorch %s, %d processes: %d tests, %d pass over Gloo on processors; over star %d of these, %d do not for a known reason, %d fail"
        % (torch.__version__, world, len(names), over, counts["passed"] + counts["stale"], counts["known"], counts["failed"])
    )
    return 1 if counts["failed"] or counts["stale"] else 0


if __name__ == "__main__":
    sys.exit(main())
