"""STAR for PyTorch::

    import star_train.torch as star                                          # 1
    opt = star.attach(model, torch.optim.AdamW(model.parameters(), 3e-4))    # 2
    loader = star.loader(dataset, batch_size=32)                             # 3

and the loops stay as they are. Each ``opt.step()`` hands the gradient of this worker to the job and comes back with the job's parameters,
with which the next batch is to be computed. Without a job (plain ``python train.py``, or ``STAR_OFF=1``) the same lines are stock PyTorch.

On a processor parameters, gradients and buffers are views of memory that this process shares with its agent: nothing is copied. Those on a GPU are copied to it and back.
"""

from __future__ import annotations

import copy
import errno
import inspect
import math
import time
import warnings
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Sized, Tuple, Union, cast

import torch
import torch.utils.data as tud

from . import _cuda, _link, _state
from ._link import AgentLost, JobError, StarError

__all__ = ["AgentLost", "JobError", "StarError", "attach", "ddp_hook", "evaluate", "loader", "rank", "schedule", "workers"]

Evaluation = Callable[[Any], Tuple[float, int, int]]

# Parts of a gradient of at least so many elements (1 MiB) are told of while backward still runs.
_PART = 1 << 18

# So many steps are looked at before parts are told of early: whether the script changes gradients between backward and step.
_TRIAL = 3


class _Tensor(NamedTuple):
    name: str
    tensor: torch.Tensor
    at: int  # elements from the start of its area


class _Session:
    """This process's part in the job."""

    def __init__(self) -> None:
        self.link: Optional[_link.Link] = None
        self.model: Optional[torch.nn.Module] = None
        self.device: Optional[torch.device] = None  # a GPU; None: the processor
        self.optimizer: Optional[torch.optim.Optimizer] = None
        self.loader: Optional[_Loader] = None
        self.test: Optional[_Test] = None
        self.rank = -1
        self.workers = 0
        self.over = False

        self.params: List[_Tensor] = []
        self.grads: List[torch.Tensor] = []
        self.buffers: List[_Tensor] = []
        self.gpu: Optional[_cuda.Mirror] = None  # the model is on one
        self.mirrors: List[Tuple[torch.Tensor, torch.Tensor]] = []  # of buffers that are not float32: their own, the one in the memory
        self.schedule: Optional[_Schedule] = None
        self.own = False  # the optimizer makes its steps here
        self.ddp: Optional[_Buckets] = None  # the loop and the data are a script's of DistributedDataParallel
        self.frozen: List[Tuple[str, torch.nn.Parameter]] = []  # though the optimizer has them
        self.memory: Optional[_link.Memory] = None

        self.step = 0  # of the gradient that is asked for; 0: none is
        self.computed = 0  # gradients
        self.parts_wanted = False
        self.pending: Optional[_link.Frame] = None
        self.leases: Dict[int, List[int]] = {}
        self.loss: Any = 0.0  # a tensor on a GPU, which is not waited for before the end of the step
        self.losses = 0
        self.asked = 0  # when the batch was asked for, ns
        self.loaded = 0  # when it was there

        self.trial = _TRIAL
        self.early = True
        self.complete: List[int] = []  # by parameter: version of its gradient when it was complete; -1: it is not
        self.weight = 1.0  # of the part of the batch that is computed, in the gradient of the whole
        self.again = False  # backward has come to a parameter twice in this step
        self.low = 0  # parameters from here on are complete
        self.told = 0  # element from which on the agent knows
        self.warned = False
        self.settings: Optional[List[Any]] = None  # of the optimizer's groups, as the job has them

    # The beginning.

    def begin(self) -> None:
        """Speaks with the agent until the parameters are the job's memory. It needs attach and loader, whichever came first."""
        if self.link is not None:
            return
        model, optimizer, ld = self.model, self.optimizer, self.loader
        if model is None or optimizer is None or ld is None:
            raise StarError("star.attach(model, optimizer) comes before the first batch of star.loader", _link.EXIT_USAGE)
        self._list(model, optimizer)
        rates = None
        if self.schedule is not None:
            rates = self.schedule.run(ld, self.own)
        self.settings = _settings(optimizer, self.schedule is not None)
        if self.own:
            rule: Dict[str, Any] = {"name": "own", "lr": float(optimizer.param_groups[0]["lr"])}
        else:
            rule = _rule(optimizer, self.params, rates)
        if self.schedule is not None and not self.own:
            rule["schedule"] = self.schedule.table
        about = {
            "name": type(model).__name__,
            "program": "PyTorch " + torch.__version__.split("+")[0] + (", " + _cuda.cuda.get_device_name(self.device) if self.device is not None else ""),
            "layout": [{"name": t.name, "shape": list(t.tensor.shape)} for t in self.params],
            "buffers": [{"name": t.name, "shape": list(t.tensor.shape)} for t in self.buffers],
            "data": type(ld.dataset).__name__,
            "samples": ld.samples,
            "tests": 0 if self.test is None else len(cast(Sized, self.test.dataset)),
            "batch": ld.batch_size * ld.accumulate,
            "prefetch": 0 if ld.stream is not None else ld.prefetch,
            "optimizer": rule,
        }
        if _link.show_stacks():
            about["stack"] = True
        if ld.epochs:
            about["epochs"] = ld.epochs
        self.link = _link.connect()
        self.memory = self.link.begin(about)
        self._map(self.memory)
        self._hook()
        self.link.ready()
        torch.Tensor.backward = _backward  # type: ignore[method-assign]
        self._next()

    def _list(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        updated = {id(p) for g in optimizer.param_groups for p in g["params"]}
        named = list(model.named_parameters())
        self.device = _cuda.device_of(named)
        known = {id(p) for _, p in named}
        strange = sum(1 for i in updated if i not in known)
        if strange:
            raise StarError("%d parameters of the optimizer are none of the model: give star.attach the model that has them all" % strange, _link.EXIT_DISAGREE)
        at = buffers_at = 0
        for name, p in named:
            _check(name, p, self.device)
            if p.requires_grad and id(p) in updated:
                self.params.append(_Tensor(name, p, at))
                at += p.numel()
            else:  # nobody changes it: it is kept with the buffers, so that checkpoints have it
                if id(p) in updated:
                    self.frozen.append((name, p))
                self.buffers.append(_Tensor(name, p, buffers_at))
                buffers_at += p.numel()
        saved = set(model.state_dict())
        for name, b in model.named_buffers():
            if name in saved and not b.is_complex():
                self.buffers.append(_Tensor(name, b, buffers_at))
                buffers_at += b.numel()

    def _map(self, m: _link.Memory) -> None:
        if self.device is not None:
            kept = [_cuda.Place(b, at) for _, b, at in self.buffers]
            parameters = sum(isinstance(p.tensor, torch.nn.Parameter) for p in kept)
            self.gpu = _cuda.Mirror(self.device, m, [_cuda.Place(p, at) for _, p, at in self.params], kept[:parameters], kept[parameters:])
            self.complete = [-1] * len(self.params)
            self.grads = [_view(m, m.grad + 4 * at, p) for _, p, at in self.params]
            return
        for _, p, at in self.params:
            view = _view(m, m.params + 4 * at, p)
            view.copy_(p.data)
            p.data = view
            grad = _view(m, m.grad + 4 * at, p)
            grad.zero_()
            p.grad = grad
            self.grads.append(grad)
            self.complete.append(-1)
        for _, b, at in self.buffers:
            view = _view(m, m.buffers + 4 * at, b)
            view.copy_(b.data)
            if b.dtype == torch.float32:
                b.data = view
            else:
                self.mirrors.append((b, view))

    # What the agent says.

    def _next(self) -> None:
        """Waits until the agent asks for a gradient, which stays pending, or the job is over."""
        assert self.link is not None
        while self.pending is None and not self.over and not (self.ddp is not None and self.ddp.update):
            f = self.link.receive()
            if f.kind == _link.COMPUTE:
                self.asked = time.perf_counter_ns()
                self.pending = f
                if self.gpu is not None:
                    self.gpu.take()
                for own, mirror in self.mirrors:
                    if not torch.equal(own.data.float(), mirror):  # else nobody has changed it, and float32 may not hold all of it
                        own.data.copy_(mirror)
                if self.schedule is not None:
                    self.schedule.show(f.c & ~_link.WANTS_PARTS)
            elif f.kind == _link.EVALUATE:
                self._evaluate(f)
            elif f.kind == _link.LEASE:
                self.leases[f.a] = _link.indices(f)
            elif f.kind == _link.JOINED:
                self.rank, self.workers = f.a, f.b
            elif f.kind == _link.UPDATE:
                self._update(f)
            elif f.kind == _link.RECALL:
                self.link.state(f.a, _state.pack(self._own().state_dict()))
            elif f.kind == _link.STATE:
                optimizer = self._own()
                optimizer.load_state_dict(_state.unpack(self.link.recalled(f), optimizer.state_dict()))
                self.link.updated(f.a)
            elif f.kind == _link.STOP:
                self.over = True

    def _own(self) -> torch.optim.Optimizer:
        if not self.own:
            raise StarError("the agent asks for the optimizer of this process, and the job has another one")
        assert self.optimizer is not None
        return self.optimizer

    def _update(self, f: _link.Frame) -> None:
        """The gradient is the mean over the job: the optimizer makes its step here."""
        assert self.link is not None
        optimizer = self._own()
        if self.schedule is not None:
            self.schedule.show(f.b)
        if self.gpu is None:
            for i, (_, p, _) in enumerate(self.params):
                p.grad = self.grads[i]
        if self.ddp is not None:  # when the script says step
            self.ddp.update = f.a
            return
        if self.gpu is not None:
            self.gpu.take_gradient()
        super(_Attached, optimizer).step()  # type: ignore[misc]
        if self.gpu is not None:
            self.gpu.give_parameters()
        self.link.updated(f.a)

    def _evaluate(self, f: _link.Frame) -> None:
        assert self.link is not None and self.model is not None
        if self.test is None:
            raise StarError("the agent asks for an evaluation, and there is no test set")
        if self.gpu is not None:
            self.gpu.take(evaluate=True)
        was = [(m, m.training) for m in self.model.modules()]
        self.model.eval()
        try:
            with torch.no_grad():
                loss, correct, count = self.test.run(_link.indices(f))
        finally:
            for m, training in was:
                m.training = training
        self.link.evaluated(f.a, float(loss), int(correct), int(count))

    # A gradient.

    def give(self) -> Tuple[int, List[int]]:
        """The batch that is pending: its position and its samples."""
        assert self.pending is not None
        f = self.pending
        self.step, self.parts_wanted = f.a, bool(f.c & _link.WANTS_PARTS)
        self.low, self.told = len(self.params), self._elements()
        self.losses, self.loss, self.again, self.weight = 0, 0.0, False, 1.0
        for i in range(len(self.complete)):
            self.complete[i] = -1
        if self.gpu is not None:
            self.gpu.begin()
        return f.c & ~_link.WANTS_PARTS, _link.indices(f)

    def weigh(self, weight: float) -> None:
        """The next part of the batch counts so much, where the script adds up its parts as if they were of one size."""
        if weight != self.weight:
            self._scale(self.weight / weight)
            self.loss *= self.weight / weight
        self.weight = weight

    def _scale(self, by: float) -> None:
        for _, p, _ in self.params:
            if p.grad is not None and not p.grad.is_sparse:
                if by == 0:
                    p.grad.zero_()  # even what is not finite
                else:
                    p.grad.mul_(by)

    def _elements(self) -> int:
        last = self.params[-1]
        return int(last.at + last.tensor.numel())

    def hand(self, loss: Optional[float], scale: Optional[torch.Tensor] = None, infinite: Optional[torch.Tensor] = None) -> None:
        """The gradient is complete: the job gets it. Comes back when the parameters are the next ones."""
        if self.over:
            return
        if infinite is not None:  # a GradScaler was here
            if float(infinite) > 0:
                self._scale(0)  # it counts as zero
            elif scale is not None:
                self._scale(1 / float(scale))
            if loss is None and scale is not None:
                loss = float(self.loss) / float(scale)
            elif loss is None:
                self.losses = 0  # which it has scaled by who knows what
        if self.pending is None or self.step == 0:
            raise StarError("opt.step() without a batch of star.loader in hand: each batch of it makes one step (star.loader(accumulate=N) makes one of N)", _link.EXIT_USAGE)
        assert self.link is not None
        for name, p in self.frozen:
            if p.requires_grad:
                raise StarError("%s was frozen at star.attach and is not now: the job does not know it. Set requires_grad before star.attach" % name, _link.EXIT_USAGE)
        for name, p, _ in self.params:
            if not p.requires_grad:
                raise StarError("%s was frozen after star.attach: the job goes on updating it. Set requires_grad before star.attach" % name, _link.EXIT_USAGE)
        touched = (self._gather() if self.gpu is None else self._changed()) or self.again
        if touched and (self.told < self._elements() or (self.gpu is not None and self.parts_wanted and self.gpu.started())):
            raise StarError(
                "the gradient was changed between backward and opt.step(), or backward came twice in this step, and in none of the first %d, so that a part of it was on its way:"
                " give star.attach(…, overlap=False)" % _TRIAL,
                _link.EXIT_USAGE,
            )
        if self.trial > 0:
            self.trial -= 1
            self.early = self.early and not touched
        if loss is None:
            loss = float(self.loss) if self.losses else math.nan
            if not self.losses and not self.warned:
                self.warned = True
                warnings.warn("star_train saw no loss.backward() in this step, so the job does not know the loss: give opt.step(loss=…)", stacklevel=4)
                loss = 0.0
            elif not self.losses:
                loss = 0.0
        if self.weight != 1:
            self._scale(self.weight)
            loss *= self.weight
        if self.gpu is not None:
            self._leave(self.gpu, touched or self.weight != 1)
        for own, mirror in self.mirrors:
            mirror.copy_(own.data)
        step, self.step, self.pending = self.step, 0, None
        self.computed += 1
        self.link.done(step, loss, self.loaded - self.asked, time.perf_counter_ns() - self.loaded)
        if self.ddp is None:
            self._next()

    def _gather(self) -> bool:
        """Has all gradients in the memory. True: somebody has changed one since backward has completed it."""
        touched = False
        for i, (name, p, _) in enumerate(self.params):
            view, grad = self.grads[i], p.grad
            if grad is None:
                view.zero_()
                p.grad = view
            elif grad is not view:
                if grad.is_sparse:
                    raise StarError("the gradient of %s is sparse: give the embedding sparse=False" % name, _link.EXIT_DISAGREE)
                if grad.data_ptr() != view.data_ptr():
                    view.copy_(grad)
                    self._copied(name)
                p.grad = view
            if self.complete[i] not in (-1, grad_version(p)):  # what backward has not come to was not told of
                touched = True
        return touched

    def _changed(self) -> bool:
        """Whether somebody has changed a gradient since backward has completed it."""
        for name, p, _ in self.params:
            if p.grad is not None and p.grad.is_sparse:
                raise StarError("the gradient of %s is sparse: give the embedding sparse=False" % name, _link.EXIT_DISAGREE)
        return any(c not in (-1, grad_version(p)) for c, (_, p, _) in zip(self.complete, self.params))

    def _leave(self, gpu: _cuda.Mirror, again: bool) -> None:
        """The gradient goes from the GPU to the memory, whose parts are told as they come."""
        if self.ddp is None:
            gpu.leave(again)
        gpu.give_buffers()
        while self.ddp is None and gpu.there(wait=True) > 0:
            self._tell(gpu)
        gpu.settle()

    def _tell(self, gpu: _cuda.Mirror) -> None:
        at = gpu.there()
        if self.parts_wanted and at > 0 and self.told - at >= _PART:
            self.told = at
            assert self.link is not None
            self.link.part(self.step, at)

    def _copied(self, name: str) -> None:
        if not self.warned_copy:
            self.warned_copy = True
            warnings.warn(
                "the gradient of %s is copied in every step: something has replaced p.grad (zero_grad of the model, or set to None); opt.zero_grad() does not" % name, stacklevel=5
            )

    warned_copy = False

    def zero_grad(self) -> None:
        if self.gpu is not None:
            for _, p, _ in self.params:
                p.grad = None
            return
        for i, (_, p, _) in enumerate(self.params):
            self.grads[i].zero_()
            p.grad = self.grads[i]

    # Parts of it, while backward still runs.

    def _hook(self) -> None:
        self.keep: List[Any] = []
        for i, (_, p, _) in enumerate(self.params):
            after = getattr(p, "register_post_accumulate_grad_hook", None)  # from PyTorch 2.1 on
            if after is not None:
                after(lambda q, i=i: self._completed(i, q))
                continue
            node = cast(Any, p.expand_as(p).grad_fn).next_functions[0][0]
            node.register_hook(lambda *_, i=i, p=p: self._completed(i, p))
            self.keep.append(node)

    def _completed(self, i: int, p: torch.Tensor) -> None:
        self.again = self.again or self.complete[i] >= 0
        self.complete[i] = grad_version(p)
        if self.gpu is not None:
            if self.early and self.trial == 0 and self.step and self.ddp is None and not self.again:
                self.gpu.completed(i)
                self._tell(self.gpu)
            return
        if not (self.parts_wanted and self.early and self.trial == 0 and self.step):
            return
        grad = p.grad
        if grad is None or grad.data_ptr() != self.grads[i].data_ptr():
            self.early = False  # it is to be copied first
            return
        low = self.low
        while low > 0 and self.complete[low - 1] >= 0:
            low -= 1
        self.low = low
        if low < len(self.params):
            at = self.params[low].at
            if at > 0 and self.told - at >= _PART:
                self.told = at
                assert self.link is not None
                self.link.part(self.step, at)


def grad_version(p: torch.Tensor) -> int:
    """Grows with each change of the gradient in place."""
    return p.grad._version if p.grad is not None else -1


_session: Optional[_Session] = None
_stock_warned = False


def _current() -> Optional[_Session]:
    """The session of this process; None: there is no job, and everything is stock PyTorch."""
    global _session, _stock_warned
    if _session is None:
        if _link.wanted():
            _link.watch()
            _session = _Session()
        elif not _stock_warned:
            _stock_warned = True
            warnings.warn("star_train: this process is part of no job, so it trains alone, as plain PyTorch: start it by star run --workers N -- python …", stacklevel=3)
    return _session


_plain_backward = torch.Tensor.backward


def _backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    s = _session
    if s is not None and s.step and self.numel() == 1:
        s.losses += 1
        loss = self.detach()
        s.loss += float(loss) if s.gpu is None else loss.double()
    try:
        return _plain_backward(self, *args, **kwargs)  # type: ignore[no-untyped-call]
    except RuntimeError:
        if s is not None and s.ddp is not None and s.ddp.failed is not None:
            raise s.ddp.failed from None
        raise


def _check(name: str, p: torch.Tensor, gpu: Optional[torch.device]) -> None:
    if p.dtype not in (_cuda.FLOATS if gpu is not None else (torch.float32,)):
        raise StarError(
            "parameter %s is %s: the job exchanges float32. Use model.float(), and torch.autocast for what may be computed in less" % (name, p.dtype), _link.EXIT_DISAGREE
        )
    if p.is_sparse:
        raise StarError("parameter %s is sparse" % name, _link.EXIT_DISAGREE)


def _view(m: _link.Memory, at: int, like: torch.Tensor) -> torch.Tensor:
    """The memory from a byte on, in the shape of a tensor."""
    if like.numel() == 0:
        return torch.empty(like.shape, dtype=torch.float32)
    return cast(torch.Tensor, torch.frombuffer(m.map, dtype=torch.float32, count=like.numel(), offset=at).view(like.shape))


# 2: the optimizer.

_OPTIONAL = inspect.Parameter("closure", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)


def attach(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, overlap: bool = True, own: bool = False) -> torch.optim.Optimizer:
    """Has the job update the parameters of model by the rule of optimizer, which is given back; its ``step`` hands over the gradient.

    SGD (with momentum, Nesterov's too), Adam and AdamW run where the parameters are, with their groups. own=True has the optimizer, of any kind, make its steps in
    this process, of the mean gradient: in jobs with --arch allreduce, whose workers all make the same ones. overlap=False keeps the gradient until it is
    complete, for scripts that change gradients between ``backward`` and ``step``.
    """
    s = _current()
    if s is None:
        return optimizer
    if s.model is not None:
        raise StarError("star.attach was called before in this process: a process is one worker, and trains one model", _link.EXIT_USAGE)
    if not own:
        _rule(optimizer, [])  # says now what cannot be
    elif inspect.signature(optimizer.step).parameters.get("closure", _OPTIONAL).default is inspect.Parameter.empty:
        raise StarError("%s needs a closure, which it calls several times in a step: the job makes one gradient a step" % type(optimizer).__name__, _link.EXIT_USAGE)
    s.own = own
    s.model, s.optimizer, s.early = model, optimizer, overlap
    if not overlap:
        s.trial = 0
    optimizer.__dict__.pop("step", None)  # a scheduler that was made before has put the plain one there
    optimizer.__class__ = type("Star" + type(optimizer).__name__, (_Attached, type(optimizer)), {"__module__": __name__})
    return optimizer


class _Attached:
    """What changes of an optimizer that is attached."""

    # GradScaler leaves what it does to step, which it calls in any case.
    _step_supports_amp_scaling = True

    def step(self, closure: Optional[Callable[[], Any]] = None, *, loss: Union[None, float, torch.Tensor] = None) -> Any:
        s = _session
        assert s is not None
        if s.ddp is not None:
            out = super().step(closure)  # type: ignore[misc]
            s.ddp.stepped()
            return out
        settings = _settings(self, s.schedule is not None)
        if s.settings is not None and settings != s.settings:
            raise StarError(
                "the settings of the optimizer were changed after the first batch, from %s to %s: the parameters are updated where they are kept, by the settings that star.attach has found."
                " A scheduler is given to star.schedule before the first batch; or take it away, and give the job its --schedule" % (s.settings, settings),
                _link.EXIT_USAGE,
            )
        out = None
        if closure is not None:
            with torch.enable_grad():
                out = closure()
        s.hand(None if loss is None else float(loss), getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        return out

    def add_param_group(self, group: "Dict[str, Any]") -> None:
        if _session is not None and _session.link is not None:
            raise StarError("a group of parameters is added after the first batch: the job does not know it. Give the optimizer all groups before star.attach", _link.EXIT_USAGE)
        super().add_param_group(group)  # type: ignore[misc]

    def zero_grad(self, set_to_none: bool = False) -> None:
        s = _session
        if s is None or s.link is None:
            for g in self.param_groups:  # type: ignore[attr-defined]
                for p in g["params"]:
                    p.grad = None
            return
        s.zero_grad()


def _settings(optimizer: Any, scheduled: bool = False) -> List[Any]:
    """What a scheduler could change of the groups; the rate only if none is known."""
    names = ("weight_decay", "momentum", "betas") if scheduled else ("lr", "weight_decay", "momentum", "betas")
    return [{k: v for k, v in g.items() if k in names} for g in optimizer.param_groups]


def _rule(optimizer: torch.optim.Optimizer, params: Sequence[_Tensor], rates: Optional[List[float]] = None) -> "Dict[str, Any]":
    """The optimizer in the words of the job; rates of its groups, if not those that it has now."""

    def no(what: str) -> StarError:
        return StarError(
            "%s %s: the job updates by SGD, Adam and AdamW. star.attach(…, own=True) and --arch allreduce have any optimizer make its steps in this process"
            % (type(optimizer).__name__, what),
            _link.EXIT_USAGE,
        )

    groups = optimizer.param_groups
    first = groups[0]

    def same(*names: str) -> None:
        for n in names:
            if any(g.get(n) != first.get(n) for g in groups):
                raise no("has groups that differ in %s, not only in lr and weight_decay" % n)

    if any(g.get("maximize") for g in groups):
        raise no("with maximize")
    kinds = [k.__name__ for k in type(optimizer).__mro__]
    if "SGD" in kinds:
        same("momentum", "nesterov", "dampening")
        if first.get("dampening"):
            raise no("with dampening")
        name = "sgd" if not first["momentum"] else "nesterov" if first["nesterov"] else "momentum"
        rule: Dict[str, Any] = {"name": name}
        if first["momentum"]:
            rule["momentum"] = float(first["momentum"])
    elif "AdamW" in kinds or "Adam" in kinds:
        same("betas", "eps")
        if any(g.get("amsgrad") for g in groups):
            raise no("with amsgrad")
        decoupled = "AdamW" in kinds or bool(first.get("decoupled_weight_decay"))
        rule = {"name": "adamw" if decoupled else "adam", "beta1": float(first["betas"][0]), "beta2": float(first["betas"][1]), "epsilon": float(first["eps"])}
    else:
        raise no("is none of those that it knows")
    if rates is None:
        rates = [float(g["lr"]) for g in groups]
    base = next((r for r in rates if r > 0), 0.0)
    rule["lr"] = base
    rule["weight_decay"] = float(first["weight_decay"])
    of = {id(p): (g, r) for g, r in zip(groups, rates) for p in g["params"]}
    out: List[Dict[str, Any]] = []
    for _, p, at in params:
        g, rate = of[id(p)]
        factor = rate / base if base else 1.0
        decay = float(g["weight_decay"])
        if out and out[-1]["factor"] == factor and out[-1]["weight_decay"] == decay:
            out[-1]["to"] = at + p.numel()
        else:
            out.append({"from": at, "to": at + p.numel(), "factor": factor, "weight_decay": decay})
    if len(out) > 1:
        rule["groups"] = out
    elif out:
        rule["weight_decay"] = out[0]["weight_decay"]
    return rule


# DistributedDataParallel.


class _Buckets:
    """The gradients of a script of DistributedDataParallel: a hook collects its buckets, and the last one exchanges all of them in the job's ring."""

    def __init__(self, session: _Session) -> None:
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
    s = _current()
    if s is None:
        return optimizer
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise StarError("star.ddp_hook needs the model as DistributedDataParallel(model, broadcast_buffers=False), it is %s" % type(model).__name__, _link.EXIT_USAGE)
    if getattr(model, "broadcast_buffers", False) and any(True for _ in model.buffers()):
        raise StarError("DistributedDataParallel sends buffers around in each step, which hangs when a rank dies: give it broadcast_buffers=False", _link.EXIT_USAGE)
    attach(model.module, optimizer, overlap=False, own=True)
    s.loader = _Loader(range(samples), batch_size, 1, epochs, samples, {})
    s.ddp = _Buckets(s)
    s.begin()
    if not s.over:
        s.give()
        s.loaded = s.asked
    buckets = s.ddp
    model.register_comm_hook(None, lambda state, bucket: buckets.hook(bucket))
    return optimizer


# A scheduler.

# More changes of the rate than this are put together: a job's table of them travels with every process that joins.
_CHANGES = 4096


class _Schedule:
    """The rates of a scheduler, found out by a run ahead, over samples of the job."""

    def __init__(self, scheduler: Any, every: int) -> None:
        self.scheduler, self.every = scheduler, every
        self.rates: List[List[float]] = []  # of each group, from step to step of the scheduler
        self.table = ""

    def run(self, ld: "_Loader", own: bool) -> List[float]:
        """Makes the table; the rates of the groups at the height of the first one."""
        n = ld.samples
        self.every = self.every or n
        total = ld.epochs * n if ld.epochs else 10_000.0 * n
        if not ld.epochs and self.every < n:
            raise StarError("star.schedule(every=%d) needs to know how long the job is: give star.loader(epochs=…)" % self.every, _link.EXIT_USAGE)
        groups = self.scheduler.optimizer.param_groups
        dummy = torch.optim.SGD([dict(g, params=[torch.zeros(1, requires_grad=True)]) for g in groups], lr=0.1)
        before = _settings(dummy, True)
        ahead = copy.deepcopy(self.scheduler, {id(self.scheduler.optimizer): dummy})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(min(int(total / self.every) + 2, 1_000_000)):
                self.rates.append([float(g["lr"]) for g in dummy.param_groups])
                try:
                    super(_Followed, ahead).step()  # type: ignore[misc]
                except ValueError:  # OneCycleLR, beyond its end
                    break
        if _settings(dummy, True) != before:
            raise StarError(
                "%s changes more than the rate: the job keeps momentum and decay as star.attach has found them (cycle_momentum=False)" % type(ahead).__name__, _link.EXIT_USAGE
            )
        peak = max(self.rates, key=lambda r: r[0])
        if not peak[0] > 0:
            raise StarError("%s: the rate of the first group is never above 0" % type(ahead).__name__, _link.EXIT_USAGE)
        for r in [] if own else self.rates:
            if any(abs(x - r[0] / peak[0] * y) > 1e-6 * max(abs(y), peak[0]) for x, y in zip(r, peak)):
                raise StarError(
                    "%s: the rates of the groups have another course each: the job has one for all, times a factor for each group" % type(ahead).__name__, _link.EXIT_USAGE
                )
        changes = [(k, r[0] / peak[0]) for k, r in enumerate(self.rates) if k == 0 or r[0] != self.rates[k - 1][0]]
        if len(changes) > _CHANGES:
            changes = [changes[len(changes) * i // _CHANGES] for i in range(_CHANGES)]
        self.table = "table=" + ",".join("%d:%r" % (k * self.every, f) for k, f in changes)
        return peak

    def show(self, position: int) -> None:
        """Has the groups and the scheduler show the rate of a batch."""
        rates = self.rates[min(position // self.every, len(self.rates) - 1)]
        for g, r in zip(self.scheduler.optimizer.param_groups, rates):
            g["lr"] = r
        self.scheduler._last_lr = list(rates)


def schedule(scheduler: Any, *, every: int = 0) -> Any:
    """Has the job's learning rate follow a scheduler of the attached optimizer, which is given back: it makes a step whenever the job, all workers together, has
    used ``every`` samples (0: an epoch). ``scheduler.step()`` in the loop does nothing any more.

    So the rate is the same for all workers, whatever the mode, and right for who comes later. Call it before the first batch of the loader. A scheduler that
    makes a step for each batch has ``every=batch_size``, and star.loader(epochs=…) says how far it is to be followed.
    """
    s = _current()
    if s is None:
        return scheduler
    if s.optimizer is None or getattr(scheduler, "optimizer", None) is not s.optimizer:
        raise StarError("star.schedule needs a scheduler of the optimizer that star.attach was given, and comes after it", _link.EXIT_USAGE)
    if s.link is not None or s.schedule is not None:
        raise StarError("star.schedule comes once, and before the first batch of star.loader: the job must know the rates when it begins", _link.EXIT_USAGE)
    if type(scheduler).__name__ == "ReduceLROnPlateau" or every < 0:
        raise StarError(
            "star.schedule(%s, every=%d): want a scheduler whose rates follow from the number of steps alone, and a number of samples" % (type(scheduler).__name__, every),
            _link.EXIT_USAGE,
        )
    s.schedule = _Schedule(scheduler, every)
    scheduler.__class__ = type(type(scheduler).__name__, (_Followed, type(scheduler)), {"__module__": __name__})
    return scheduler


class _Followed:
    """What changes of a scheduler that the job follows."""

    def step(self, *args: Any, **kwargs: Any) -> None:
        pass


# 3: the data.


class _Loader:
    """Batches of the job, epoch by epoch: each sample of the data set once, over all workers together."""

    def __init__(self, dataset: Any, batch_size: int, accumulate: int, epochs: float, samples: int, kwargs: "Dict[str, Any]") -> None:
        self.dataset, self.batch_size, self.accumulate, self.epochs, self.samples = dataset, batch_size, accumulate, epochs, samples
        self.kwargs = kwargs
        self.num_workers = int(kwargs.get("num_workers") or 0)
        factor = kwargs.get("prefetch_factor") or 2
        self.prefetch = self.num_workers * int(factor) if self.num_workers else 0
        self.collate = kwargs.get("collate_fn") or tud.default_collate
        self.epoch = -1
        self._progress = 0.0
        self.stream: Optional[_Stream] = None  # the order is the script's own
        self.weights: Optional[List[Tuple[bool, float]]] = None  # for weigh, of parts that are taken before they are computed
        self._ahead: Optional[_Ahead] = None

    def __len__(self) -> int:
        """Batches of an epoch if all workers take as many; the job may share them out otherwise."""
        s = _session
        n = max(s.workers, 1) if s is not None else 1
        return -(-self.samples // (self.batch_size * n))

    def __iter__(self) -> Iterator[Any]:
        s = _session
        assert s is not None
        s.begin()
        if s.over and s.computed == 0:  # star eval, or it came when the job was over: what follows the loop has nothing to work with
            raise SystemExit(0)
        self.epoch += 1
        n = self.samples
        while not s.over:
            if s.pending is None:
                raise StarError(
                    "a batch was taken from star.loader before opt.step() of the one before: each batch makes one step (star.loader(accumulate=N) makes one of N)", _link.EXIT_USAGE
                )
            position, indices = s.give()
            if position // n > self.epoch:
                return  # it is the first of the next epoch
            before = s.step
            for k, (part, weight) in enumerate(self.parts(indices)):
                batch = self._fetch(position, k, part)
                if self.weights is None:
                    self.weigh(k == 0, weight)
                else:
                    self.weights.append((k == 0, weight))
                s.loaded = time.perf_counter_ns() if s.loaded < s.asked else s.loaded
                yield batch
            if s.pending is not None and s.step == before:
                raise StarError(
                    "a batch was taken from star.loader before opt.step() of the one before: each batch makes one step (star.loader(accumulate=N) makes one of N)", _link.EXIT_USAGE
                )

    def begin(self) -> None:
        """Joins the job."""
        assert _session is not None
        _session.begin()

    def weigh(self, first: bool, weight: float) -> None:
        """The part of a batch that is computed next counts so much; first: of its batch."""
        assert _session is not None
        if first:
            _session.weight = weight
        else:
            _session.weigh(weight)

    def over(self) -> bool:
        """Whether the job is."""
        return _session is not None and _session.over

    def progress(self) -> float:
        """Epochs of the job at the batch that comes next; those that it has at its end."""
        s = _session
        if s is not None and s.pending is not None:
            self._progress = (s.pending.c & ~_link.WANTS_PARTS) / self.samples
        return float(max(self._progress, self.epochs)) if self.over() else self._progress

    def ended(self) -> bool:
        """Whether the next batch is none of this epoch."""
        return self.over() or int(self.progress()) > self.epoch

    def parts(self, indices: List[int]) -> List[Tuple[List[int], float]]:
        """As many as ``accumulate`` says, and the weight of each in the gradient. If there are fewer samples, the first ones come again, with a weight of 0."""
        n, k = len(indices), self.accumulate
        if k == 1:
            return [(indices, 1.0)]
        out = [(indices[:1], 0.0)] * (k - n)
        k = min(k, n)
        cuts = [n * i // k for i in range(k + 1)]
        return out + [(indices[a:b], (b - a) * self.accumulate / n) for a, b in zip(cuts, cuts[1:])]

    def _fetch(self, position: int, part: int, indices: List[int]) -> Any:
        if self.stream is not None:
            return self.collate(self.stream.take(len(indices)))
        if self.num_workers == 0:
            return self._load(indices)
        if self._ahead is None:
            self._ahead = _Ahead(self)
        s = _session
        assert s is not None
        return self._ahead.fetch((position, part), indices, s.leases)

    def _load(self, indices: List[int]) -> Any:
        get = getattr(self.dataset, "__getitems__", None)
        items = get(indices) if get is not None else [self.dataset[i] for i in indices]
        return self.collate(items)


_Place = Tuple[int, int]  # position of a batch, and number of a part of it


class _Batches:
    """Batches of a loader, without a number for frameworks: how many of an epoch are this worker's shows when it is over."""

    def __init__(self, loader: _Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class _Ahead:
    """Loads batches that are likely to come in processes of their own, by a DataLoader. What comes otherwise is loaded here.

    It is the batch sampler of that DataLoader: a sampler that has nothing now, and may have later.
    """

    def __init__(self, owner: _Loader) -> None:
        self.owner = owner
        self.given: List[Tuple[_Place, List[int]]] = []  # what the DataLoader works on, in order
        self.wanted: Dict[_Place, List[int]] = {}  # leases in parts
        self.it: Any = None

    def __iter__(self) -> "_Ahead":
        return self

    def __next__(self) -> List[int]:
        last = self.given[-1][0] if self.given else (-1, 0)
        at = min((p for p in self.wanted if p > last), default=None)
        if at is None:
            raise StopIteration
        self.given.append((at, self.wanted.pop(at)))
        return self.given[-1][1]

    def fetch(self, place: _Place, indices: List[int], leases: "Dict[int, List[int]]") -> Any:
        for position in list(leases):
            for k, (part, _) in enumerate(self.owner.parts(leases.pop(position))):
                self.wanted[position, k] = part
        for p in [p for p in self.wanted if p <= place]:
            del self.wanted[p]
        batch = None
        while self.given and self.given[0][0] <= place:
            at, samples = self.given.pop(0)
            got = next(self.it)
            if at == place and samples == indices:
                batch = got
        self._fill()
        return self.owner._load(indices) if batch is None else batch

    def _fill(self) -> None:
        """Has the DataLoader as busy as it may be."""
        if self.it is None:
            if not self.wanted:
                return
            kwargs = dict(self.owner.kwargs)
            kwargs.pop("shuffle", None)
            kwargs.pop("drop_last", None)
            try:
                self.it = iter(tud.DataLoader(self.owner.dataset, batch_sampler=cast(Any, self), **kwargs))
            except OSError as e:
                if e.errno != errno.ENOSPC:
                    raise
                raise StarError(
                    "the processes of num_workers cannot be started: /dev/shm is full: make room there (docker: --shm-size), or give num_workers=0", _link.EXIT_LOST
                ) from e
        while self.wanted and len(self.given) < self.owner.prefetch:
            n = len(self.given)
            self.it._try_put_index()
            if len(self.given) == n:
                return


class _Stream:
    """Samples in an order of the script's own: the job says how many, not which."""

    def __init__(self, owner: _Loader) -> None:
        self.owner = owner
        self.it: Optional[Iterator[List[Any]]] = None
        self.rest: List[Any] = []

    def take(self, n: int) -> List[Any]:
        while len(self.rest) < n:
            if self.it is None:
                self.it = iter(self._loader())
                self.rest += next(self.it, [])
                if not self.rest:
                    raise StarError("%s gives no samples" % type(self.owner.dataset).__name__, _link.EXIT_USAGE)
                continue
            more = next(self.it, None)
            if more is None:
                self.it = None  # once more from its beginning
            else:
                self.rest += more
        out, self.rest = self.rest[:n], self.rest[n:]
        return out

    def _loader(self) -> Any:
        kwargs = dict(self.owner.kwargs, collate_fn=_items)
        sampler = kwargs.get("sampler")
        if callable(sampler) and not isinstance(sampler, tud.Sampler):
            kwargs["sampler"] = sampler()
        for name in ("shuffle", "drop_last"):
            kwargs.pop(name, None)
        return tud.DataLoader(self.owner.dataset, batch_size=self.owner.batch_size, **kwargs)


def _items(samples: List[Any]) -> List[Any]:
    return samples


def loader(dataset: Any, batch_size: int = 32, *, accumulate: int = 1, epochs: float = 0, samples: int = 0, **kwargs: Any) -> Any:
    """The batches of dataset that are this worker's, in the place of a DataLoader, whose other arguments pass through.

    Over all workers each sample comes once in an epoch. accumulate=N cuts the batch of a step into N parts of batch_size, so that ``opt.step()``
    comes after N of them. epochs is how long the job is where nobody says otherwise (``star run --epochs``).

    An IterableDataset, or a sampler, gives samples in an order of its own: then the job says how many this worker is to compute, and whether each sample comes once
    is the script's affair: each worker needs its own part, by ``star.rank()`` and ``star.workers()``, which are known when the first sample is asked for. sampler may be a
    function that makes one then. samples is how many an epoch of the whole job has, where the data set has no length.
    """
    s = _current()
    if s is None:
        if not isinstance(dataset, tud.IterableDataset) and "sampler" not in kwargs and "batch_sampler" not in kwargs:
            kwargs.setdefault("shuffle", True)
        return tud.DataLoader(dataset, batch_size=batch_size, **kwargs)
    if kwargs.get("batch_sampler") is not None:
        raise StarError("star.loader(batch_sampler=…): the job says how large a batch is; leave it away, or give a sampler", _link.EXIT_USAGE)
    own = kwargs.get("sampler") is not None or isinstance(dataset, tud.IterableDataset)
    if kwargs.get("shuffle") is False and not own:
        raise StarError("star.loader(shuffle=False): the job shuffles samples, by its --seed; leave it away, or give a sampler, whose order holds", _link.EXIT_USAGE)
    if not own and not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise StarError(
            "star.loader needs a data set with len() and [i], whose samples the job can hand out, or an IterableDataset: %s is neither" % type(dataset).__name__, _link.EXIT_USAGE
        )
    if samples and not own:
        raise StarError("star.loader(samples=%d): the data set has %d; leave it away" % (samples, len(dataset)), _link.EXIT_USAGE)
    if not samples:
        try:
            samples = len(dataset)
        except TypeError:
            raise StarError("%s has no len(): give star.loader(samples=…), how many samples an epoch of the job has" % type(dataset).__name__, _link.EXIT_USAGE) from None
    if batch_size < 1 or accumulate < 1:
        raise StarError("star.loader(batch_size=%d, accumulate=%d): want at least 1" % (batch_size, accumulate), _link.EXIT_USAGE)
    if s.loader is not None:
        raise StarError(
            "star.loader was called before in this process: the job has one stream of samples. Evaluate by star.evaluate, or with a DataLoader of PyTorch", _link.EXIT_USAGE
        )
    s.loader = _Loader(dataset, batch_size, accumulate, epochs, samples, kwargs)
    if own:
        s.loader.stream = _Stream(s.loader)
        warnings.warn(
            "star.loader: %s gives samples in an order of its own, so the job does not see to it that each comes once in an epoch: give each worker its own part, by star.rank() and"
            " star.workers()" % type(kwargs.get("sampler") or dataset).__name__,
            stacklevel=2,
        )
    return s.loader


# Evaluation.


class _Test(NamedTuple):
    f: Evaluation
    dataset: Any
    collate: Callable[[List[Any]], Any]

    def run(self, indices: List[int]) -> Tuple[float, int, int]:
        return self.f(self.collate([self.dataset[i] for i in indices]))


def evaluate(f: Evaluation, testset: Any, *, collate_fn: Optional[Callable[[List[Any]], Any]] = None) -> None:
    """Has the job evaluate, spread over all workers, whenever it does (``star run --eval-every``).

    f takes a batch of testset and gives the sum of the losses, how many predictions are right, and how many there are. It is called without gradients,
    with the model in evaluation mode, and with buffers averaged over all workers. Call evaluate before the first batch of the loader.
    """
    s = _current()
    if s is None:
        return
    if s.link is not None:
        raise StarError("star.evaluate comes before the first batch of star.loader: the job must know the test set when it begins", _link.EXIT_USAGE)
    if s.test is not None:
        raise StarError("star.evaluate was called before in this process", _link.EXIT_USAGE)
    s.test = _Test(f, testset, collate_fn or tud.default_collate)


def rank() -> int:
    """Which worker of the job this is, from 0; 0 without a job; -1 before the first batch."""
    s = _current()
    return 0 if s is None else s.rank


def workers() -> int:
    """How many workers the job may have; 1 without a job; 0 before the first batch."""
    s = _current()
    return 1 if s is None else s.workers
