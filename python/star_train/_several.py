"""Several models, or optimizers, of one process, which take turns with each batch: a GAN, an actor and a critic.

Each ``opt.step()`` is an update of the job, of the mean gradient of what that optimizer has, and of nothing else. All workers make the steps of a batch in the order in which
star.attach was given the optimizers. Gradients stay the script's: what one backward leaves in the parameters of another optimizer is as in plain PyTorch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence, Union, cast

import torch

from . import _job, _link, _rule
from ._ddp import Optimizers
from ._link import StarError

if TYPE_CHECKING:
    from ._optimizer import Attached
    from ._schedule import Schedule

Models = Union[torch.nn.Module, Sequence[torch.nn.Module], Mapping[str, torch.nn.Module]]


def together(models: Models) -> torch.nn.Module:
    """One module of several: their names come before those of their tensors, or their numbers."""
    if isinstance(models, torch.nn.Module):
        return models
    named = dict(models) if isinstance(models, Mapping) else {str(i): m for i, m in enumerate(models)}
    for name, m in named.items():
        if not isinstance(m, torch.nn.Module):
            raise StarError("star.attach needs models, or a dict of them by their names, and %s is a %s" % (name, type(m).__name__), _link.EXIT_USAGE)
    if not named:
        raise StarError("star.attach was given no model", _link.EXIT_USAGE)
    whole: Any = type(", ".join(type(m).__name__ for m in named.values()), (torch.nn.ModuleDict,), {})
    return cast(torch.nn.Module, whole(named))


class Schedules:
    """The schedules of several optimizers."""

    def __init__(self) -> None:
        self.all: List[Schedule] = []

    def run(self, ld: Any, own: bool) -> List[float]:
        return [rate for f in self.all for rate in f.run(ld, own)]

    def show(self, position: int) -> None:
        for f in self.all:
            f.show(position)


class Several(_job.Session):
    """The part in the job of a process with several optimizers."""

    private = True

    def __init__(self, turns: Sequence[torch.optim.Optimizer], before: _job.Session) -> None:
        super().__init__()
        self.loader, self.test = before.loader, before.test
        self.turns = list(turns)  # the optimizers of the first, second and further updates of a batch
        self.distinct = list({id(o): o for o in turns}.values())
        self.optimizer = cast(torch.optim.Optimizer, Optimizers(self.distinct))
        self.mine: Dict[int, List[int]] = {}  # by optimizer: its parameters
        self.turn = 0  # of the step that the script makes next
        self.place = -1  # position of the batch in hand
        self.base = 0  # samples that the job has used before the batch
        self.made = [o for o in self.distinct if _rule.scheduled(o)]  # a scheduler was made before star.attach
        self.restored = False  # parameters and state have come from another worker

    # The beginning.

    def _list(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super()._list(model, optimizer)
        at = {id(t.tensor): i for i, t in enumerate(self.params)}
        self.mine = {id(o): sorted(at[id(p)] for g in o.param_groups for p in g["params"] if id(p) in at) for o in self.distinct}

    def _declare(self, about: "Dict[str, Any]") -> None:
        about["turns"] = len(self.turns)
        of = {id(o): i for i, o in enumerate(self.distinct)}
        about["optimizer"]["turns"] = [of[id(o)] for o in self.turns]  # workers that differ are refused

    def optimizers(self) -> List[torch.optim.Optimizer]:
        return self.distinct

    def _unfollowed(self, optimizer: torch.optim.Optimizer) -> bool:
        return any((any(o is m for m in self.made) or _rule.scheduled(o)) and not self.follows(o) for o in self.distinct)

    def follows(self, optimizer: torch.optim.Optimizer) -> bool:
        return self.schedule is not None and any(f.scheduler.optimizer is optimizer for f in cast(Schedules, self.schedule).all)

    def follow(self, schedule: Schedule) -> None:
        if self.schedule is None:
            self.schedule = cast("Schedule", Schedules())
        cast(Schedules, self.schedule).all.append(schedule)

    def _hook(self) -> None:
        pass  # no part of a gradient leaves before its step

    def _grad(self, p: torch.Tensor, at: int) -> torch.Tensor:
        """The place of the gradient of p, which keeps its own."""
        assert self.memory is not None
        return _job._view(self.memory, self.memory.grad + 4 * at, p)

    # A gradient.

    def advance(self) -> None:
        if self.turn and not self.over:
            raise StarError(
                "a batch was taken from star.loader after %d of the %d steps of the one before: each batch makes a step of each optimizer that star.attach was given, in that order"
                " (star.attach(models, [d, d, g], own=True): two of d and one of g)" % (self.turn, len(self.turns)),
                _link.EXIT_USAGE,
            )
        super().advance()

    def give(self) -> Any:
        out = super().give()
        self.place = out[0]
        return out

    def check(self, optimizer: Any) -> None:
        """It is the turn of an optimizer."""
        if self.turns[self.turn] is not optimizer and not self.over:
            raise StarError(
                "step %d of a batch is that of %s, and %s makes it: all workers make their steps in the order in which star.attach was given the optimizers"
                % (self.turn + 1, self._name(self.turns[self.turn]), self._name(optimizer)),
                _link.EXIT_USAGE,
            )

    def _name(self, optimizer: Any) -> str:
        return "optimizer %d (%s)" % ([id(o) for o in self.distinct].index(id(optimizer)), type(optimizer).__mro__[2].__name__)

    def _scale(self, by: float) -> None:
        self._scale_some(by, self.mine[id(self.turns[self.turn])])

    def weigh(self, weight: float, first: bool) -> None:
        if not first and weight != self.weight:
            self._scale_some(self.weight / weight, range(len(self.params)))
            self.loss *= self.weight / weight
        self.weight = weight

    def _scale_some(self, by: float, some: Sequence[int]) -> None:
        for i in some:
            grad = self.params[i].tensor.grad
            if grad is not None and not grad.is_sparse:
                if by == 0:
                    grad.zero_()
                else:
                    grad.mul_(by)

    def _gather(self) -> bool:
        for i in self.mine[id(self.turns[self.turn])]:
            self._dense(i)
        return False

    _changed = _gather

    def _dense(self, i: int) -> None:
        name, p, _ = self.params[i]
        if p.grad is not None and p.grad.is_sparse:
            raise StarError("the gradient of %s is sparse: give the embedding sparse=False" % name, _link.EXIT_DISAGREE)

    def _fill(self) -> None:
        """The memory gets the gradient of the current optimizer, and zeros."""
        for grad in self.grads:
            grad.zero_()
        for i in self.mine[id(self.turns[self.turn])]:
            grad = self.params[i].tensor.grad
            if grad is not None:
                self.grads[i].copy_(grad.detach())
        if self.gpu is not None:
            self.gpu.wait()

    def _send(self, loss: float, changed: bool) -> None:
        assert self.link is not None
        if self.gpu is not None:
            self.gpu.give_buffers()
            self.gpu.settle()
        compute = time.perf_counter_ns() - self.loaded
        self.computed += 1
        while self.pending is not None and self._comes(self.turn):  # again where a worker was lost in the middle
            self._fill()
            f, self.pending = self.pending, None
            self.restored = False
            self.link.done(f.a, loss, self.loaded - self.asked, compute)
            self.stepping = True
            self._next()
            self.stepping = False
        if self.over:
            return
        if not self.due and not self.restored:
            raise self._lost()
        self.turn = (self.turn + 1) % len(self.turns)
        if self.turn == 0:
            self.step = 0
            self._watch()
            return
        if self.due:  # the script goes on with the same batch when all have made the step
            self._finish()
            self._next()
        self._watch()
        if self.pending is not None:
            if not self._comes(self.turn):
                raise self._lost()
            self.losses, self.loss = 0, 0.0
            self.step = self.pending.a
            self.loaded = self.asked

    def _lost(self) -> StarError:
        return StarError("the job goes on with another batch than the one that this worker is in the middle of", _link.EXIT_LOST)

    def _comes(self, turn: int) -> bool:
        """Whether what is asked for is the gradient of a turn of the batch in hand."""
        return self.pending is not None and self.wanted == turn and self.pending.c & ~_link.WANTS_PARTS == self.place

    # What the agent says.

    def _restore(self, f: _link.Frame) -> None:
        super()._restore(f)
        self.restored = True

    def _update(self, f: _link.Frame) -> None:
        """The gradient is the mean over the job: the optimizer of this turn makes its step here."""
        assert self.link is not None and self.memory is not None
        if f.c >= len(self.turns) or (self.stepping or self.turn) and f.c != self.turn:
            raise StarError("the agent has update %d of a batch made, and this worker is at number %d of %d" % (f.c + 1, self.turn + 1, len(self.turns)), _link.EXIT_DISAGREE)
        if f.c == 0:
            self.base = f.b
        if self.schedule is not None:
            self.schedule.show(self.base)
        optimizer = self.turns[f.c]
        for i in self.mine[id(optimizer)]:
            p = self.params[i].tensor
            if p.grad is None:
                p.grad = torch.empty_like(p)
            p.grad.copy_(self.grads[i])
        cast("Attached", optimizer).make_step()
        self.due = f.a
        if not self.stepping:  # an update without a gradient of this worker
            self._finish()


def begin(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], own: bool) -> Several:
    """The session of a process that trains model by several optimizers, each in its turn."""
    before = _job.session
    assert before is not None
    if not optimizers or not all(isinstance(o, torch.optim.Optimizer) for o in optimizers):
        raise StarError("star.attach needs an optimizer, or a list of them in the order of their steps, not %r" % (optimizers,), _link.EXIT_USAGE)
    if not own:
        raise StarError(
            "star.attach with several optimizers needs own=True, and the job --arch allreduce: each makes its steps in this process, when it is its turn. Parameter servers make one step"
            " of a batch: give star.attach a module that has all models, and one optimizer with a group for each",
            _link.EXIT_USAGE,
        )
    s = _job.session = Several(optimizers, before)
    s.own, s.model, s.trial = True, model, 0
    return s
