"""Collectives of ranks on several hosts. Part of the backend (``docs/backend.md``).

Within a host the ranks use shared memory (``_shm``). Behind the slots of the segment lies the area: ranks put there what leaves the host, the leader has it
exchanged with the other hosts (``_agent.Hosts``), and the ranks take the result from there. An area has two halves, which pieces use in turn: when a rank
writes a piece, all have signalled that they read the one before the last.
"""

from __future__ import annotations

import time
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from ._agent import GRACE, HostLost
from ._collectives import Local, Reduce, Tensor, _divide, operation
from ._link import StarError
from ._shm import GO_ON, HEADER, KEY, Segment, copy, numbers, text

# Bytes of an area: two halves, and for each host a header. A piece of a half is one message between hosts.
HALF = 4 << 20

# How much longer than the deadline a rank waits for the leader of its host: the leader learns from other hosts which of them is at fault.
_VERDICT = GRACE + 1

_TYPES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16", torch.int32: "int32", torch.int64: "int64"}
_SUMS = {"sum": "sum", "avg": "sum", "premul_sum": "sum", "min": "min", "max": "max", "product": "product"}


def area(hosts: int) -> int:
    """Bytes that a group on this number of hosts needs behind its slots."""
    return 2 * HALF + HEADER * hosts


def size_of(dtype: Any) -> int:
    """Bytes of an element."""
    return int(dtype.itemsize)


class Across(Local):
    """As Local, among ranks of several hosts. where says which host each rank is on; hosts is None except on the leader of a host."""

    def __init__(self, segment: Segment, rank: int, where: Sequence[int], hosts: Any) -> None:
        super().__init__(segment)
        self.me, self.world, self.where, self.hosts = rank, len(where), list(where), hosts
        self.host, self.count = where[rank], max(where) + 1
        order = sorted(range(self.world), key=lambda r: (where[r], r))
        self.place = [order.index(r) for r in range(self.world)]  # ranks of a host are side by side
        self.members = [[r for r in order if where[r] == h] for h in range(self.count)]
        self._first = [self.place[m[0]] for m in self.members]
        self._most = max(map(len, self.members))  # pieces are as long on all hosts
        self._half = 0
        if hosts is not None:
            segment.on_failure = hosts.abort

    # -- parts of a collective

    def _sync(self, header: bytes, end: float, first: bool = False) -> None:
        self.segment.signal()
        self.segment.wait(header, end, first)
        self.segment.done()

    def _between(self, header: bytes, end: float, call: Callable[[Any, float], None]) -> None:
        """When all ranks of the host are here, the leader exchanges with other hosts; then all go on."""
        self._sync(header, end)
        self._exchange(end, header, call)
        self._sync(header, end + _VERDICT)

    def _exchange(self, end: float, header: bytes, call: Callable[[Any, float], None]) -> None:
        if self.hosts is None:
            return
        try:
            call(self.hosts, max(0.05, end - time.monotonic()))
        except StarError as e:
            self.segment.fail("cannot complete collective %d (%s): %s" % (self.segment.number, text(header), e), GO_ON if isinstance(e, HostLost) else "; restart the job")

    def _compare(self, header: bytes, end: float) -> None:
        """Begins a collective, and compares its header with those of all ranks."""
        seg = self.segment
        seg.begin(header)
        self._sync(header, end, True)
        base, memory = seg.extra + 2 * HALF, seg.memory
        if self.hosts is not None:
            own = base + HEADER * self.host
            memory[own : own + HEADER] = header
            others = [(0, 0) if h == self.host else (base + HEADER * h, HEADER) for h in range(self.count)]
            self._exchange(end, header, lambda hosts, left: hosts.exchange(self._all_others((own, HEADER)), others, left))
        self._sync(header, end + _VERDICT)
        for h in range(self.count):
            theirs = memory[base + HEADER * h : base + HEADER * (h + 1)]
            if theirs[:KEY] != header[:KEY]:
                seg.fail(
                    "collective %d differs: rank %d calls %s, rank %d calls %s; all ranks must make the same calls in the same order"
                    % (seg.number, self.me, text(header), self.members[h][0], text(theirs))
                )

    def _piece(self) -> Tuple[int, int]:
        """Offset in the segment and address of the half that the next piece uses."""
        self._half ^= 1
        offset = self.segment.extra + HALF * self._half
        return offset, self.segment.address + offset

    def _tensor(self, offset: int, n: int, dtype: torch.dtype) -> Tensor:
        out: Tensor = self.segment.bytes[offset : offset + n * size_of(dtype)].view(dtype)
        return out

    def _all_others(self, mine: Tuple[int, int]) -> List[Tuple[int, int]]:
        return [(0, 0) if h == self.host else mine for h in range(self.count)]

    def _reduced(self, pointer: int, n: int, dtype: torch.dtype, f: Reduce, offset: int, header: bytes, end: float) -> None:
        """Sums n elements of each rank of this host into the area. Each rank sums a part."""
        seg, item = self.segment, size_of(dtype)
        piece = seg.slot // item

        def write(k: int) -> None:
            copy(seg.to_write(), pointer + k * piece * item, min(piece, n - k * piece) * item)

        def read(k: int) -> None:
            m = min(piece, n - k * piece)
            share = -(-m // self.size)
            a, b = min(m, self.rank * share), min(m, (self.rank + 1) * share)
            if b > a:
                self._combine(f, [seg.view(r, dtype)[a:b] for r in range(self.size)], self._tensor(offset + (k * piece + a) * item, b - a, dtype))

        self._local_steps(header, end, -(-n // piece), write, read)

    def _local_steps(self, header: bytes, end: float, steps: int, write: Callable[[int], None], read: Callable[[int], None]) -> None:
        for k in range(steps):
            write(k)
            self.segment.signal()
            self.segment.wait(header, end, False)
            read(k)
            self.segment.done()

    def abort(self) -> None:
        super().abort()
        if self.hosts is not None:
            self.hosts.abort("rank %d aborted the group" % self.me)

    def close(self) -> None:
        if self.hosts is not None:
            self.hosts.close()
        super().close()

    # -- collectives

    def barrier(self, header: bytes, end: float) -> None:
        self._compare(header, end)

    def all_reduce(self, x: Tensor, op: str, header: bytes, end: float) -> None:
        self._all_reduce(x, x, op, header, end)

    def reduce(self, x: Tensor, op: str, root: int, header: bytes, end: float) -> None:
        self._all_reduce(x, x if self.me == root else None, op, header, end)

    def _all_reduce(self, x: Tensor, out: Optional[Tensor], op: str, header: bytes, end: float) -> None:
        f = operation(op, x.dtype)
        self._compare(header, end)
        n, item, dtype = x.numel(), x.element_size(), x.dtype
        direct = dtype in _TYPES and op in _SUMS
        piece = (HALF if direct else HALF // self.count) // item
        for at in range(0, n, piece):
            m = min(piece, n - at)
            offset, address = self._piece()
            own = offset if direct else offset + self.host * piece * item
            self._reduced(x.data_ptr() + at * item, m, dtype, f, own, header, end)
            if direct:
                self._between(header, end, lambda hosts, left, offset=offset, m=m: hosts.all_reduce(offset, m, _TYPES[dtype], _SUMS[op], left))  # type: ignore[misc]
            else:  # an operation or a type that hosts do not sum: all get the sums of all
                takes = [(0, 0) if h == self.host else (offset + h * piece * item, m * item) for h in range(self.count)]
                self._between(header, end, lambda hosts, left, own=own, m=m, takes=takes: hosts.exchange(self._all_others((own, m * item)), takes, left))  # type: ignore[misc]
            if out is None:
                continue
            o = out[at : at + m]
            if direct:
                copy(o.data_ptr(), address, m * item)
            else:
                self._combine(f, [self._tensor(offset + h * piece * item, m, dtype) for h in range(self.count)], o)
            if op == "avg":
                _divide(o, self.world)

    def reduce_scatter(self, out: Tensor, blocks: Sequence[Tensor], op: str, header: bytes, end: float) -> None:
        f = operation(op, out.dtype)
        self._compare(header, end)
        n, item, dtype = out.numel(), out.element_size(), out.dtype
        most = len(self.members[self.host])
        piece = max(1, HALF // (self.world + self._most * self.count) // item // 16 * 16)
        for at in range(0, n, piece):
            m = min(piece, n - at)
            offset, _ = self._piece()
            sub = piece * item
            for r in range(self.world):  # sums of this host, for each rank
                self._reduced(blocks[r].data_ptr() + at * item, m, dtype, f, offset + self.place[r] * sub, header, end)
            got = offset + self.world * sub
            gives = [(0, 0) if h == self.host else (offset + self._first[h] * sub, len(self.members[h]) * sub) for h in range(self.count)]
            takes = [(0, 0) if h == self.host else (got + h * most * sub, most * sub) for h in range(self.count)]
            self._between(header, end, lambda hosts, left, gives=gives, takes=takes: hosts.exchange(gives, takes, left))  # type: ignore[misc]
            mine = self.place[self.me]
            starts = [offset + mine * sub if h == self.host else got + (h * most + self.rank) * sub for h in range(self.count)]
            o = out[at : at + m]
            self._combine(f, [self._tensor(s, m, dtype) for s in starts], o)
            if op == "avg":
                _divide(o, self.world)

    def _spread(self, x: Tensor, outs: Optional[Sequence[Tensor]], writes: bool, header: bytes, end: float) -> None:
        self._compare(header, end)
        n, pointer = x.numel() * x.element_size(), x.data_ptr()
        to = [o.data_ptr() for o in outs] if outs is not None else []
        piece = HALF // self.world
        for at in range(0, n, piece):
            m = min(piece, n - at)
            offset, address = self._piece()
            copy(address + self.place[self.me] * piece, pointer + at, m)
            ranges = [(offset + self._first[h] * piece, len(self.members[h]) * piece) for h in range(self.count)]
            takes = [(0, 0) if h == self.host else ranges[h] for h in range(self.count)]
            self._between(header, end, lambda hosts, left, mine=ranges[self.host], takes=takes: hosts.exchange(self._all_others(mine), takes, left))  # type: ignore[misc]
            for r, p in enumerate(to):
                copy(p + at, address + self.place[r] * piece, m)

    def gather(self, outs: Sequence[Tensor], x: Tensor, root: int, header: bytes, end: float) -> None:
        self._spread(x, outs if self.me == root else None, True, header, end)

    def broadcast(self, x: Tensor, root: int, header: bytes, end: float) -> None:
        self._compare(header, end)
        self._broadcast(x.data_ptr(), x.numel() * x.element_size(), root, header, end)

    def _broadcast(self, pointer: int, n: int, root: int, header: bytes, end: float) -> None:
        for at in range(0, n, HALF):
            m = min(HALF, n - at)
            offset, address = self._piece()
            if self.me == root:
                copy(address, pointer + at, m)
            self._between(header, end, lambda hosts, left, offset=offset, m=m: hosts.broadcast(self.where[root], offset, m, left))  # type: ignore[misc]
            if self.me != root:
                copy(pointer + at, address, m)

    def scatter(self, out: Tensor, blocks: Sequence[Tensor], root: int, header: bytes, end: float) -> None:
        self._compare(header, end)
        n = out.numel() * out.element_size()
        pointers, pointer = [b.data_ptr() for b in blocks], out.data_ptr()
        piece = HALF // self.world
        for at in range(0, n, piece):
            m = min(piece, n - at)
            offset, address = self._piece()
            for r, p in enumerate(pointers):
                copy(address + r * piece, p + at, m)
            self._between(header, end, lambda hosts, left, offset=offset: hosts.broadcast(self.where[root], offset, self.world * piece, left))  # type: ignore[misc]
            copy(pointer + at, address + self.me * piece, m)

    def all_to_all(self, outs: Sequence[Tensor], ins: Sequence[Tensor], header: bytes, end: float) -> None:
        world = self.world
        table = self._lengths(outs, ins, header, end)
        gives, takes = table[self.me][:world], table[self.me][world:]
        pointers, to = [x.data_ptr() for x in ins], [x.data_ptr() for x in outs]
        here = len(self.members[self.host])
        piece = max(1, HALF // (2 * self._most * world) // 16 * 16)
        for at in range(0, max(max(row[:world]) for row in table), piece):
            offset, address = self._piece()
            back = here * world * piece  # where what arrives begins
            for j in range(world):
                m = min(piece, gives[j] - at)
                if m > 0:  # by host of the receiver, sender, receiver
                    h = self.where[j]
                    slot = self._first[h] * here + self.rank * len(self.members[h]) + self.members[h].index(j)
                    copy(address + slot * piece, pointers[j] + at, m)
            ranges = [(offset + self._first[h] * here * piece, here * len(self.members[h]) * piece) for h in range(self.count)]
            gets = [(offset + back + self._first[h] * here * piece, here * len(self.members[h]) * piece) for h in range(self.count)]
            sent = [(0, 0) if h == self.host else r for h, r in enumerate(ranges)]
            received = [(0, 0) if h == self.host else r for h, r in enumerate(gets)]
            self._between(header, end, lambda hosts, left, sent=sent, received=received: hosts.exchange(sent, received, left))  # type: ignore[misc]
            for i in range(world):
                m = min(piece, takes[i] - at)
                if m > 0:
                    h = self.where[i]
                    base = address if h == self.host else address + back
                    slot = self._first[h] * here + self.members[h].index(i) * here + self.rank
                    copy(to[i] + at, base + slot * piece, m)


def begin(agent: Any, store: Any, prefix: str, name: str, segment: Segment, where: Sequence[int], rank: int, timeout: float) -> Across:
    """The collectives of a group, in a segment that is ready."""
    hosts = None
    if segment.rank == 0:
        hosts = agent.group(store, prefix + name, where[rank], max(where) + 1, segment.fd, segment.bytes_total, timeout, numbers(segment.names))
    return Across(segment, rank, where, hosts)
