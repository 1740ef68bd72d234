"""A rank of the backend star dies at each collective: test_backend_deaths.py checks what the others get.

usage: backend_deaths.py [--hosts] [NAME...]    prints a line for each case: the collective, which rank dies when, and for how many seconds the others did not know

With --hosts the ranks are on two hosts, which are network namespaces.
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
from backend_hosts import Hosts
from backend_ranks import run

import star_train.backend  # noqa: F401
from star_train import _agent, _shm

VICTIM, SECONDS = 1, 120  # the timeout of the group: much longer than an error takes
LARGE = 1 << 20  # elements: a collective has several steps
WHEN = ("before", "in", "after")

# Collectives between hosts, and on which host each rank is, with the one that dies: alone on its host, the leader of a host (its lowest rank), or another one.
BETWEEN = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier")
PLACES = (("ab", 0), ("ab", 1), ("aab", 0), ("aab", 1), ("aab", 2), ("aabb", 0), ("aabb", 1), ("aabb", 2), ("aabb", 3))


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


def dies_between(folder: str) -> None:
    """Has this process, the leader of a host, die when the agent has begun the second exchange of its next collective, or the only one of a barrier."""
    own = _agent._Connection._exactly
    left = [2]

    def exactly(self: Any, n: int) -> bytes:
        left[0] -= 1
        if left[0] == 0:
            die(folder)
        return own(self, n)

    _agent._Connection._exactly = exactly  # type: ignore[method-assign]


def rank(me: int, n: int, name: str, when: str, root: int, folder: str, victim: int = VICTIM) -> str:
    """What a rank that goes on says: the error, and for how many seconds after the death its call waited for it."""
    Call()("all_reduce")
    small = name.endswith("object") or name.endswith("list") or name == "all_reduce_sparse"
    c = Call(size=5 if small else LARGE, root=root)
    if me == victim:
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
        if when == "between":
            dies_between(folder)
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
    rest = dist.shrink_group([victim])
    Call(rest)("all_reduce")
    Call(rest, size=c.size)(name)
    return "%.3f %s" % (seconds, error)


def case(name: str, when: str, root: int, n: int = 3) -> List[str]:
    with tempfile.TemporaryDirectory() as folder:
        return run(n, rank, name, when, root, folder, seconds=SECONDS)


def leader(places: str, victim: int) -> bool:
    return places.index(places[victim]) == victim


def cases_across(names: Any = ()) -> List[Any]:
    """(name, when, places, rank that dies) of each case among hosts. In rooted calls the root is rank 0, or the last one, which dies in some."""
    return [(name, when, places, victim) for name in names or BETWEEN for places, victim in PLACES for when in (*WHEN, "between") if when != "between" or leader(places, victim)]


def case_across(hosts: Hosts, name: str, when: str, places: str, victim: int, root: int = 0) -> List[str]:
    def env(r: int) -> Dict[str, str]:
        hosts.enter(places[r])
        return hosts.env()

    with tempfile.TemporaryDirectory() as folder:
        return run(len(places), rank, name, when, root, folder, victim, env=env, seconds=SECONDS)


def main() -> None:
    os.environ.setdefault("STAR_WATCH", "false")
    worst: Dict[str, float] = {}

    def show(label: str, when: str, said: List[str], victim: int) -> None:
        said = [s for r, s in enumerate(said) if r != victim]
        seconds = [float(s.split()[0]) if s[0].isdigit() and "rank %d" % victim in s else float("inf") for s in said]
        print("%-24s %-7s %s  %s s%s" % (label, when, victim, " ".join("%.3f" % s for s in seconds), "" if max(seconds) < 3 else "  %s" % said), flush=True)
        worst[when] = max(worst.get(when, 0), *seconds)

    names = sys.argv[1:]
    if "--hosts" in names:
        names.remove("--hosts")
        with Hosts() as hosts:
            for name, when, places, victim in cases_across(names):
                show("%s %s" % (name, places), when, case_across(hosts, name, when, places, victim), victim)
    else:
        for name, when, root in cases(names):
            show("%s, root %d" % (name, root), when, case(name, when, root), VICTIM)
    print("worst: " + ", ".join("%s %.3f s" % w for w in worst.items()))


if __name__ == "__main__":
    main()
