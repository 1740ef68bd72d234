"""Collectives of the ranks of one host over shared memory (``_shm``). Part of the backend (``docs/backend.md``).

Tensors are dense vectors in host memory here. Each element of a sum is made by one rank, or by all in the same order, so that all ranks get the same bits.
A call is a few steps; a large tensor goes in pieces that fit caches.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from ._shm import LAG, BackendError, Segment, copy

# Elements from which PyTorch divides an operation among threads. A thread that is not the program's would start threads of its own for it.
GRAIN = 32768

# Up to this number of bytes each rank reads all of each other's data (one step); beyond, each rank reduces one part (about half of the memory traffic with 4 ranks).
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

    def _steps(self, header: bytes, end: float, steps: int, write: Optional[Callable[[int], None]], read: Optional[Callable[[int], None]], lag: int = LAG) -> None:
        """One collective: write(k) fills this rank's slot for step k, and read(k) uses all slots. Before write(k), read(k - lag) is over."""
        seg = self.segment
        seg.begin(header)
        lag = min(lag, steps)
        for t in range(steps + lag - 1):
            if t < steps:
                if write is not None:
                    write(t)
                seg.signal()
            if t >= lag - 1:
                seg.wait(header, end, t == lag - 1)
                if read is not None:
                    read(t - lag + 1)
                seg.done()

    def abort(self) -> None:
        """Ends a collective that waits, in another thread."""
        self.segment.stopping = True

    def close(self) -> None:
        self.segment.close()

    def barrier(self, header: bytes, end: float) -> None:
        self._steps(header, end, 1, None, None)

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
        n = x.numel()
        if self.size == 2 or n * x.element_size() <= _WHOLE or n < self.size:
            self._reduce_whole(x, f, op, True, header, end)
        else:
            self._reduce_parts(x, f, op, header, end)

    def _reduce_whole(self, x: Tensor, f: Reduce, op: str, reads: bool, header: bytes, end: float) -> None:
        """Each rank writes all of its data; those that read reduce all of it."""
        seg, n, item = self.segment, x.numel(), x.element_size()
        pointer, piece = x.data_ptr(), seg.slot // item

        def write(k: int) -> None:
            copy(seg.to_write(), pointer + k * piece * item, min(piece, n - k * piece) * item)

        def read(k: int) -> None:
            at, m = k * piece, min(piece, n - k * piece)
            if m > 0:
                out = x if m == n else x[at : at + m]
                views = [seg.view(r, x.dtype) for r in range(self.size)]
                self._combine(f, views if m == piece else [v[:m] for v in views], out)
                if op == "avg":
                    _divide(out, self.size)

        self._steps(header, end, max(1, -(-n // piece)), write, read if reads else None)

    def _reduce_parts(self, x: Tensor, f: Reduce, op: str, header: bytes, end: float) -> None:
        """Each rank reduces a part of each piece. A step carries the contributions to a piece, and the results of an earlier one."""
        seg, n, item, size, me = self.segment, x.numel(), x.element_size(), self.size, self.rank
        part = max(1, min(seg.slot // size // item, -(-n // size)))  # elements
        pieces = -(-n // (part * size))
        pointer, sub = x.data_ptr(), part * item
        lag = min(LAG, pieces)

        def range_of(piece: int, owner: int) -> Tuple[int, int]:
            a = min(n, piece * part * size + owner * part)
            return a, min(n, a + part) - a

        def write(k: int) -> None:
            slot = seg.to_write()
            if k < pieces:
                for j in self._others:
                    a, m = range_of(k, j)
                    copy(slot + j * sub, pointer + a * item, m * item)
            if k >= lag:
                a, m = range_of(k - lag, me)
                copy(slot + me * sub, pointer + a * item, m * item)

        def read(k: int) -> None:
            if k >= lag:
                slots = seg.to_read()
                for j in self._others:
                    a, m = range_of(k - lag, j)
                    copy(pointer + a * item, slots[j] + j * sub, m * item)
            if k < pieces:
                a, m = range_of(k, me)
                if m > 0:
                    out, at = x[a : a + m], me * part
                    self._combine(f, [out] + [seg.view(r, x.dtype)[at : at + m] for r in self._others], out)
                    if op == "avg":
                        _divide(out, size)

        self._steps(header, end, pieces + lag, write, read, lag)

    def reduce(self, x: Tensor, op: str, root: int, header: bytes, end: float) -> None:
        self._reduce_whole(x, operation(op, x.dtype), op, self.rank == root, header, end)

    def reduce_scatter(self, out: Tensor, blocks: Sequence[Tensor], op: str, header: bytes, end: float) -> None:
        """blocks: one for each rank, each as large as out. out may be a part of this rank's block's memory."""
        f = operation(op, out.dtype)
        seg, n, item, me = self.segment, out.numel(), out.element_size(), self.rank
        part = max(1, seg.slot // self.size // item)
        sub, pointers, own = part * item, [b.data_ptr() for b in blocks], blocks[me]

        def write(k: int) -> None:
            slot, m = seg.to_write(), min(part, n - k * part) * item
            for j in self._others:
                copy(slot + j * sub, pointers[j] + k * sub, m)

        def read(k: int) -> None:
            at, m = k * part, min(part, n - k * part)
            if m > 0:
                o = out[at : at + m]
                self._combine(f, [own[at : at + m]] + [seg.view(r, out.dtype)[me * part : me * part + m] for r in self._others], o)
                if op == "avg":
                    _divide(o, self.size)

        self._steps(header, end, max(1, -(-n // part)), write, read)

    def all_gather(self, outs: Sequence[Tensor], x: Tensor, header: bytes, end: float) -> None:
        self._spread(x, outs, True, header, end)

    def gather(self, outs: Sequence[Tensor], x: Tensor, root: int, header: bytes, end: float) -> None:
        self._spread(x, outs if self.rank == root else None, self.rank != root, header, end)

    def _spread(self, x: Tensor, outs: Optional[Sequence[Tensor]], writes: bool, header: bytes, end: float) -> None:
        """Ranks write their data; those with outs copy all of it."""
        seg, n, me = self.segment, x.numel() * x.element_size(), self.rank
        pointer, piece = x.data_ptr(), seg.slot
        to = [o.data_ptr() for o in outs] if outs is not None else []
        if to and n > 0 and to[me] != pointer:
            copy(to[me], pointer, n)

        def write(k: int) -> None:
            copy(seg.to_write(), pointer + k * piece, min(piece, n - k * piece))

        def read(k: int) -> None:
            m, slots = min(piece, n - k * piece), seg.to_read()
            for j in self._others:
                copy(to[j] + k * piece, slots[j], m)

        self._steps(header, end, max(1, -(-n // piece)), write if writes else None, read if to else None)

    def broadcast(self, x: Tensor, root: int, header: bytes, end: float) -> None:
        seg, n = self.segment, x.numel() * x.element_size()
        pointer, piece = x.data_ptr(), seg.slot

        def write(k: int) -> None:
            copy(seg.to_write(), pointer + k * piece, min(piece, n - k * piece))

        def read(k: int) -> None:
            copy(pointer + k * piece, seg.to_read()[root], min(piece, n - k * piece))

        mine = self.rank == root
        self._steps(header, end, max(1, -(-n // piece)), write if mine else None, None if mine else read)

    def scatter(self, out: Tensor, blocks: Sequence[Tensor], root: int, header: bytes, end: float) -> None:
        seg, n, me = self.segment, out.numel() * out.element_size(), self.rank
        sub = seg.slot // self.size // 16 * 16
        pointer, pointers = out.data_ptr(), [b.data_ptr() for b in blocks]
        if me == root and pointers[me] != pointer:
            copy(pointer, pointers[me], n)

        def write(k: int) -> None:
            slot, m = seg.to_write(), min(sub, n - k * sub)
            for j in self._others:
                copy(slot + j * sub, pointers[j] + k * sub, m)

        def read(k: int) -> None:
            copy(pointer + k * sub, seg.to_read()[root] + me * sub, min(sub, n - k * sub))

        self._steps(header, end, max(1, -(-n // sub)), write if me == root else None, None if me == root else read)

    def _lengths(self, outs: Sequence[Tensor], ins: Sequence[Tensor], header: bytes, end: float) -> List[List[int]]:
        """For each rank the bytes that it sends to each, then the bytes that it expects from each."""
        own = torch.tensor([t.numel() * t.element_size() for t in [*ins, *outs]], dtype=torch.int64)
        rows = [torch.empty_like(own) for _ in ins]
        self._spread(own, rows, True, header, end)
        table, size = [row.tolist() for row in rows], len(rows)
        for i in range(size):
            for j in range(size):
                if table[i][j] != table[j][size + i]:
                    self.segment.fail(
                        "cannot complete an all-to-all: rank %d sends %d bytes to rank %d, which expects %d; check the split sizes" % (i, table[i][j], j, table[j][size + i])
                    )
        return table

    def all_to_all(self, outs: Sequence[Tensor], ins: Sequence[Tensor], header: bytes, end: float) -> None:
        """ins and outs may differ in length by rank: the first collective tells all lengths."""
        seg, size, me = self.segment, self.size, self.rank
        sub = seg.slot // size // 16 * 16
        table = self._lengths(outs, ins, header, end)
        gives, takes = table[me][:size], table[me][size:]
        most = max((table[i][j] for i in range(size) for j in range(size) if i != j), default=0)
        pointers, to = [x.data_ptr() for x in ins], [x.data_ptr() for x in outs]
        if gives[me] > 0 and to[me] != pointers[me]:
            copy(to[me], pointers[me], gives[me])

        def write(k: int) -> None:
            slot = seg.to_write()
            for j in self._others:
                m = min(sub, gives[j] - k * sub)
                if m > 0:
                    copy(slot + j * sub, pointers[j] + k * sub, m)

        def read(k: int) -> None:
            slots = seg.to_read()
            for j in self._others:
                m = min(sub, takes[j] - k * sub)
                if m > 0:
                    copy(to[j] + k * sub, slots[j] + me * sub, m)

        if most > 0:
            self._steps(header, end, -(-most // sub), write, read)


def dense(x: Any) -> bool:
    """Whether a tensor's elements lie in host memory in order, as the collectives here need."""
    return bool(x.is_cpu and x.layout is torch.strided and x.is_contiguous() and not x.is_conj() and not x.is_neg())
