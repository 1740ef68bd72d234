"""A rank of the backend star is killed before, in and after each collective: the others get an error that names it, and go on without it."""

import os
import re
import signal
import time
from typing import Any, Callable, Dict, Iterator, List

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if not hasattr(torch.distributed, "shrink_group"):
    pytest.skip("PyTorch %s has no shrink_group: 2.10 has" % torch.__version__, allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from backend_collectives import CALLS  # noqa: E402
from backend_deaths import BETWEEN, SECONDS, VICTIM, case, case_across, cases  # noqa: E402
from backend_hosts import Hosts  # noqa: E402
from backend_ranks import run  # noqa: E402


@pytest.mark.parametrize("name", list(CALLS))
def test_survivors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAR_WATCH", "false")
    for _, when, root in cases([name]):
        said = case(name, when, root)
        assert said.pop(VICTIM) == "died"
        for s in said:
            where = "%s, rank %d dies %s it, root %d: %s" % (name, VICTIM, when, root, s)
            assert s[0].isdigit() and "rank %d" % VICTIM in s.lower(), where
            assert float(s.split()[0]) < SECONDS / 4, where  # by itself, not by the timeout


# -- several hosts


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    try:
        made = Hosts()
    except OSError as e:
        pytest.skip("no network namespaces here: %s" % e)
    yield made
    made.close()


@pytest.fixture
def agents(star: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAR_AGENT", star)
    monkeypatch.setenv("STAR_WATCH", "false")


# When which rank dies: not the leader of its host, the leader in its collective and in the exchange with the other host, and one alone on its host.
# backend_deaths.py --hosts has them all.
@pytest.mark.parametrize("when, places, victim", [("before", "aabb", 1), ("in", "aab", 0), ("between", "aabb", 2), ("after", "ab", 1)])
@pytest.mark.parametrize("name", BETWEEN)
def test_survivors_on_both_hosts(name: str, when: str, places: str, victim: int, hosts: Hosts, agents: None) -> None:
    said = case_across(hosts, name, when, places, victim)
    assert said.pop(victim) == "died"
    for s in said:
        assert s[0].isdigit() and "rank %d (" % victim in s and re.search(r"died|\) has ended", s) and s.endswith("go on with a new group of the others, or restart the job"), said
        assert float(s.split()[0]) < SECONDS / 4, said


def across(hosts: Hosts, places: str, function: Callable[..., Any], *args: Any, seconds: float = SECONDS) -> List[str]:
    def env(r: int) -> Dict[str, str]:
        hosts.enter(places[r])
        return hosts.env()

    return run(len(places), function, places, *args, env=env, seconds=seconds)


def without_agent(rank: int, n: int, places: str) -> str:
    from star_train import _agent

    x = torch.ones(3)
    dist.all_reduce(x)
    assert _agent._current is not None
    if rank == places.index("b"):
        os.kill(_agent._current._own.agent, signal.SIGKILL)
    try:
        for _ in range(100):
            time.sleep(0.05)
            dist.all_reduce(x)
        return "no error"
    except RuntimeError as e:
        error = str(e)
    try:
        dist.new_group(use_local_synchronization=True)
        return "a new group that spans hosts"
    except RuntimeError as e:
        error += "|" + str(e)
    x = torch.ones(3)
    dist.all_reduce(x, group=dist.shrink_group([r for r in range(n) if places[r] != places[rank]]))  # each host goes on by itself
    return "%s|%d" % (error, x[0])


def test_agent_of_a_host_is_killed(hosts: Hosts, agents: None) -> None:
    a, b, c = (s.split("|") for s in across(hosts, "aab", without_agent))
    assert re.search(r"host 1 \(.*, rank 2\).*; go on with a new group of the others", a[0]) and re.search(r"host 1 \(.*, rank 2\)", b[0]), (a, b)
    assert re.search(r"the agent of this host \(process \d+\) has ended", c[0]), c
    assert [s[2] for s in (a, b, c)] == ["2", "2", "1"]
    for said in a, b, c:
        assert re.search(r"cannot begin the group, which spans hosts: rank 2 has no agent: the agent of this host \(process \d+\) has ended", said[1]), said


def cut(rank: int, n: int, places: str, hosts: Hosts) -> str:
    x = torch.ones(3)
    dist.all_reduce(x)
    if rank == 0:
        hosts.cable("down")
    try:
        for _ in range(100):
            time.sleep(0.05)
            dist.all_reduce(x)
    except RuntimeError as e:
        return str(e)
    return "no error"


def test_cable_is_cut(hosts: Hosts, agents: None) -> None:
    """Each host names the other one by the ranks on it."""
    try:
        a, b, c = across(hosts, "aab", cut, hosts, seconds=3)
    finally:
        hosts.cable("up")
    assert re.search(r"host 1 \(.*, rank 2\)", a) and re.search(r"host 1 \(.*, rank 2\)", b) and re.search(r"host 0 \(.*, ranks 0, 1\)", c), (a, b, c)
