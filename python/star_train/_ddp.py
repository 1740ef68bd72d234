"""Scripts of DistributedDataParallel: the ring of a job exchanges their gradients."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Tuple, cast

import torch

from . import _job, _link
from ._data import Loader
from ._link import StarError
from ._optimizer import attach


class Buckets:
    """The gradients of a script of DistributedDataParallel: a hook collects its buckets, and the last one exchanges all of them in the job's ring."""

    def __init__(self, session: _job.Session) -> None:
        self.session = session
        self.waiting: List[Tuple[Any, Any]] = []  # buckets, with what their gradients are promised by
        self.update = 0  # of the job, that the optimizer is to make; 0: none
        self.places: Dict[int, torch.Tensor] = {}  # of parameters, in the memory
        self.failed: Optional[StarError] = None  # which backward makes another error of

    def hook(self, bucket: Any) -> Any:
        gpu = self.session.gpu
        promise: Any = torch.futures.Future() if gpu is None else torch.futures.Future(devices=[gpu.device])
        self.waiting.append((bucket, promise))
        if bucket.is_last():
            try:
                self._exchange()
            except StarError as e:
                self.failed = e
                raise
            for b, p in self.waiting:
                for parameter, gradient in zip(b.parameters(), b.gradients()):
                    gradient.copy_(self.places[id(parameter)], non_blocking=True)  # from memory that stays until the step
                p.set_result(b.buffer())
            self.waiting.clear()
        return promise

    def _exchange(self) -> None:
        s = self.session
        if self.update:
            raise StarError("backward came twice before opt.step(): DistributedDataParallel's no_sync() is for all but the last one", _link.EXIT_USAGE)
        if not self.places:
            self.places = {id(t.tensor): grad for t, grad in zip(s.params, s.grads)}
        while not s.over and not self.update:  # the job asks again where a member was lost in the middle
            if s.step == 0:
                s.give()
            for grad in s.grads:
                grad.zero_()
            for bucket, _ in self.waiting:
                for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
                    self.places[id(parameter)].copy_(gradient, non_blocking=True)
            if s.gpu is not None:
                s.gpu.wait()
            s.loaded = max(s.loaded, s.asked)
            s.hand(s.loss if s.losses else 0.0)
            s._next()
        if s.over:
            raise StarError("the job is over, and the script goes on: give the job as many --epochs, or --steps, as the script has", _link.EXIT_USAGE)

    def stepped(self) -> None:
        s = self.session
        assert s.link is not None
        if not self.update:
            return  # a step without a gradient
        update, self.update = self.update, 0
        if s.gpu is not None:
            s.gpu.give_parameters()
        s.link.updated(update)
        s._next()
        if not s.over:
            s.give()
            s.loaded = time.perf_counter_ns()


def ddp_hook(model: Any, optimizer: torch.optim.Optimizer, *, samples: int, batch_size: int = 32, epochs: float = 0) -> torch.optim.Optimizer:
    """Has a script of DistributedDataParallel exchange gradients in the ring of a job (--arch allreduce), which goes on without those who die.

    model is DistributedDataParallel(…, broadcast_buffers=False); the optimizer, which is given back, makes its steps in this process. The loop and the data stay the
    script's: samples is how many an epoch has, and batch_size that of one process, by which the job counts. All ranks must start.
    """
    s = _job.current()
    if s is None:
        return optimizer
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise StarError("star.ddp_hook needs the model as DistributedDataParallel(model, broadcast_buffers=False), it is %s" % type(model).__name__, _link.EXIT_USAGE)
    if getattr(model, "broadcast_buffers", False) and any(True for _ in model.buffers()):
        raise StarError("DistributedDataParallel sends buffers around in each step, which hangs when a rank dies: give it broadcast_buffers=False", _link.EXIT_USAGE)
    attach(model.module, optimizer, overlap=False, own=True)
    s.loader = Loader(torch.utils.data.DataLoader(cast(Any, range(samples)), batch_size), batch_size, 1, epochs, samples, {})
    s.ddp = Buckets(s)
    s.begin()
    if not s.over:
        s.give()
        s.loaded = s.asked
    buckets = s.ddp
    model.register_comm_hook(None, lambda state, bucket: buckets.hook(bucket))
    return optimizer
