"""The backend star of torch.distributed: every collective, what ends badly, and scripts that were written for Gloo."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List

import pytest
from conftest import as_installed

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 5):

    def test_too_old() -> None:
        with pytest.raises(ImportError, match="cannot use the backend star: PyTorch 1.*try PyTorch 2.5"):
            import star_train.backend  # noqa: F401

    pytest.skip("the backend needs PyTorch 2.5 or later, this is %s" % torch.__version__, allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from backend_ranks import run  # noqa: E402

import star_train.backend  # noqa: E402
from star_train import _shm  # noqa: E402

SIZES = (0, 1, 7, 1000, 200_003)
NEW = not star_train.backend._GROUP  # Backend can be derived from


def fill(rank: int, n: int, dtype: Any) -> Any:
    """Small integers, so that sums are exact in each type."""
    x = (torch.arange(n) * 7 + rank * 3) % 5 + 1
    return (x % 2 == 0) if dtype is torch.bool else x.to(dtype)


def reduced(op: str, n: int, dtype: Any, ranks: int) -> Any:
    xs = [fill(r, n, dtype) for r in range(ranks)]
    f = {
        "SUM": torch.add,
        "AVG": torch.add,
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }[op]
    out = xs[0]
    for x in xs[1:]:
        out = f(out, x)
    return out.div(ranks) if op == "AVG" else out


def collectives(rank: int, n: int) -> str:
    """All collectives against what one process computes."""
    others = [r for r in range(n)]
    types = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64, torch.bool]
    for dtype in types:
        for size in SIZES if dtype is torch.float32 else (7, 3000):
            integral = not dtype.is_floating_point and not dtype.is_complex
            ops = (
                ["SUM"]
                + ([] if dtype.is_complex else ["PRODUCT", "MIN", "MAX"])
                + (["BAND", "BOR", "BXOR"] if integral else [])
                + (["AVG"] if dtype in (torch.float32, torch.bfloat16) else [])
            )
            for op in ops:
                x = fill(rank, size, dtype)
                dist.all_reduce(x, getattr(dist.ReduceOp, op))
                assert torch.allclose(x.to(torch.complex128), reduced(op, size, dtype, n).to(torch.complex128), rtol=1e-2 if dtype is torch.bfloat16 else 1e-6), (
                    "all_reduce",
                    op,
                    dtype,
                    size,
                )
            x = fill(rank, size, dtype)
            dist.reduce(x, n - 1)
            assert rank < n - 1 or torch.equal(x, reduced("SUM", size, dtype, n)), ("reduce", dtype, size)
            x = fill(rank, size, dtype)
            dist.broadcast(x, n - 1)
            assert torch.equal(x, fill(n - 1, size, dtype)), ("broadcast", dtype, size)
            mine, want = fill(rank, size, dtype), [fill(r, size, dtype) for r in others]
            outs = [torch.empty_like(mine) for _ in others]
            dist.all_gather(outs, mine)
            assert all(map(torch.equal, outs, want)), ("all_gather", dtype, size)
            flat = torch.empty(n * size, dtype=dtype)
            dist.all_gather_into_tensor(flat, mine)
            assert torch.equal(flat, torch.cat(want)), ("all_gather_into_tensor", dtype, size)
            outs = [torch.empty_like(mine) for _ in others]
            dist.gather(mine, outs if rank == 1 else None, dst=1)
            assert rank != 1 or all(map(torch.equal, outs, want)), ("gather", dtype, size)
            out = torch.empty_like(mine)
            dist.scatter(out, want if rank == 1 else None, src=1)
            assert torch.equal(out, mine), ("scatter", dtype, size)
            dist.reduce_scatter(out, [fill(rank + r, size, dtype) for r in others])
            total = [fill(r + rank, size, dtype) for r in others]
            acc = total[0]
            for t in total[1:]:
                acc = acc + t
            assert torch.equal(out, acc), ("reduce_scatter", dtype, size)
            out = torch.empty_like(mine)
            dist.reduce_scatter_tensor(out, torch.cat([fill(rank + r, size, dtype) for r in others]))
            assert torch.equal(out, acc), ("reduce_scatter_tensor", dtype, size)
            outs = [torch.empty_like(mine) for _ in others]
            dist.all_to_all(outs, [fill(10 * rank + r, size, dtype) for r in others])
            assert all(torch.equal(o, fill(10 * r + rank, size, dtype)) for r, o in enumerate(outs)), ("all_to_all", dtype, size)
            out = torch.empty(n * size, dtype=dtype)
            dist.all_to_all_single(out, torch.cat([fill(10 * rank + r, size, dtype) for r in others]))
            assert torch.equal(out, torch.cat([fill(10 * r + rank, size, dtype) for r in others])), ("all_to_all_single", dtype, size)
    # uneven parts: rank i sends i + j rows of two to rank j
    gives, takes = [rank + r for r in others], [r + rank for r in others]
    out = torch.empty(sum(takes), 2)
    dist.all_to_all_single(out, torch.full((sum(gives), 2), float(rank)), takes, gives)
    assert torch.equal(out, torch.cat([torch.full((r + rank, 2), float(r)) for r in others])), "uneven all_to_all_single"
    # shapes: no dimension, not contiguous, channels last, a parameter, inside inference mode
    x = torch.tensor(float(rank))
    dist.all_reduce(x)
    assert x.item() == sum(others)
    base = torch.arange(12.0).reshape(3, 4) * (rank + 1)
    dist.all_reduce(base.t())
    assert torch.equal(base, torch.arange(12.0).reshape(3, 4) * (n * (n + 1) / 2))
    out = torch.zeros(4, 6).t()
    dist.all_gather([torch.empty(6, 4) for _ in others][:-1] + [out], torch.arange(24.0).reshape(4, 6).t() + rank)
    assert torch.equal(out, torch.arange(24.0).reshape(4, 6).t() + n - 1)
    p = torch.nn.Parameter(torch.ones(3))
    dist.all_reduce(p.data)
    with torch.inference_mode():
        x = torch.ones(5)
        work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert x.sum() == 5 * n and p.sum() == 3 * n
    # works and futures
    x = torch.full((4,), float(rank))
    work = dist.all_reduce(x, async_op=True)
    seen: List[float] = []
    then = work.get_future().then(lambda f: seen.append(f.value()[0][0].item()))
    assert work.wait() in (True, None) and work.is_completed() and x[0] == sum(others)
    then.wait()
    assert seen == [sum(others)]
    works = [dist.all_reduce(torch.full((9,), float(i)), async_op=True) for i in range(200)]
    dist.barrier()
    assert all(w.is_completed() for w in works)
    for w in works:
        w.wait()
    with dist._coalescing_manager():
        a, b = torch.ones(3), torch.full((2, 2), 2.0)
        dist.all_reduce(a)
        dist.all_reduce(b)
    assert a.sum() == 3 * n and b.sum() == 8 * n
    # objects, groups, point to point
    got: List[Any] = [None] * n
    dist.all_gather_object(got, {"rank": rank})
    assert got == [{"rank": r} for r in others]
    objects = [("a", rank)] if rank == 0 else [None]
    dist.broadcast_object_list(objects)
    assert objects == [("a", 0)]
    pair = dist.new_group([0, n - 1])
    if rank in (0, n - 1):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=pair)
        assert x.item() == n - 1 and dist.get_backend(pair) == "star"
    if rank == 0:
        dist.send(torch.arange(3.0), 1)
        x = torch.empty(3)
        assert dist.recv(x) == 1 and x[2] == 4
    elif rank == 1:
        x = torch.empty(3)
        dist.recv(x, 0)
        dist.send(x * 2, 0)
    if NEW:
        dist.monitored_barrier()
    return "ok"


@pytest.mark.parametrize("n", [2, 3, 4])
def test_collectives(n: int) -> None:
    assert run(n, collectives) == ["ok"] * n


def bits(rank: int, n: int) -> str:
    torch.manual_seed(rank)
    x = torch.randn(300_001)
    dist.all_reduce(x)
    return str(x.view(torch.int32).sum().item())


def test_all_ranks_get_the_same_bits() -> None:
    for n in (2, 3):
        assert len(set(run(n, bits))) == 1


# -- several hosts, pretended


def hosts(rank: int, n: int) -> str:
    return collectives(rank, n)


@pytest.mark.parametrize("where", ["ab", "aab", "abab"])
def test_hosts(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that span hosts exchange through the agent; this one uses Gloo among the leaders."""
    import backend_agent

    monkeypatch.setitem(sys.modules, "star_train._agent", backend_agent)
    monkeypatch.setattr(star_train, "_agent", backend_agent, raising=False)
    assert run(len(where), hosts, env=lambda r: {"STAR_HOST_ID": where[r]}) == ["ok"] * len(where)


def test_hosts_without_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo carries out all of it where the hosts have no program star."""
    import backend_agent

    monkeypatch.setattr(backend_agent.Agent, "ensure", lambda *_: None)
    monkeypatch.setitem(sys.modules, "star_train._agent", backend_agent)
    monkeypatch.setattr(star_train, "_agent", backend_agent, raising=False)
    assert run(2, bits, env=lambda r: {"STAR_HOST_ID": str(r)}) == run(2, bits, backend="gloo")


# -- what ends badly


def killed(rank: int, n: int) -> str:
    dist.all_reduce(torch.ones(10))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        dist.all_reduce(torch.ones(1 << 20))
    except RuntimeError as e:
        rest = dist.new_group([0, 2], use_local_synchronization=True)
        x = torch.ones(3)
        dist.all_reduce(x, group=rest)
        if hasattr(dist, "shrink_group"):
            x = torch.ones(3)
            dist.all_reduce(x, group=dist.shrink_group([1]))
        return "%s|%s|%d" % (e, time.monotonic() - begin < 30, x.sum())
    return "no error"


def test_survivors_name_a_dead_rank_and_go_on() -> None:
    a, died, b = run(3, killed)
    assert died == "died"
    for said in (a, b):
        assert "rank 1 (process " in said and "died" in said and "all_reduce" in said and said.endswith("|True|6"), said


def differing(rank: int, n: int, what: str) -> str:
    dist.barrier()
    if what == "shape":
        dist.all_reduce(torch.ones(4 + rank))
    elif what == "dtype":
        dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank else torch.float32))
    elif what == "kind" and rank:
        dist.broadcast(torch.ones(4), 0)
    elif what == "kind":
        dist.all_reduce(torch.ones(4))
    elif what == "operation":
        dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)
    else:
        dist.all_to_all_single(torch.empty(3 + rank), torch.ones(3), [1, 2 + rank], [2, 1])
    return "no error"


@pytest.mark.parametrize(
    "what, a, b",
    [
        ("shape", "float32[4]", "float32[5]"),
        ("dtype", "float32[4]", "float64[4]"),
        ("kind", "all_reduce(sum)", "broadcast(root 0)"),
        ("operation", "all_reduce(sum)", "all_reduce(max)"),
        ("splits", "sends", "expects"),
    ],
)
def test_mismatch_is_named_on_both_sides(what: str, a: str, b: str) -> None:
    for said in run(2, differing, what):
        assert a in said and b in said and "Error" in said, said


def late(rank: int, n: int) -> str:
    if rank == 0:
        dist.all_reduce(torch.ones(3))
    else:
        group = dist.group.WORLD._get_backend(torch.device("cpu")) if NEW else dist.group.WORLD
        assert not NEW or group.get_error().name == "SUCCESS"
        while group._local.segment.alive(0) and _shm._STATE.unpack_from(group._local.segment.memory, 0)[0] != _shm.FAILED:
            time.sleep(0.01)
        dist.all_reduce(torch.ones(3))  # rank 0 had given its data before it gave up
        try:
            dist.all_reduce(torch.ones(3))
        except RuntimeError as e:
            return "%s %s" % (e, group.get_error().name if NEW else "TIMEOUT")
    return "no error"


def test_timeout() -> None:
    a, b = run(2, late, seconds=1)
    assert "timed out waiting for rank 1 (at collective 0)" in a and "all_reduce(sum) of float32[3]" in a, a
    assert "rank 0 gave up: cannot complete collective 1" in b and b.endswith("TIMEOUT"), b


def flags(rank: int, n: int) -> str:
    """What PyTorch asks a backend for, by name: one that is missing would ask itself without end."""
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    base = torch._C._distributed_c10d.Backend
    return repr({k: getattr(backend, k) for k in dir(base) if k.startswith(("supports_", "_supports_")) and isinstance(getattr(base, k), property)})


@pytest.mark.skipif(not NEW, reason="before PyTorch 2.10 a group is no Backend")
def test_flags() -> None:
    (said,) = run(1, flags)
    got = eval(said)
    assert got["supports_splitting"] and got["supports_shrinking"] and not got.get("_supports_time_estimate") and len(got) >= 5, said


def refused(rank: int, n: int) -> str:
    said = []
    for call in (
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.complex64), dist.ReduceOp.MAX),
        lambda: dist.all_gather_into_tensor(torch.empty(3), torch.ones(2)),
        lambda: dist.reduce_scatter_tensor(torch.empty(3), torch.ones(5)),
        lambda: dist.all_to_all_single(torch.empty(4), torch.ones(3)),
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.float8_e4m3fn)),
    ):
        try:
            call()
            said.append("no error")
        except (RuntimeError, ValueError, NotImplementedError) as e:
            said.append(str(e))
    x = torch.ones(2)
    dist.all_reduce(x)  # what is refused before other ranks know of it leaves the group in order
    assert x.sum() == 2 * n
    return "|".join(said)


def test_refused_calls() -> None:
    for said in run(2, refused):
        assert "no error" not in said, said


def begun(rank: int, n: int, folder: str, what: str) -> str:
    store = dist.FileStore(folder + "/store", -1)
    size, seconds = n, 30.0
    if what == "size":
        size = n + rank
    elif what == "version" and rank:
        star_train._shm.__version__ = "0.0.1"
    elif what == "taken":
        rank = 0
        seconds = 1.0
    elif what == "missing":
        size, seconds = n + 1, 0.3
    _shm.meet(store, rank, size, seconds)
    return "no error"


@pytest.mark.parametrize(
    "what, text",
    [
        ("size", "has world size [23], rank [01] [23]; give all"),
        ("version", "has star_train .*layout"),
        ("taken", "already has rank 0 at this address|no message of rank"),
        ("missing", "no message of rank 2"),
    ],
)
def test_bad_beginning(what: str, text: str) -> None:
    import re

    for said in run(2, begun, what, begin=False):
        assert re.search(text, said), said


def many(rank: int, n: int) -> str:
    works = [dist.all_reduce(torch.ones(8), async_op=True) for _ in range(10_000)]
    for w in works:
        w.wait()
    return "ok"


def test_ten_thousand_at_once() -> None:
    assert run(2, many) == ["ok", "ok"]


def names(pid: int) -> Dict[str, str]:
    return {fd: os.readlink("/proc/%d/fd/%s" % (pid, fd)) for fd in os.listdir("/proc/%d/fd" % pid) if os.path.islink("/proc/%d/fd/%s" % (pid, fd))}


def leaving(rank: int, n: int) -> str:
    dist.all_reduce(torch.ones(5))  # the hook of star watch opens a file of the kernel at the first one
    before, threads = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    for _ in range(3):
        group = dist.new_group()
        x = torch.ones(5)
        dist.all_reduce(x, group=group, async_op=True).wait()
        with open("/proc/self/maps") as f:
            assert "/memfd:star" in f.read()
        dist.destroy_process_group(group)
        try:
            dist.destroy_process_group(group)
        except ValueError as e:
            assert "Invalid process group" in str(e)
        del group
    dist.barrier()
    left = {t.name for t in threading.enumerate() if t not in threads}
    return "%s %s %s" % (len(os.listdir("/proc/self/fd")) - before, sorted(left), [p for p in os.listdir("/dev/shm") if "star" in p])


@pytest.mark.skipif(not hasattr(dist.ProcessGroup, "shutdown"), reason="PyTorch before 2.6 does not tell a group that it is destroyed")
def test_leaves_nothing() -> None:
    assert run(2, leaving) == ["0 [] []"] * 2


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg,name-defined]
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        return torch.tensor(float(i))


def forking(rank: int, n: int) -> str:
    dist.all_reduce(torch.ones(3), async_op=True).wait()
    pid = os.fork()
    if pid == 0:
        try:
            dist.all_reduce(torch.ones(3))
        except RuntimeError as e:
            os._exit(7 if "forked after init_process_group" in str(e) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    total = sum(b.sum() for b in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork"))
    x = torch.ones(3)
    dist.all_reduce(x, async_op=True).wait()
    return "%d %d" % (total, x.sum())


def test_survives_fork() -> None:
    assert run(2, forking) == ["28 6"] * 2


# -- scripts that were written for Gloo


def trained(rank: int, n: int, how: str) -> str:
    """Parameters after some steps of a small net; the same data on each rank count."""
    torch.manual_seed(0)
    net: Any = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for m in (net[0], net[2]):
            fully_shard(m)
        net = fully_shard(net)
    elif n > 1:
        net = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=how == "unused", static_graph=how == "static", bucket_cap_mb=0.001)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    data, target = torch.randn(12, 16), torch.randn(12, 4)
    for _ in range(6):
        mine = slice(rank * 12 // n, (rank + 1) * 12 // n)
        (net(data[mine]) - target[mine]).square().mean().backward()
        opt.step()
        opt.zero_grad()
    if how == "fsdp":
        return repr([p.full_tensor().detach().double().sum().item() for p in net.parameters()])
    return repr([p.detach().double().sum().item() for p in net.parameters()])


@pytest.mark.parametrize("how", ["ddp", "unused", "static"] + (["fsdp"] if NEW else []))
def test_training_like_one_process(how: str) -> None:
    one = eval(trained(0, 1, "ddp"))
    two = [eval(s) for s in run(2, trained, how)]
    assert two[0] == two[1]
    assert two[0] == pytest.approx(one, rel=1e-4, abs=1e-5)


def test_installed_backend_needs_no_import(tmp_path: pathlib.Path) -> None:
    """As the wheel has it: PyTorch finds the entry point."""
    script = "import torch, torch.distributed as dist, sys; assert 'star_train.backend' not in sys.modules\n"
    script += "assert dist.is_backend_available('star') and dist.Backend.backend_capability['star'] == ['cpu', 'cuda']\n"
    script += "dist.init_process_group('cpu:star,cuda:gloo', store=dist.HashStore(), rank=0, world_size=1); x = torch.ones(2); dist.all_reduce(x); print(x.sum().item())"
    out = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": as_installed(tmp_path)}, capture_output=True, text=True)
    assert out.stdout.strip().endswith("2.0"), out.stderr  # Gloo of PyTorch 2.8 prints a line
