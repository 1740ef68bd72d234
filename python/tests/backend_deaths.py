"""A rank of the backend star dies at each collective: test_backend_deaths.py checks what the others get.

usage: backend_deaths.py [NAME...]    prints a line for each case: the collective, when rank 1 dies, and for how many seconds the others did not know
"""

import os
import signal
import sys
import tempfile
import time
from typing import Any, Dict, List

import torch
import torch.distributed as dist
from backend_collectives import CALLS, ROOTED, Call
from backend_ranks import run

import star_train.backend  # noqa: F401
from star_train import _shm

VICTIM, SECONDS = 1, 120  # the timeout of the group: much longer than an error takes
LARGE = 1 << 20  # elements: a collective has several steps
WHEN = ("before", "in", "after")


def cases(names: Any = ()) -> List[Any]:
    """(name, when, root) of each case. Calls with a root are made with the rank that dies as the root, too."""
    return [(name, when, root) for name in names or CALLS for when in WHEN for root in ((0, VICTIM) if name in ROOTED else (0,))]


def die(folder: str) -> None:
    with open(os.path.join(folder, "died"), "w") as f:
        f.write(repr(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def dies_within(folder: str, steps: int) -> None:
    """Has this process die in a step of its next collective, when it has signalled that step to one other rank only."""
    own = _shm.Segment.signal
    left = [steps]

    def signal_one(self: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            self._post = self._post[:1]
            own(self)
            die(folder)
        own(self)

    _shm.Segment.signal = signal_one  # type: ignore[method-assign]


def rank(me: int, n: int, name: str, when: str, root: int, folder: str) -> str:
    """What a rank that goes on says: the error, and for how many seconds after the death its call waited for it."""
    Call()("all_reduce")
    small = name.endswith("object") or name.endswith("list") or name == "all_reduce_sparse"
    c = Call(size=5 if small else LARGE, root=root)
    if me == VICTIM:
        if when == "in" and name in ("send_recv", "recv_any_source", "batch_isend_irecv"):
            dist.irecv(torch.empty(LARGE), 0)
            die(folder)
        if when == "in" and name == "monitored_barrier":  # rank 0 knows that it is here, and waits for rank 2
            group: Any = dist.group.WORLD
            group = group._get_backend(torch.device("cpu"))
            group._monitored += 1
            group._store.set("%sbarrier/%d/%d" % (group._prefix, group._monitored, me), "here")
            die(folder)
        if when == "in":
            dies_within(folder, 1 if small or name == "barrier" else 3)
        if when != "before":
            c(name)
        die(folder)
    if when == "in" and name == "monitored_barrier" and me == 2:
        while not os.path.exists(os.path.join(folder, "died")):
            time.sleep(0.001)
    error = ""
    try:
        if when == "after":
            c(name)
            while not os.path.exists(os.path.join(folder, "died")):
                time.sleep(0.001)
        c, began = Call(size=c.size, root=root), time.monotonic()
        c(name)
        began = time.monotonic()
        dist.barrier()  # the call may have ended well, as when a rank dies that only had to send
    except RuntimeError as e:
        error = str(e)
    known = time.monotonic()
    with open(os.path.join(folder, "died")) as f:
        seconds = known - max(began, float(f.read()))
    if not error:
        return "no error"
    rest = dist.shrink_group([VICTIM])
    Call(rest)("all_reduce")
    Call(rest, size=c.size)(name)
    return "%.3f %s" % (seconds, error)


def case(name: str, when: str, root: int, n: int = 3) -> List[str]:
    with tempfile.TemporaryDirectory() as folder:
        return run(n, rank, name, when, root, folder, seconds=SECONDS)


def main() -> None:
    os.environ.setdefault("STAR_WATCH", "false")
    worst: Dict[str, float] = {}
    for name, when, root in cases(sys.argv[1:]):
        said = [s for r, s in enumerate(case(name, when, root)) if r != VICTIM]
        seconds = [float(s.split()[0]) if s[0].isdigit() and "rank %d" % VICTIM in s else float("inf") for s in said]
        print("%-24s %-7s root %d  %s s%s" % (name, when, root, " ".join("%.3f" % s for s in seconds), "" if max(seconds) < 3 else "  %s" % said), flush=True)
        worst[when] = max(worst.get(when, 0), *seconds)
    print("worst: " + ", ".join("%s %.3f s" % w for w in worst.items()))


if __name__ == "__main__":
    main()
