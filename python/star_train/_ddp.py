"""Scripts of DistributedDataParallel: the job exchanges their gradients, and everything else stays theirs.

A communication hook hands each backward's buckets to the job and gets back their mean over all processes. Parameters, ``p.grad`` and optimizers are never touched, so what a
script makes of a mean (a GradScaler, several optimizers, a step that is left out, accumulation) is what it makes of Gloo's. The job asks for parameters and for the state
of optimizers when it needs them, at a checkpoint most often, and is answered in the next exchange.
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union, cast

import torch

from . import _cuda, _job, _link
from ._data import Loader
from ._job import Tensor
from ._link import StarError

# DistributedDataParallel keeps gradients in the type of their parameter; the job exchanges float32, which holds these.
_EXCHANGED = (torch.float32, torch.bfloat16, torch.float16)


class Exchange(_job.Session):
    """The part in the job of a process that exchanges gradients."""

    exchange = True

    def __init__(self, model: Any, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__()
        self.wrapper = model
        self.model = model.module
        self.own = True
        self.optimizer = cast(torch.optim.Optimizer, Optimizers(optimizers))
        self.waiting: List[Tuple[Any, Any]] = []  # buckets of this backward, and what the hook has promised for each
        self.places: Dict[int, torch.Tensor] = {}  # of gradients in the memory, by parameter
        self.shared: List[Tuple[torch.Tensor, torch.Tensor]] = []  # parameters, and their places in the memory
        self.kept: List[Tuple[torch.Tensor, torch.Tensor]] = []  # and other tensors
        self.mean = False  # the gradient in the memory is the mean
        self.behind = True  # the memory has parameters that the model has not
        self.rescale = 1.0  # of the mean
        self.since = 0  # when the last exchange ended, ns

    # The beginning.

    def _list(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        plain = _job._plain(model)
        named = [(plain(name), p) for name, p in model.named_parameters()]
        self.device = _cuda.device_of(named)
        reduced = {id(p) for p in self.wrapper._build_params_for_reducer()[0]}
        ignored = {plain(n.lstrip(".")) for n in self.wrapper.parameters_to_ignore}  # each process has its own
        saved = set(model.state_dict())
        buffers = [(plain(name), b) for name, b in model.named_buffers() if name in saved]
        at = 0
        for name, p in named:
            if id(p) in reduced:
                if p.dtype not in _EXCHANGED:
                    raise StarError("parameter %s is %s: the job exchanges float32, which does not hold it. Use model.float()" % (name, p.dtype), _link.EXIT_DISAGREE)
                self.params.append(Tensor(name, p, at))
                at += p.numel()
        kept = [(name, p) for name, p in named if id(p) not in reduced]  # frozen: checkpoints have them
        self._lay([(name, t) for name, t in kept + sorted(buffers, key=lambda b: b[1].is_complex()) if name not in ignored])

    def _map(self, m: _link.Memory) -> None:
        if self.device is not None:
            _cuda._pin(m)
        self.places = {id(t.tensor): _cuda.area(m, m.grad + 4 * t.at, t.tensor.numel()) for t in self.params}
        self.shared = [(t.tensor, _job._view(m, m.params + 4 * t.at, t.tensor)) for t in self.params]
        self.kept = [(t.tensor, _job._view(m, m.buffers + 4 * t.at, t.tensor, t.tensor.dtype)) for t in self.buffers]
        self._put()

    def _hook(self) -> None:
        pass

    def _put(self) -> None:
        """The memory gets what the model has."""
        for own, place in self.shared + self.kept:
            place.copy_(own.detach())

    def _take(self) -> None:
        """The model gets what is in the memory."""
        for own, place in self.shared + self.kept:
            if not torch.equal(own.detach().to("cpu", place.dtype), place):
                own.data.copy_(place)

    # What the agent says.

    def _idle(self) -> bool:
        return super()._idle() and not self.mean

    def _next(self) -> None:
        super()._next()
        if self.pending is not None and self.behind:
            self.behind = False
            self._take()

    def _update(self, f: _link.Frame) -> None:
        """The gradient in the memory is the mean. What the script makes of it the job does not wait for."""
        assert self.link is not None
        self.mean = True
        self.link.updated(f.a)

    def _recalled(self, f: _link.Frame) -> None:
        self._put()
        super()._recalled(f)

    def _restore(self, f: _link.Frame) -> None:
        super()._restore(f)
        self.behind = True

    def _evaluate(self, f: _link.Frame) -> None:
        """With the buffers that are in the memory: the job has averaged them."""
        buffers = [(own, own.detach().clone(), place) for own, place in self.kept if not isinstance(own, torch.nn.Parameter)]
        for own, _, place in buffers:
            own.data.copy_(place)
        try:
            super()._evaluate(f)
        finally:
            for own, was, _ in buffers:
                own.data.copy_(was)

    def _finish(self) -> None:
        """The script is over. The job has counted its last update when it asks for another gradient."""
        assert self.link is not None
        if self.step == 0 or self.over:  # it has not begun, or the job has ended it
            return
        self._put()
        self.link.patience(60)
        self._next()
        self.link.patience(None)

    # A gradient.

    def bucket(self, bucket: Any) -> Any:
        """What the hook does."""
        if bucket.index() == 0:
            self.waiting.clear()  # of a backward that failed
        promise: Any = torch.futures.Future() if self.device is None else torch.futures.Future(devices=[self.device])
        self.waiting.append((bucket, promise))
        if bucket.is_last():
            try:
                self._exchange()
            except BaseException as e:
                self.failed = e  # DDP makes a RuntimeError of it
                raise
            for b, p in self.waiting:
                result = self._result(b)
                p.set_result(result if self.rescale == 1.0 else result.mul_(self.rescale))
            self.waiting.clear()
        return promise

    def _exchange(self) -> None:
        assert self.link is not None
        self.rescale = self._scaled()
        self._next()
        while self.pending is not None:  # again where a process was lost in the middle
            for bucket, _ in self.waiting:
                for place, part in self._parts(bucket):
                    place.copy_(part, non_blocking=True)
            if self.device is not None:
                _cuda.cuda.current_stream(self.device).synchronize()
            f, self.pending = self.pending, None
            self.computed += 1
            self.link.done(f.a, float(self.loss), 0, time.perf_counter_ns() - self.since)
            self._next()
        if self.over:
            sys.stderr.write("star_train: the job was ended from outside, so this process ends in the middle of its loop\n")
            raise SystemExit(0)
        self.mean = False
        self.begun()

    def _scaled(self) -> float:
        """What the mean is multiplied by: model.join(divide_by_initial_world_size=False) leaves those out that have run out of data."""
        if getattr(self.wrapper, "_divide_by_initial_world_size", True):
            return 1.0
        trains = torch.ones(1) if not torch.is_grad_enabled() else torch.zeros(1)  # not in a backward: join() calls the hook
        reduce: Any = torch.distributed.all_reduce
        reduce(trains, group=self.wrapper.process_group)
        return torch.distributed.get_world_size(self.wrapper.process_group) / max(float(trains), 1.0)

    def begun(self) -> None:
        """The next gradient is the script's affair now."""
        self.step, self.losses, self.loss, self.since = 1, 0, 0.0, time.perf_counter_ns()

    def _parts(self, bucket: Any) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
        """Places in the memory, and what of a bucket belongs there, flat: which element is which is DDP's affair, and alike in all processes."""
        buffer = bucket.buffer()
        if buffer.is_sparse:
            buffer = buffer.to_dense().reshape(-1)
        at = 0
        for p in bucket.parameters():
            place = self.places.get(id(p))
            if place is None:
                raise StarError("a parameter of shape %s is unknown to star.ddp_hook: set requires_grad before DistributedDataParallel" % list(p.shape), _link.EXIT_USAGE)
            yield place, buffer[at : at + p.numel()]
            at += p.numel()

    def _result(self, bucket: Any) -> torch.Tensor:
        """The mean, in the form that DDP expects."""
        buffer: torch.Tensor = bucket.buffer()
        if buffer.is_sparse:  # of one parameter; a row with mean 0 is left out
            (p,) = bucket.parameters()
            return cast(torch.Tensor, self.places[id(p)].view(p.shape).to(buffer.device, buffer.dtype).to_sparse(buffer.sparse_dim()))
        for place, part in self._parts(bucket):
            part.copy_(place, non_blocking=True)  # the memory stays as it is until the next exchange
        return buffer


class Optimizers:
    """All optimizers of a script as one, for the job: their states, one after the other."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.all = optimizers

    @property
    def param_groups(self) -> List[Dict[str, Any]]:
        return [g for o in self.all for g in o.param_groups]

    def state_dict(self) -> "Dict[str, Any]":
        out: Dict[str, Any] = {"state": {}, "param_groups": []}
        first = 0
        for o in self.all:
            own = o.state_dict()
            out["state"].update({first + i if isinstance(i, int) else i: v for i, v in own["state"].items()})
            out["param_groups"] += [dict(g, params=[first + i for i in g["params"]]) for g in own["param_groups"]]
            first += sum(len(g["params"]) for g in own["param_groups"])
        return out

    def load_state_dict(self, state: "Dict[str, Any]") -> None:
        first, groups = 0, list(state["param_groups"])
        for o in self.all:
            own, groups = groups[: len(o.param_groups)], groups[len(o.param_groups) :]
            end = first + sum(len(g["params"]) for g in own)
            o.load_state_dict(
                {
                    "state": {i - first: v for i, v in state["state"].items() if first <= i < end},
                    "param_groups": [dict(g, params=[i - first for i in g["params"]]) for g in own],
                }
            )
            first = end


class Part:
    """What DDP keeps of the hook. In a copy of the model it is of no use, and in no one's way."""

    def __init__(self, exchange: Optional[Exchange] = None) -> None:
        self.exchange = exchange

    def __reduce__(self) -> Any:
        return (Part, ())


def _hook(part, bucket):  # type: ignore[no-untyped-def]  # DDP looks at annotations
    if part.exchange is None:
        raise StarError("this DistributedDataParallel is a copy, by pickle or copy.deepcopy, of the one that star.ddp_hook was given: train that one", _link.EXIT_USAGE)
    return part.exchange.bucket(bucket)


def join(model: Any, optimizers: Sequence[torch.optim.Optimizer], loader: Loader, test: Any = None) -> Exchange:
    """Joins the job, and has it exchange the gradients of model from now on."""
    e = Exchange(model, optimizers)
    e.loader, e.test = loader, test
    e.begin()
    if e.over:
        return e
    e.begun()
    model.register_comm_hook(Part(e), _hook)
    return e


def ddp_hook(model: Any, optimizer: Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer]], *, samples: int, batch_size: int = 32, epochs: float = 0) -> Any:
    """Has a script of DistributedDataParallel exchange its gradients in the ring of a job (--arch allreduce), which goes on without processes that die.

    model is DistributedDataParallel(…); the optimizer, or a list of several, is given back as it is: the job saves and restores its state. The loop, the data and the end are
    the script's: the job counts its progress by samples, which an epoch has, batch_size of one process, and epochs. All ranks must start.
    """
    s = _job.current()
    if s is None:
        return optimizer
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise StarError("star.ddp_hook needs the model as DistributedDataParallel(model), it is %s" % type(model).__name__, _link.EXIT_USAGE)
    if s.model is not None:
        raise StarError("star.attach or star.ddp_hook was called before in this process: a process is one worker, and trains one model", _link.EXIT_USAGE)
    several = not isinstance(optimizer, torch.optim.Optimizer)
    optimizers = list(cast(Any, optimizer)) if several else [cast(torch.optim.Optimizer, optimizer)]
    if not optimizers or not all(isinstance(o, torch.optim.Optimizer) for o in optimizers):
        raise StarError("star.ddp_hook needs an optimizer, or a list of them, not %r" % (optimizer,), _link.EXIT_USAGE)
    if samples < 1 or batch_size < 1:
        raise StarError("star.ddp_hook(samples=%d, batch_size=%d): want at least 1" % (samples, batch_size), _link.EXIT_USAGE)
    _warn(model)
    _job.session = e = join(model, optimizers, Loader(torch.utils.data.DataLoader(cast(Any, range(samples)), batch_size), batch_size, 1, epochs, samples, {}), s.test)
    if e.over:  # it came when the job was over
        raise SystemExit(0)
    return optimizer


def _warn(model: Any) -> None:
    """Says what DDP exchanges itself in each step: there a process that dies ends the others."""
    buffers = getattr(model, "broadcast_buffers", False) and any(True for _ in model.buffers())
    norm = any(isinstance(m, torch.nn.SyncBatchNorm) for m in model.modules())
    for there, what in (
        (buffers, "sends buffers around in each step: give it broadcast_buffers=False"),
        (getattr(model, "find_unused_parameters", False), "asks all processes in each step which parameters were used: find_unused_parameters=False"),
        (norm, "has SyncBatchNorm, which collects statistics from all processes"),
    ):
        if there:
            warnings.warn("star.ddp_hook: where a process dies the others end, too, because DistributedDataParallel %s, if the job is to go on" % what, stacklevel=3)
