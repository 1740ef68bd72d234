"""The second line of a script: the optimizer that the job runs."""

from __future__ import annotations

import copyreg
import inspect
from typing import Any, Callable, Dict, Optional, Sequence, Union

import torch

from . import _job, _link, _rule, _several
from ._link import StarError

_OPTIONAL = inspect.Parameter("closure", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)


def attach(model: _several.Models, optimizer: Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer]], *, overlap: bool = True, own: bool = False, group: Any = None) -> Any:
    """Has the job update the parameters of model by the rule of optimizer, which is given back; its ``step`` hands over the gradient.

    SGD (with momentum, Nesterov's too), Adam and AdamW run where the parameters are, with their groups. own=True has the optimizer, of any kind, make its steps in
    this process, of the mean gradient: in jobs with --arch allreduce, where all workers make the same steps. overlap=False keeps the gradient until it is
    complete, for scripts that change gradients between ``backward`` and ``step``.

    Several models may be a list, or a dict of them by names, which are put before those of their tensors. Several optimizers, with own=True, are a list in the order in which
    each batch has their steps: [d, g], or [d, d, g] for two steps of d and one of g. Each step is one of all workers together.

    group is a group of torch.distributed, or a DeviceMesh, of processes that are one worker together, with DistributedDataParallel, fully_shard, or neither; all of them call attach.
    """
    s = _job.current()
    if s is None:
        return optimizer
    if s.model is not None:
        raise StarError("star.attach was called before in this process: a process is one worker, and trains one model", _link.EXIT_USAGE)
    whole = _several.together(model)
    if group is not None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise StarError("star.attach(group=…) takes one optimizer, with groups of parameters, not several", _link.EXIT_USAGE)
        from . import _replica  # it loads what few scripts need

        s = _replica.begin(whole, group, s)
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizers = list(optimizer)
        s = _several.begin(whole, optimizers, own)
        for o in s.optimizers():
            _steps(o)
            _become(o)
        return optimizer
    _steps(optimizer)
    if not own:
        name = _rule.rule(optimizer, [])["name"]  # says now what cannot be
        _rule.steps(optimizer, name, list(whole.named_parameters()))
    s.own = own
    s.model, s.optimizer, s.early = whole, optimizer, overlap
    if not overlap:
        s.trial = 0
    s.scheduled = _rule.scheduled(optimizer)
    _become(optimizer)
    return optimizer


def _steps(optimizer: torch.optim.Optimizer) -> None:
    """Its steps can be made of one gradient."""
    if inspect.signature(optimizer.step).parameters.get("closure", _OPTIONAL).default is inspect.Parameter.empty:
        raise StarError("%s needs a closure, which it calls several times in a step: the job makes one gradient a step" % type(optimizer).__name__, _link.EXIT_USAGE)


def _become(optimizer: torch.optim.Optimizer) -> None:
    """It is attached."""
    optimizer.__dict__.pop("step", None)  # a scheduler that was made before has put the plain one there
    optimizer.__class__ = type("Star" + type(optimizer).__name__, (Attached, type(optimizer)), {"__module__": __name__})


def _same(a: Any, b: Any) -> bool:
    """Whether two states of optimizers are equal, on whatever device."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a.cpu(), b.cpu())
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(v, b[k]) for k, v in a.items())
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


class Attached:
    """What changes of an optimizer that is attached."""

    # GradScaler leaves what it does to step, which it calls in any case.
    _step_supports_amp_scaling = True

    def step(self, closure: Optional[Callable[[], Any]] = None, *, loss: Union[None, float, torch.Tensor] = None) -> Any:
        s = _job.session
        assert s is not None
        s.check(self)
        settings = None if s.own else _rule.settings(s.optimizer, s.schedule is not None)
        if settings != s.settings and s.link is not None:
            raise StarError(
                "the settings of the optimizer were changed after the first batch, from %s to %s: the parameters are updated where they are kept, by the settings that star.attach has found."
                " A scheduler is given to star.schedule before the first batch; or take it away, and give the job its --schedule."
                " A rate that follows the loss (ReduceLROnPlateau, lr /= 4) needs star.attach(…, own=True) and --arch allreduce, with the same changes on all workers"
                % (s.settings, settings),
                _link.EXIT_USAGE,
            )
        out = None
        if closure is not None:
            with torch.enable_grad():
                out = closure()
        s.hand(None if loss is None else float(loss), getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        return out

    def state_dict(self) -> "Dict[str, Any]":
        """What the job's optimizer remembers, in PyTorch's form."""
        if _job.session is not None:
            _job.session.recall()
        return super().state_dict()  # type: ignore[misc,no-any-return]

    def load_state_dict(self, state: "Dict[str, Any]") -> None:
        s = _job.session
        if s is not None and s.link is not None and not s.own:
            if _same(state, self.state_dict()):
                return  # as accelerate does to move a state to a device
            raise StarError(
                "load_state_dict() after the first batch: the optimizer's steps are made where the job has the parameters. Load a state before star.attach; a job goes on with star run --resume",
                _link.EXIT_USAGE,
            )
        super().load_state_dict(state)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled and copied, it is the plain optimizer, with what the job's remembers."""
        if _job.session is not None:
            _job.session.recall()
        # As of protocol 1: its constructor needs no class that is that of the object, and is part of Python.
        return (copyreg._reconstructor, (type(self).__mro__[2], object, None), self.__getstate__())  # type: ignore[attr-defined]

    def make_step(self) -> None:
        """The step of the optimizer itself."""
        super().step()  # type: ignore[misc]

    def add_param_group(self, group: "Dict[str, Any]") -> None:
        if _job.session is not None and _job.session.link is not None:
            raise StarError("a group of parameters is added after the first batch: the job does not know it. Give the optimizer all groups before star.attach", _link.EXIT_USAGE)
        super().add_param_group(group)  # type: ignore[misc]

    def zero_grad(self, set_to_none: bool = False) -> None:
        s = _job.session
        if s is None or s.link is None:
            for g in self.param_groups:  # type: ignore[attr-defined]
                for p in g["params"]:
                    p.grad = None
            return
        if s.private:
            super().zero_grad(set_to_none)  # type: ignore[misc]
            return
        s.zero_grad()
