"""Every collective of the backend star: in each dtype, at once and asynchronously, in several groups, and calls that differ between ranks."""

from typing import Any, List

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
    pytest.skip("PyTorch %s: 2.10 is the first with all of these calls" % torch.__version__, allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from backend_collectives import CALLS, MOVED, REDUCES, ROOTED, TYPES, UNTYPED, Call, same  # noqa: E402
from backend_ranks import run  # noqa: E402

import star_train.backend  # noqa: E402, F401


def every(rank: int, n: int, kind: str, later: bool) -> str:
    """Each collective with each dtype, size and root that it can have, in a group of all ranks, of two or of this one."""
    groups = {"all": None, "two": dist.new_group([0, n - 1]), "one": None}
    for r in range(n):
        one = dist.new_group([r])
        groups["one"] = one if r == rank else groups["one"]
    if kind == "two" and rank not in (0, n - 1):
        return "ok"
    for name in CALLS:
        for dtype in [torch.float32] if name in UNTYPED else TYPES if name in REDUCES else TYPES + MOVED:
            for size in (0, 1, 5, 100_003) if dtype is torch.float32 else (3000,):
                if name == "recv_any_source" and size == 0:  # Gloo refuses it
                    continue
                for root in range(Call(groups[kind]).n) if name in ROOTED else (0,):
                    try:
                        Call(groups[kind], dtype, size, later, root)(name)
                    except Exception as e:
                        raise AssertionError("%s of %s[%d], root %d: %s: %s" % (name, dtype, size, root, type(e).__name__, e)) from e
    return "ok"


@pytest.mark.parametrize("later", [False, True], ids=["now", "async"])
@pytest.mark.parametrize("kind", ["all", "two", "one"])
def test_every_collective(kind: str, later: bool) -> None:
    assert run(3, every, kind, later) == ["ok"] * 3


def overlapping(rank: int, n: int) -> str:
    """All collectives of three groups at once. Ranks call the groups in different orders, and wait for the last work first."""
    groups = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 1, 2])]
    mine = [g for g in groups if dist.get_rank(g) >= 0]
    checks, works = [], []
    for size in (3, 70_000):
        for g in mine if rank != 1 else reversed(mine):
            for name in CALLS:
                if name in UNTYPED or name in ("all_reduce_coalesced", "recv_any_source"):  # they wait
                    continue
                c = Call(g, size=size, later=True)
                checks.append(CALLS[name](c))
                works += c.works
    for w in reversed(works):
        w.wait()
    for check in checks:
        check()
    return "ok"


def test_groups_at_once() -> None:
    assert run(3, overlapping) == ["ok"] * 3


def shapes(rank: int, n: int) -> str:
    """One to four dimensions, more elements than fit in the shared memory of a step, and a slice of a larger tensor that stays otherwise."""
    for shape in ((17,), (5, 7), (3, 1, 4), (2, 3, 4, 5), (3_000_001,)):
        x = torch.full(shape, float(rank + 1))
        dist.all_reduce(x)
        same(x, torch.full(shape, n * (n + 1) / 2))
        out = torch.empty((n, *shape))
        dist.all_gather_into_tensor(out, torch.full(shape, float(rank)))
        assert all(bool((out[r] == r).all()) for r in range(n)), shape
    large = torch.zeros(10, 8)
    dist.all_reduce(large[2:4].fill_(1))
    assert large.sum() == 16 * n and large[:2].sum() == large[4:].sum() == 0
    return "ok"


def test_shapes() -> None:
    assert run(2, shapes) == ["ok"] * 2


def splits(rank: int, n: int) -> str:
    """all_to_all_single in which only one rank sends, only one receives, none sends, and each sends rows to itself only."""
    for gives in (
        [[2] * n if r == 1 else [0] * n for r in range(n)],
        [[3 if j == 0 else 0 for j in range(n)] for _ in range(n)],
        [[0] * n for _ in range(n)],
        [[r + 1 if j == r else 0 for j in range(n)] for r in range(n)],
    ):
        takes = [gives[r][rank] for r in range(n)]
        out = torch.empty(sum(takes), 2)
        dist.all_to_all_single(out, torch.full((sum(gives[rank]), 2), float(rank)), takes, gives[rank])
        same(out, torch.cat([torch.full((takes[r], 2), float(r)) for r in range(n)]))
    return "ok"


def test_uneven_splits() -> None:
    assert run(3, splits) == ["ok"] * 3


def factors(rank: int, n: int) -> str:
    """Averages, and sums of tensors that are multiplied before and after."""
    x = torch.full((6,), rank + 1.0, dtype=torch.float64)
    for op, want in ((dist.ReduceOp.AVG, (n + 1) / 2), (dist._make_nccl_premul_sum(0.5), n * (n + 1) / 4)):
        y = x.clone()
        dist.all_reduce(y, op)
        same(y, torch.full((6,), want, dtype=torch.float64))
    y = x / n
    dist.all_reduce(y)
    assert torch.allclose(y, torch.full((6,), (n + 1) / 2, dtype=torch.float64))
    return "ok"


def test_factors() -> None:
    assert run(3, factors) == ["ok"] * 3


def gradients(rank: int, n: int) -> str:
    """Gradients through collectives that autograd knows."""
    from torch.distributed.nn import functional as f

    def grad(call: Any) -> Any:
        x = torch.arange(1.0, 5.0).mul(rank + 1).requires_grad_()
        out = call(x)
        sum((o * o).sum() for o in (out if isinstance(out, (tuple, list)) else [out])).backward()
        assert x.grad is not None
        return x.grad.tolist()

    return repr(
        [
            grad(f.all_reduce),
            grad(lambda x: f.all_gather(x)),
            grad(lambda x: f.broadcast(x, 0) * (rank + 1)),
            grad(lambda x: f.reduce(x, 1) if rank == 1 else f.reduce(x, 1) * 0),
            grad(lambda x: f.reduce_scatter(torch.empty(4), [x * (r + 1) for r in range(n)])),
            grad(lambda x: f.all_to_all([torch.empty(4) for _ in range(n)], [x * (r + 1) for r in range(n)])),
            grad(lambda x: f.all_to_all_single(torch.empty(4), x)),
            grad(lambda x: f.gather(x, 0)),
            grad(lambda x: f.scatter([x * (r + 1) for r in range(n)], 0)),
        ]
    )


def test_gradients_like_gloo() -> None:
    star = run(2, gradients)
    assert star == run(2, gradients, backend="gloo") and not any("Error" in s for s in star)


def differing(rank: int, n: int, name: str, what: str) -> str:
    dist.all_reduce(torch.ones(1))
    odd = rank == 1
    size = 6 + (what == "size" and odd)
    root = int(what == "root" and odd)
    if name == "all_to_all" and what == "size" and odd:
        dist.all_to_all([torch.empty(7) for _ in range(n)], [torch.empty(6) for _ in range(n)])
    else:
        Call(None, torch.int32 if what == "dtype" and odd else torch.float32, size, False, root)(name if what != "kind" or not odd else "barrier")
    return "no error"


COMPARED = [c for c in CALLS if c not in UNTYPED - {"barrier"} | {"send_recv", "recv_any_source", "batch_isend_irecv", "all_reduce_coalesced"}]


@pytest.mark.parametrize("name", COMPARED)
def test_calls_that_differ(name: str) -> None:
    """A rank that calls with another dtype, size or root, or calls something else, is named on all ranks, with both calls."""
    kinds = ["kind"] if name != "barrier" else []
    kinds += [] if name == "barrier" else ["dtype"] if name == "all_to_all_single" else ["dtype", "size"]  # its sizes may differ
    for what in kinds + ["root"] * (name in ROOTED):
        told: List[str] = run(3, differing, name, what)
        for said in told:
            assert "BackendError" in said and "rank 1" in said, (what, said)
            assert "differs" in said or "expects" in said or "gave up" in said, (what, said)


def outside(rank: int, n: int) -> str:
    dist.barrier()
    told = []
    for call in (dist.send, dist.recv):
        try:
            call(torch.ones(2), n + 1)
        except Exception as e:
            told.append(str(e))
    dist.barrier()
    return "|".join(told)


def test_no_such_rank() -> None:
    for said in run(2, outside):
        assert "cannot call send" in said and "cannot call recv" in said and said.count("no rank 3 in the group") == 2, said
