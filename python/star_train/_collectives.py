"""Collectives of the ranks of one host over shared memory (``_shm``). Part of the backend (``docs/backend.md``).

Tensors are dense vectors in host memory here. Each element of a sum is made by one rank, or by all in the same order, so that all ranks get the same bits.
A call is a few steps; a large tensor goes in pieces that fit caches.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from ._shm import BackendError, Segment, copy

# Elements from which PyTorch divides an operation among threads. A thread that is not the program's would start threads of its own for it.
GRAIN = 32768

# Up to so many bytes each rank reads all of each other's data (one step); beyond, each rank reduces one part (about half of the memory traffic with 4 ranks).
_WHOLE = 64 << 10

Tensor = torch.Tensor
Reduce = Callable[..., Tensor]


def _lookup() -> Dict[str, Reduce]:
    return {
        "sum": torch.add,
        "avg": torch.add,
        "premul_sum": torch.add,
        "product": torch.mul,
        "min": torch.minimum,
        "max": torch.maximum,
        "band": torch.bitwise_and,
        "bor": torch.bitwise_or,
        "bxor": torch.bitwise_xor,
    }


_OPERATIONS = _lookup()
_checked: Dict[Tuple[str, torch.dtype], Reduce] = {}


def operation(op: str, dtype: torch.dtype) -> Reduce:
    """The function of a reduction, or an error if PyTorch lacks it for a type: before a rank has signalled, so on all ranks alike."""
    got = _checked.get((op, dtype))
    if got is None:
        f = _OPERATIONS.get(op)
        try:
            if f is None:
                raise TypeError("no such operation")
            x = torch.zeros(2, dtype=dtype)
            f(x, x, out=x)
            if op == "avg":
                _divide(x, 2)
        except (RuntimeError, TypeError) as e:
            raise BackendError("cannot reduce %s by %s: %s; convert the tensor to another dtype, or choose another operation" % (str(dtype)[6:], op, e)) from e
        got = _checked[op, dtype] = f
    return got


def _divide(x: Tensor, by: int) -> None:
    if x.dtype.is_floating_point or x.dtype.is_complex:
        x.div_(by)
    else:
        x.div_(by, rounding_mode="trunc")


class Local:
    """Collectives over a segment. header says what this rank calls, end is its deadline (time.monotonic)."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.rank, self.size = segment.rank, segment.size
        self._others = [r for r in range(self.size) if r != self.rank]

    def barrier(self, header: bytes, end: float) -> None:
        self.segment.begin(header)
        self._step(header, end, True)
        self.segment.done()

    def _step(self, header: bytes, end: float, first: bool) -> None:
        self.segment.exchange(header, end, first)

    def _combine(self, f: Reduce, parts: Sequence[Tensor], out: Tensor) -> None:
        """out = parts[0] + parts[1] + …, where + is f."""
        n = out.numel()
        step = n if n <= GRAIN or torch.get_num_threads() == 1 else GRAIN
        for a in range(0, n, step):
            b = min(n, a + step)
            if a == 0 and b == n:
                o, p = out, parts
            else:
                o, p = out[a:b], [x[a:b] for x in parts]
            if len(p) == 1:
                if o.data_ptr() != p[0].data_ptr():
                    o.copy_(p[0])
                continue
            f(p[0], p[1], out=o)
            for x in p[2:]:
                f(o, x, out=o)

    def all_reduce(self, x: Tensor, op: str, header: bytes, end: float) -> None:
        f = operation(op, x.dtype)
        n, item, size = x.numel(), x.element_size(), self.size
        self.segment.begin(header)
        if size == 2 or n * item <= _WHOLE or n < size:
            self._reduce_whole(x, f, op, range(size), header, end)
        else:
            self._reduce_parts(x, f, op, header, end)

    def _reduce_whole(self, x: Tensor, f: Reduce, op: str, readers: Sequence[int], header: bytes, end: float) -> None:
        """Each rank writes all of its data; readers reduce all of it."""
        seg, n, item = self.segment, x.numel(), x.element_size()
        at, piece, first = 0, seg.slot // x.element_size(), True
        pointer, reads = x.data_ptr(), self.rank in readers
        while first or at < n:
            m = min(piece, n - at)
            copy(seg.addresses()[self.rank], pointer + at * item, m * item)
            self._step(header, end, first)
            if reads and m > 0:
                out = x if m == n else x[at : at + m]
                self._combine(f, [seg.view(r, x.dtype)[:m] for r in range(self.size)], out)
                if op == "avg":
                    _divide(out, self.size)
            seg.done()
            at, first = at + m, False

    def _reduce_parts(self, x: Tensor, f: Reduce, op: str, header: bytes, end: float) -> None:
        """Each rank reduces a part of each piece. A step carries the results of a piece and the contributions to the next one."""
        seg, n, item, size, me = self.segment, x.numel(), x.element_size(), self.size, self.rank
        most = seg.slot // size // item // 16 * 16  # elements of a part
        part = max(1, min(most, -(-n // size)))
        pieces = -(-n // (part * size))
        pointer, sub = x.data_ptr(), part * item

        def range_of(piece: int, owner: int) -> Tuple[int, int]:
            a = min(n, piece * part * size + owner * part)
            return a, min(n, a + part)

        for t in range(pieces + 1):
            slot = seg.addresses()[me]
            if t < pieces:
                for j in range(size):
                    if j != me:
                        a, b = range_of(t, j)
                        if b > a:
                            copy(slot + j * sub, pointer + a * item, (b - a) * item)
            if t > 0:  # this rank's result of the piece before is already in the tensor
                a, b = range_of(t - 1, me)
                if b > a:
                    copy(slot + me * sub, pointer + a * item, (b - a) * item)
            self._step(header, end, t == 0)
            if t > 0:
                slots = seg.addresses()
                for j in range(size):
                    if j != me:
                        a, b = range_of(t - 1, j)
                        if b > a:
                            copy(pointer + a * item, slots[j] + j * sub, (b - a) * item)
            if t < pieces:
                a, b = range_of(t, me)
                if b > a:
                    out = x[a:b]
                    at = me * part
                    self._combine_own(f, out, at, b - a)
                    if op == "avg":
                        _divide(out, size)
            seg.done()

    def _combine_own(self, f: Reduce, own: Tensor, at: int, n: int) -> None:
        """Reduces this rank's own data, in place, with what the others' slots have at an element."""
        seg = self.segment
        self._combine(f, [own] + [seg.view(r, own.dtype)[at : at + n] for r in self._others], own)

    def reduce(self, x: Tensor, op: str, root: int, header: bytes, end: float) -> None:
        f = operation(op, x.dtype)
        self.segment.begin(header)
        self._reduce_whole(x, f, op, (root,), header, end)

    def reduce_scatter(self, out: Tensor, blocks: Sequence[Tensor], op: str, header: bytes, end: float) -> None:
        """blocks: one for each rank, each as large as out. out may be a part of this rank's block's memory."""
        f = operation(op, out.dtype)
        seg, n, item, size, me = self.segment, out.numel(), out.element_size(), self.size, self.rank
        part = max(1, min(n, seg.slot // size // item // 16 * 16))
        sub, pointers, own = part * item, [b.data_ptr() for b in blocks], blocks[me]
        seg.begin(header)
        at, first = 0, True
        while first or at < n:
            m = min(part, n - at)
            slot = seg.addresses()[me]
            for j in range(size):
                if j != me:
                    copy(slot + j * sub, pointers[j] + at * item, m * item)
            self._step(header, end, first)
            if m > 0:
                o = out[at : at + m]
                self._combine(f, [own[at : at + m]] + [seg.view(r, out.dtype)[me * part : me * part + m] for r in self._others], o)
                if op == "avg":
                    _divide(o, size)
            seg.done()
            at, first = at + m, False

    def all_gather(self, outs: Sequence[Tensor], x: Tensor, header: bytes, end: float) -> None:
        self._spread(x, outs, range(self.size), header, end)

    def gather(self, outs: Optional[Sequence[Tensor]], x: Tensor, root: int, header: bytes, end: float) -> None:
        self._spread(x, outs, (root,), header, end)

    def _spread(self, x: Tensor, outs: Optional[Sequence[Tensor]], readers: Sequence[int], header: bytes, end: float) -> None:
        """Each rank writes its data; readers copy all of it."""
        seg, n, me = self.segment, x.numel() * x.element_size(), self.rank
        pointer = x.data_ptr()
        to = [o.data_ptr() for o in outs] if outs is not None and me in readers else None
        seg.begin(header)
        if to is not None and n > 0 and to[me] != pointer:
            copy(to[me], pointer, n)
        writes = any(r != me for r in readers)
        at, first = 0, True
        while first or at < n:
            m = min(seg.slot, n - at)
            slots = seg.addresses()
            if writes:
                copy(slots[me], pointer + at, m)
            self._step(header, end, first)
            if to is not None:
                for j in range(self.size):
                    if j != me:
                        copy(to[j] + at, slots[j], m)
            seg.done()
            at, first = at + m, False

    def broadcast(self, x: Tensor, root: int, header: bytes, end: float) -> None:
        seg, n = self.segment, x.numel() * x.element_size()
        pointer = x.data_ptr()
        seg.begin(header)
        at, first = 0, True
        while first or at < n:
            m = min(seg.slot, n - at)
            slot = seg.addresses()[root]
            if self.rank == root:
                copy(slot, pointer + at, m)
            self._step(header, end, first)
            if self.rank != root:
                copy(pointer + at, slot, m)
            seg.done()
            at, first = at + m, False

    def scatter(self, out: Tensor, blocks: Optional[Sequence[Tensor]], root: int, header: bytes, end: float) -> None:
        seg, n, size, me = self.segment, out.numel() * out.element_size(), self.size, self.rank
        sub = seg.slot // size // 16 * 16
        pointers = [b.data_ptr() for b in blocks] if blocks is not None else []
        seg.begin(header)
        at, first = 0, True
        while first or at < n:
            m = min(sub, n - at)
            slot = seg.addresses()[root]
            if me == root:
                for j in range(size):
                    copy(slot + j * sub if j != me else out.data_ptr() + at, pointers[j] + at, m)
            self._step(header, end, first)
            if me != root:
                copy(out.data_ptr() + at, slot + me * sub, m)
            seg.done()
            at, first = at + m, False

    def all_to_all(self, outs: Sequence[Tensor], ins: Sequence[Tensor], header: bytes, end: float) -> None:
        """ins and outs may differ in length by rank: the first step tells all lengths."""
        seg, size, me = self.segment, self.size, self.rank
        sub = seg.slot // size // 16 * 16
        gives = [x.numel() * x.element_size() for x in ins]
        takes = [x.numel() * x.element_size() for x in outs]
        seg.begin(header)
        seg.view(me, torch.int64)[: 2 * size].copy_(torch.tensor(gives + takes, dtype=torch.int64))
        self._step(header, end, True)
        table = [seg.view(r, torch.int64)[: 2 * size].tolist() for r in range(size)]
        seg.done()
        for i in range(size):
            for j in range(size):
                if table[i][j] != table[j][size + i]:
                    seg.fail(
                        "cannot complete an all-to-all: rank %d sends %d bytes to rank %d, which expects %d; check the split sizes"
                        % (seg.names[i], table[i][j], seg.names[j], table[j][size + i])
                    )
        most = max((table[i][j] for i in range(size) for j in range(size) if i != j), default=0)
        pointers, to = [x.data_ptr() for x in ins], [x.data_ptr() for x in outs]
        if gives[me] > 0 and to[me] != pointers[me]:
            copy(to[me], pointers[me], gives[me])
        for at in range(0, most, sub):
            slots = seg.addresses()
            for j in range(size):
                m = min(sub, gives[j] - at)
                if j != me and m > 0:
                    copy(slots[me] + j * sub, pointers[j] + at, m)
            self._step(header, end, False)
            for j in range(size):
                m = min(sub, takes[j] - at)
                if j != me and m > 0:
                    copy(to[j] + at, slots[j] + me * sub, m)
            seg.done()


def dense(x: Any) -> bool:
    """Whether a tensor's elements lie in host memory in order, as the collectives here need."""
    return bool(x.is_cpu and x.layout is torch.strided and x.is_contiguous() and not x.is_conj() and not x.is_neg())

