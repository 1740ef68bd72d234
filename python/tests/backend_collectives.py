"""Every collective of torch.distributed, as a call that checks its own result.

test_backend_collectives.py makes them in each dtype, at once and asynchronously, in several groups; test_backend_deaths.py has a rank die at them."""

from typing import Any, Callable, Dict, List

import torch
import torch.distributed as dist

Check = Callable[[], None]
CALLS: Dict[str, Callable[["Call"], Check]] = {}

# Those that reduce, those without a tensor of a dtype, those without an asynchronous form, and those for which only the root is special.
REDUCES = {"all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_tensor"}
UNTYPED = {"all_reduce_sparse", "barrier", "monitored_barrier", "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"}
ROOTED = {"reduce", "broadcast", "gather", "scatter", "gather_object", "broadcast_object_list", "scatter_object_list"}

MOVED = [getattr(torch, name) for name in ("float8_e4m3fn", "uint16", "uint32", "uint64") if hasattr(torch, name)]  # PyTorch cannot add them up
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
TYPES += [torch.complex64, torch.complex128, torch.bool]


class Call:
    """How a collective is called: in a group, on tensors of a dtype and a number of elements. root is a rank of the group."""

    def __init__(self, group: Any = None, dtype: torch.dtype = torch.float32, size: int = 5, later: bool = False, root: int = 0) -> None:
        self.group = group or dist.group.WORLD
        self.ranks = dist.get_process_group_ranks(self.group)
        self.n, self.me = len(self.ranks), dist.get_rank(self.group)
        self.root, self.dtype, self.size = root, dtype, size
        self.options: Dict[str, Any] = {"group": self.group, "async_op": later}
        self.works: List[Any] = []

    def fill(self, number: int) -> torch.Tensor:
        """Small integers that depend on a number: their sums are exact in each dtype."""
        x = (torch.arange(self.size) * 7 + number * 3) % 5 + 1
        return (x % 2 == 0) if self.dtype is torch.bool else x.to(self.dtype)

    def empty(self, blocks: int = 1) -> torch.Tensor:
        return torch.empty(blocks * self.size, dtype=self.dtype)

    def sum(self, numbers: Any) -> torch.Tensor:
        numbers = list(numbers)
        out = self.fill(numbers[0])
        for i in numbers[1:]:
            out = out + self.fill(i)
        return out

    def __call__(self, name: str) -> None:
        """Calls a collective, waits for it and checks the result."""
        check = CALLS[name](self)
        self.wait()
        check()

    def begun(self, work: Any) -> None:
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        for w in reversed(self.works):
            w.wait()
        self.works.clear()


def call(f: Callable[[Call], Check]) -> Callable[[Call], Check]:
    CALLS[f.__name__] = f
    return f


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.dtype, want.shape)
    a, b = (t.contiguous().view(torch.uint8) if t.numel() and t.dtype in MOVED else t for t in (got, want))
    assert torch.equal(a, b), "got %s, want %s" % (got[:8], want[:8])


def nothing() -> None:
    pass


@call
def all_reduce(c: Call) -> Check:
    x = c.fill(c.me)
    c.begun(dist.all_reduce(x, **c.options))
    return lambda: same(x, c.sum(range(c.n)))


@call
def all_reduce_coalesced(c: Call) -> Check:
    a, b = c.fill(c.me), c.fill(c.me + 1)
    with dist._coalescing_manager(group=c.group):
        dist.all_reduce(a, group=c.group)
        dist.all_reduce(b, group=c.group)

    def check() -> None:
        same(a, c.sum(range(c.n)))
        same(b, c.sum(range(1, c.n + 1)))

    return check


@call
def all_reduce_sparse(c: Call) -> Check:
    size = max(c.size, 1)
    x: Any = torch.sparse_coo_tensor(torch.tensor([[c.me % size, size - 1]]), torch.tensor([1.0, 2.0]), (size,), check_invariants=True)
    c.begun(dist.all_reduce(x, **c.options))

    def check() -> None:
        want = torch.zeros(size)
        for r in range(c.n):
            want[r % size] += 1
        want[size - 1] += 2 * c.n
        same(x.to_dense(), want)

    return check


@call
def reduce(c: Call) -> Check:
    x = c.fill(c.me)
    c.begun(dist.reduce(x, group_dst=c.root, **c.options))
    return lambda: same(x, c.sum(range(c.n))) if c.me == c.root else None


@call
def broadcast(c: Call) -> Check:
    x = c.fill(c.me)
    c.begun(dist.broadcast(x, group_src=c.root, **c.options))
    return lambda: same(x, c.fill(c.root))


def all_same(got: List[torch.Tensor], want: List[torch.Tensor]) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want):
        same(a, b)


@call
def all_gather(c: Call) -> Check:
    outs = [c.empty() for _ in range(c.n)]
    c.begun(dist.all_gather(outs, c.fill(c.me), **c.options))
    return lambda: all_same(outs, [c.fill(r) for r in range(c.n)])


@call
def all_gather_into_tensor(c: Call) -> Check:
    out = c.empty(c.n)
    c.begun(dist.all_gather_into_tensor(out, c.fill(c.me), **c.options))
    return lambda: same(out, torch.cat([c.fill(r) for r in range(c.n)]))


@call
def gather(c: Call) -> Check:
    outs = [c.empty() for _ in range(c.n)] if c.me == c.root else None
    c.begun(dist.gather(c.fill(c.me), outs, group_dst=c.root, **c.options))
    return lambda: all_same(outs, [c.fill(r) for r in range(c.n)]) if outs else None


@call
def scatter(c: Call) -> Check:
    out = c.empty()
    c.begun(dist.scatter(out, [c.fill(r) for r in range(c.n)] if c.me == c.root else None, group_src=c.root, **c.options))
    return lambda: same(out, c.fill(c.me))


@call
def reduce_scatter(c: Call) -> Check:
    out = c.empty()
    c.begun(dist.reduce_scatter(out, [c.fill(c.me + r) for r in range(c.n)], **c.options))
    return lambda: same(out, c.sum(r + c.me for r in range(c.n)))


@call
def reduce_scatter_tensor(c: Call) -> Check:
    out = c.empty()
    c.begun(dist.reduce_scatter_tensor(out, torch.cat([c.fill(c.me + r) for r in range(c.n)]), **c.options))
    return lambda: same(out, c.sum(r + c.me for r in range(c.n)))


@call
def all_to_all(c: Call) -> Check:
    outs = [c.empty() for _ in range(c.n)]
    c.begun(dist.all_to_all(outs, [c.fill(10 * c.me + r) for r in range(c.n)], **c.options))
    return lambda: all_same(outs, [c.fill(10 * r + c.me) for r in range(c.n)])


@call
def all_to_all_single(c: Call) -> Check:
    """Rank r sends to each rank one part more than it sends to the one before; only the first element of each block goes to rank 0, so lengths differ."""
    first = min(1, c.size)
    gives = [first if r == 0 else c.size for r in range(c.n)]
    takes = [first if c.me == 0 else c.size] * c.n
    out = torch.empty(sum(takes), dtype=c.dtype)
    x = torch.cat([c.fill(10 * c.me + r)[: gives[r]] for r in range(c.n)])
    c.begun(dist.all_to_all_single(out, x, takes, gives, **c.options))
    return lambda: same(out, torch.cat([c.fill(10 * r + c.me)[: takes[r]] for r in range(c.n)]))


@call
def barrier(c: Call) -> Check:
    c.begun(dist.barrier(**c.options))
    return nothing


@call
def monitored_barrier(c: Call) -> Check:
    dist.monitored_barrier(group=c.group)
    return nothing


@call
def all_gather_object(c: Call) -> Check:
    got: List[Any] = [None] * c.n
    dist.all_gather_object(got, {"rank": c.me, "text": "x" * (c.me * c.size)}, group=c.group)
    assert got == [{"rank": r, "text": "x" * (r * c.size)} for r in range(c.n)], got
    return nothing


@call
def gather_object(c: Call) -> Check:
    got: Any = [None] * c.n if c.me == c.root else None
    dist.gather_object(("rank", c.me), got, group_dst=c.root, group=c.group)
    assert got is None or got == [("rank", r) for r in range(c.n)], got
    return nothing


@call
def broadcast_object_list(c: Call) -> Check:
    got: List[Any] = [{"root": c.root}, "x" * c.size] if c.me == c.root else [None, None]
    dist.broadcast_object_list(got, group_src=c.root, group=c.group)
    assert got == [{"root": c.root}, "x" * c.size]
    return nothing


@call
def scatter_object_list(c: Call) -> Check:
    got: List[Any] = [None]
    dist.scatter_object_list(got, [("for", r) for r in range(c.n)] if c.me == c.root else None, group_src=c.root, group=c.group)
    assert got == [("for", c.me)], got
    return nothing


@call
def send_recv(c: Call) -> Check:
    """From the group's first rank to its second."""
    x = c.fill(c.me)
    if c.n > 1 and c.me == 0:
        c.begun(dist.isend(x, group=c.group, group_dst=1))
    elif c.me == 1:
        c.begun(dist.irecv(x, group=c.group, group_src=0))
    return lambda: same(x, c.fill(0)) if c.me == 1 else None


@call
def recv_any_source(c: Call) -> Check:
    x = c.fill(c.me)
    if c.n > 1 and c.me == 0:
        dist.send(x, group=c.group, group_dst=1)
    elif c.me == 1:
        assert dist.recv(x, group=c.group) == c.ranks[0]
        same(x, c.fill(0))
    return nothing


@call
def batch_isend_irecv(c: Call) -> Check:
    """Each of the first two ranks sends to the other."""
    if c.n == 1 or c.me > 1:
        return nothing
    x, peer = c.empty(), 1 - c.me
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, c.fill(c.me), group=c.group, group_peer=peer), dist.P2POp(dist.irecv, x, group=c.group, group_peer=peer)]):
        c.begun(work)
    return lambda: same(x, c.fill(1 - c.me))
