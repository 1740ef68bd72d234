"""A model on a GPU: its tensors stay where they are, and what the job exchanges is copied between them and the memory that is shared with the agent.

The memory is registered with CUDA as pinned, so copies run beside the kernels. Gradients leave on a stream of their own, bucket by bucket, each as soon as backward has
made it. Parameters come back on the stream of the script, so that its kernels wait for them and the script does not. The memory has float32: parameters in bfloat16 or
float16 are roundings of what the job keeps.
"""

from __future__ import annotations

import warnings
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, cast

import torch

from . import _link, _tensors
from ._link import StarError

# Tensors that follow each other are copied together, up to that number of elements (4 MiB).
_BUCKET = 1 << 20

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

KIND = "cuda"
cuda: Any = torch.cuda

_foreach_copy: Optional[Callable[[List[torch.Tensor], List[torch.Tensor]], Any]] = getattr(torch, "_foreach_copy_", None)


class Place(NamedTuple):
    """A tensor, and where it is in its area of the memory, in words of 4 bytes. Typed: it lies there with its own type, else as float32."""

    tensor: torch.Tensor
    at: int
    typed: bool = False

    @property
    def size(self) -> int:
        n: int = self.tensor.numel()
        return -(-n * self.tensor.element_size() // 4) if self.typed else n

    def of(self, words: torch.Tensor) -> torch.Tensor:
        """The tensor's part of these words, which begin with it."""
        part = words[: self.size]
        if self.typed and self.tensor.dtype != torch.float32:
            part = part.view(self.tensor.dtype)[: self.tensor.numel()]
        return cast(torch.Tensor, part.view(self.tensor.shape))


class _Bucket:
    """Tensors at consecutive places."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = places
        self.low, self.high = places[0].at, places[-1].at + places[-1].size
        self.missing = len(places)  # gradients that backward has not made
        self.copied: Any = None  # the event after the copy of the gradient; True: it is over

    def read(self, area: torch.Tensor, device: torch.device, tensors: Sequence[Optional[torch.Tensor]]) -> None:
        """The memory gets tensors; None is zero. They are there when the current stream has come so far."""
        host, only = area[self.low : self.high], tensors[0]
        if len(tensors) == 1 and only is not None and only.dtype == torch.float32 and only.is_contiguous():
            host.copy_(only.detach().view(-1), non_blocking=True)
            return
        stage = self._stage(device)
        parts = self._parts(stage)
        for part, t in zip(parts, tensors):
            if t is None:
                part.zero_()
        _copy([p for p, t in zip(parts, tensors) if t is not None], [t.detach() for t in tensors if t is not None])
        host.copy_(stage, non_blocking=True)

    def write(self, area: torch.Tensor, device: torch.device, tensors: Sequence[torch.Tensor]) -> None:
        """Tensors get what is in the memory, for whatever comes later on the current stream."""
        host, only = area[self.low : self.high], tensors[0]
        if len(tensors) == 1 and only.dtype == torch.float32 and only.is_contiguous():
            only.view(-1).copy_(host, non_blocking=True)
            return
        stage = self._stage(device)
        stage.copy_(host, non_blocking=True)
        _copy(list(tensors), self._parts(stage))

    def _stage(self, device: torch.device) -> torch.Tensor:
        """Words like those of the memory, aligned as they are there. What no tensor fills is 0."""
        pad = self.low % 4
        typed = any(p.typed for p in self.places)
        whole = (torch.zeros if typed else torch.empty)(pad + self.high - self.low, dtype=torch.float32, device=device)
        return cast(torch.Tensor, whole[pad:])

    def _parts(self, stage: torch.Tensor) -> List[torch.Tensor]:
        return [p.of(stage[p.at - self.low :]) for p in self.places]


def _copy(to: List[torch.Tensor], of: List[torch.Tensor]) -> None:
    if _foreach_copy is not None:
        if to:
            _foreach_copy(to, of)
        return
    for a, b in zip(to, of):
        a.copy_(b)


class Mirror:
    """The tensors of a model on a GPU, and their places in the shared memory."""

    def __init__(self, device: torch.device, memory: _link.Memory, params: Sequence[Place], frozen: Sequence[Place], buffers: Sequence[Place]) -> None:
        """frozen are parameters without updates: with buffers in the memory, and before them."""
        self.device = device
        self.params, self.grads = area(memory, memory.params, memory.nparams), area(memory, memory.grad, memory.nparams)
        self.rest = area(memory, memory.buffers, memory.nbuffers)
        frozen, buffers = [p._replace(typed=True) for p in frozen], [p._replace(typed=True) for p in buffers]
        self.frozen = [(p, p.tensor._version) for p in frozen]
        self.buffers = _Bucket(buffers) if buffers else None
        self.first = True  # nothing has come from the job
        self.out = cuda.Stream(device)
        self.buckets: List[_Bucket] = []
        self.bucket: List[_Bucket] = []  # of each parameter
        _pin(memory)
        some: List[Place] = []
        for i, p in enumerate(params):
            some.append(p)
            if p.at + p.tensor.numel() - some[0].at >= _BUCKET or i == len(params) - 1:
                self.buckets.append(_Bucket(some))
                self.bucket += [self.buckets[-1]] * len(some)
                some = []
        self.give_parameters()
        for p in frozen:
            self._give(p)
        self.give_buffers()
        self.settle()

    def put(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """Another tensor has taken the place of one in the model."""
        for b in [*self.buckets, *([self.buffers] if self.buffers is not None else [])]:
            b.places = [Place(new, p.at) if p.tensor is old else p for p in b.places]
        self.frozen = [(Place(new, p.at), -1) if p.tensor is old else (p, version) for p, version in self.frozen]

    # To the job.

    def begin(self) -> None:
        """A gradient is to be made."""
        for b in self.buckets:
            b.missing, b.copied = len(b.places), None

    def started(self) -> bool:
        """Whether a part of the gradient has left."""
        return any(b.copied is not None for b in self.buckets)

    def completed(self, i: int) -> None:
        """Backward has made the gradient of a parameter, on the current stream."""
        b = self.bucket[i]
        b.missing -= 1
        if b.missing == 0:
            self._leave(b)

    def leave(self, again: bool) -> None:
        """What is left of the gradient leaves; again: all of it."""
        for b in reversed(self.buckets):
            if again or b.copied is None:
                self._leave(b)

    def _leave(self, b: _Bucket) -> None:
        made = cuda.Event()
        made.record(cuda.current_stream(self.device))
        self.out.wait_event(made)
        with cuda.stream(self.out):
            b.read(self.grads, self.device, [p.tensor.grad for p in b.places])
            b.copied = cuda.Event()
            b.copied.record(self.out)

    def there(self, wait: bool = False) -> int:
        """The element from which on the gradient is in the memory; wait: until one bucket more is, which has left."""
        low = int(self.grads.numel())
        for b in reversed(self.buckets):
            if b.copied is None:
                break
            if b.copied is not True:
                if wait:
                    b.copied.synchronize()
                    wait = False
                elif not b.copied.query():
                    break
                b.copied = True
            low = b.low
        return low

    def give_buffers(self) -> None:
        """The memory gets the buffers, by settle, and what the script has changed of frozen parameters."""
        for i, (p, version) in enumerate(self.frozen):
            if p.tensor._version != version:
                self.frozen[i] = (p, p.tensor._version)
                self._give(p)
        if self.buffers is not None:
            self.buffers.read(self.rest, self.device, [p.tensor for p in self.buffers.places])

    def settle(self) -> None:
        if self.buffers is not None:
            self.wait()
            self.known = self.rest[self.buffers.low :].clone()  # what the tensors have, as the memory had it

    def _give(self, p: Place) -> None:
        p.of(self.rest[p.at :]).copy_(p.tensor.detach())

    def give_parameters(self) -> None:
        """The memory gets the parameters."""
        for b in self.buckets:
            b.read(self.params, self.device, [p.tensor for p in b.places])
        self.wait()

    def wait(self) -> None:
        """Until the script's stream has come so far."""
        cuda.current_stream(self.device).synchronize()

    # From the job.

    def take(self, evaluate: bool = False) -> None:
        """The tensors get what the job has. For an evaluation numbers that are not floating-point stay as they are."""
        for b in self.buckets:
            b.write(self.params, self.device, [_tensors.data(p.tensor) for p in b.places])
        if self.first:
            self.first = False
            for p, _ in self.frozen:
                _tensors.data(p.tensor).copy_(p.of(self.rest[p.at :]))
        if self.buffers is None or _same(self.rest[self.buffers.low :], self.known):
            return
        for p in self.buffers.places:
            now = self.rest[p.at : p.at + p.size]
            was = self.known[p.at - self.buffers.low :][: p.size]
            if (p.tensor.is_floating_point() or p.tensor.is_complex() or not evaluate) and not _same(now, was):
                _tensors.data(p.tensor).copy_(p.of(now))
                was.copy_(now)

    def take_gradient(self) -> None:
        """Gradients get the mean of the job's."""
        for b in self.buckets:
            grads: List[torch.Tensor] = []
            for p in b.places:
                if p.tensor.grad is None:
                    p.tensor.grad = torch.empty_like(p.tensor)
                grads.append(p.tensor.grad.data)
            b.write(self.grads, self.device, grads)


def area(memory: _link.Memory, at: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """count elements of the memory from a byte on."""
    return torch.frombuffer(memory.map, dtype=dtype, count=count, offset=at) if count else torch.empty(0, dtype=dtype)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether words are the same bits."""
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def _pin(memory: _link.Memory) -> None:
    whole = torch.frombuffer(memory.map, dtype=torch.uint8)
    code = int(cuda.cudart().cudaHostRegister(whole.data_ptr(), whole.numel(), 0))
    if code != 0:
        warnings.warn(
            "star_train: CUDA does not pin the %d MB that are shared with the agent (cudaHostRegister: error %d), so copies are slower and wait"
            % (whole.numel() // 1_000_000, code),
            stacklevel=2,
        )


def device_of(named: Sequence[Tuple[str, torch.Tensor]]) -> Optional[torch.device]:
    """The GPU of a model; None: it is on the processor. Parameters on several devices, or on what is neither, are refused."""
    first, t = named[0]
    for name, p in named:
        if p.device.type not in ("cpu", KIND):
            raise StarError("%s is on %s: star_train trains on processors and on GPUs of CUDA (.to('cpu'), .to('cuda'))" % (name, p.device), _link.EXIT_DISAGREE)
        if p.device != t.device:
            raise StarError(
                "%s is on %s and %s on %s: a worker trains on one device; move the whole model there, and start a worker for each GPU" % (first, t.device, name, p.device),
                _link.EXIT_DISAGREE,
            )
    return t.device if t.device.type == KIND else None
