"""This process's part in a job: what its agent says, and the gradients that it gets for it."""

from __future__ import annotations

import math
import operator
import time
import warnings
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sized, Tuple, cast

import torch

from . import _cuda, _link, _rule, _state, _tensors
from ._link import StarError

if TYPE_CHECKING:
    from ._data import Loader, Test
    from ._optimizer import Attached
    from ._schedule import Schedule

# Parts of a gradient of at least this many elements (1 MiB) are announced while backward still runs.
_PART = 1 << 18

# Steps that are observed before parts are announced early: whether the script changes gradients between backward and step.
_TRIAL = 3


# Types of buffers and frozen parameters, as the link calls them; not all are in every version of PyTorch.
_DTYPES = {
    getattr(torch, ours): name
    for ours, name in {
        "float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "complex64": "C64", "complex128": "C128", "int8": "I8", "int16": "I16", "int32": "I32",
        "int64": "I64", "bool": "BOOL", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e8m0fnu": "F8_E8M0",
    }.items()
    if hasattr(torch, ours)
}  # fmt: skip


class Tensor(NamedTuple):
    name: str
    tensor: torch.Tensor
    at: int  # words of 4 bytes from the start of its area


class Session:
    """This process's part in the job."""

    exchange = False  # all that the job does for it is to exchange gradients
    private = False  # gradients of parameters are not in the memory, but copied there
    processes = 1  # that are this worker

    def __init__(self) -> None:
        self.link: Optional[_link.Link] = None
        self.model: Optional[torch.nn.Module] = None
        self.device: Optional[torch.device] = None  # a GPU; None: the processor
        self.optimizer: Optional[torch.optim.Optimizer] = None
        self.loader: Optional[Loader] = None
        self.test: Optional[Test] = None
        self.rank = -1
        self.workers = 0
        self.over = False

        self.params: List[Tensor] = []
        self.grads: List[torch.Tensor] = []
        self.buffers: List[Tensor] = []
        self.gpu: Optional[_cuda.Mirror] = None  # the model is on one
        self.schedule: Optional[Schedule] = None
        self.scheduled = False  # a scheduler was made before star.attach
        self.own = False  # the optimizer makes its steps here
        self.failed: Optional[BaseException] = None  # what was raised in backward, which makes a RuntimeError of it
        self.frozen: List[Tuple[str, torch.nn.Parameter]] = []  # though the optimizer has them
        self.memory: Optional[_link.Memory] = None
        self.tensors: Optional[_tensors.Tensors] = None
        self.due = 0  # update that the optimizer has made; the agent gets it when the script wants its next batch; 0: none
        self.stepping = False  # the script is in opt.step()

        self.step = 0  # of the gradient that is asked for; 0: none is
        self.computed = 0  # gradients
        self.count = 0  # samples of the batch in hand
        self.parts_wanted = False
        self.pending: Optional[_link.Frame] = None
        self.wanted = 0  # which of the updates of its batch
        self.leases: Dict[int, List[int]] = {}
        self.loss: Any = 0.0  # a tensor on a GPU, which is not waited for before the end of the step
        self.losses = 0
        self.asked = 0  # when the batch was asked for, ns
        self.loaded = 0  # when it was there

        self.trial = _TRIAL
        self.early = True
        self.complete: List[int] = []  # by parameter: version of its gradient when it was complete; -1: it is not
        self.weight = 1.0  # of the part of the batch that is computed, in the gradient of the whole
        self.factor = 1.0  # of the gradient that backward makes
        self.again = False  # backward has come to a parameter twice in this step
        self.low = 0  # parameters from here on are complete
        self.told = 0  # element from which on the agent knows
        self.warned = False
        self.queue: List[_link.Frame] = []  # that have come before the answer to a question
        self.last: Optional[Tuple[int, bytes]] = None  # what the job's optimizer remembered at the end
        self.known = -1  # gradients that were computed when the optimizer's state was that of the job
        self.rule_name = ""  # of the job's update
        self.settings: Optional[List[Any]] = None  # of the optimizer's groups, as the job has them; None: its steps are made here

    # The beginning.

    def begin(self) -> None:
        """Speaks with the agent until the parameters are the job's memory. It needs attach and loader, whichever came first."""
        if self.link is not None:
            return
        model, optimizer, ld = self.model, self.optimizer, self.loader
        if model is None or optimizer is None or ld is None:
            raise StarError("star.attach(model, optimizer) comes before the first batch of star.loader", _link.EXIT_USAGE)
        if not self.exchange and self._unfollowed(optimizer):
            raise StarError(
                "a scheduler of torch.optim.lr_scheduler was made for the optimizer, and the job does not have it, so its rates would not be the job's: give it to star.schedule"
                " before the first batch; or take it away, and give the job its --schedule",
                _link.EXIT_USAGE,
            )
        self._list(model, optimizer)
        rates = None
        if self.schedule is not None:
            rates = self.schedule.run(ld, self.own)
        self.settings = None if self.own else _rule.settings(optimizer, self.schedule is not None)
        if self.own:
            rule: Dict[str, Any] = {"name": "own", "lr": float(optimizer.param_groups[0]["lr"])}
        else:
            rule = _rule.rule(optimizer, self.params, rates)
        if self.schedule is not None and not self.own:
            rule["schedule"] = self.schedule.table
        about = {
            "name": self._name_of(_unwrapped(model)[0]),
            "program": "PyTorch " + torch.__version__.split("+")[0] + (", " + _cuda.cuda.get_device_name(self.device) if self.device is not None else ""),
            "layout": [{"name": t.name, "shape": list(t.tensor.shape)} for t in self.params],
            "buffers": [_buffer(t) for t in self.buffers],
            "data": type(ld.dataset).__name__,
            "samples": ld.samples,
            "tests": 0 if self.test is None else len(cast(Sized, self.test.dataset)),
            "batch": ld.batch_size * ld.accumulate * self.processes,
            "prefetch": 0 if ld.stream is not None else ld.prefetch,
            "optimizer": rule,
            "whole": not ld.divisible,
            "drop_last": ld.drop_last,
        }
        made = None if self.own else _rule.steps(optimizer, rule["name"], [(t.name, t.tensor) for t in self.params])
        if made is not None:
            about["state"] = {"steps": made, "slots": _rule.SLOTS[rule["name"]]}
        self.rule_name = rule["name"]
        if not self.own:
            about["remembers"] = True
        if _link.show_stacks():
            about["stack"] = True
        if self.exchange:
            about["exchange"] = True
        self._declare(about)
        if ld.epochs:
            about["epochs"] = ld.epochs
        self.link = self._connect()
        self.memory = self.link.begin(about)
        self._map(self.memory)
        self._hook()
        self.link.finish, self.link.serve = self._finish, self._serve
        self.link.ready()
        torch.Tensor.backward = _backward  # type: ignore[method-assign]
        if self._watches():
            self.tensors = _tensors.Tensors(model, [t.tensor for t in self.params], [t.tensor for t in self.buffers], not self.own)
            _tensors.watch(self.tensors)
        self._next()
        self._watch()

    def _name_of(self, model: torch.nn.Module) -> str:
        return type(model).__name__

    def _connect(self) -> _link.Link:
        return _link.connect(_link.Link)

    def _watches(self) -> bool:
        """Whether it looks at what the script does to tensors."""
        return not self.exchange

    def _unfollowed(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a scheduler was made that the job does not have."""
        return self.schedule is None and (self.scheduled or _rule.scheduled(optimizer))

    def optimizers(self) -> List[torch.optim.Optimizer]:
        """Those that star.attach was given."""
        return [] if self.optimizer is None else [self.optimizer]

    def follows(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the rates of an optimizer are those of a scheduler."""
        return self.schedule is not None

    def follow(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def check(self, optimizer: Any) -> None:
        """An optimizer is about to make its step."""

    def _declare(self, about: "Dict[str, Any]") -> None:
        """Adds what else the job must know."""

    def _list(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        updated = {id(p) for g in optimizer.param_groups for p in g["params"]}
        plain = _plain(model)
        named = [(plain(name), p) for name, p in model.named_parameters()]
        self.device = _cuda.device_of(named)
        known = {id(p) for _, p in named}
        strange = sum(1 for i in updated if i not in known)
        if strange:
            raise StarError("%d parameters of the optimizer are not in the model: give star.attach the model that has them all" % strange, _link.EXIT_DISAGREE)
        at = 0
        kept: List[Tuple[str, torch.Tensor]] = []
        for name, p in named:
            if p.requires_grad and id(p) in updated:
                _check(name, p, self.device)
                self.params.append(Tensor(name, p, at))
                at += p.numel()
            else:  # it does not change: it is kept with the buffers, so that checkpoints have it
                if id(p) in updated:
                    self.frozen.append((name, p))
                kept.append((name, p))
        saved = set(model.state_dict())
        buffers = [(plain(name), b) for name, b in model.named_buffers() if name in saved]
        kept += sorted(buffers, key=lambda b: b[1].is_complex())  # last: checkpoints of earlier versions, which may be resumed, lack them
        self._lay(kept)

    def _lay(self, kept: List[Tuple[str, torch.Tensor]]) -> None:
        """Where each of the tensors that are not optimised is in the memory."""
        end = 0
        for name, b in kept:
            if b.dtype not in _DTYPES or b.layout != torch.strided:
                raise StarError(
                    "%s is %s, %s, which a checkpoint of the job cannot hold: make it dense, of another type, or a buffer with persistent=False" % (name, b.dtype, b.layout),
                    _link.EXIT_DISAGREE,
                )
            begin, end = _link.place(_DTYPES[b.dtype], b.numel(), end)
            self.buffers.append(Tensor(name, b, begin))

    def _map(self, m: _link.Memory) -> None:
        if self.device is not None:
            kept = [_cuda.Place(b, at) for _, b, at in self.buffers]
            parameters = sum(isinstance(p.tensor, torch.nn.Parameter) for p in kept)
            self.gpu = _cuda.Mirror(self.device, m, [_cuda.Place(p, at) for _, p, at in self.params], kept[:parameters], kept[parameters:])
            self.complete = [-1] * len(self.params)
            self.grads = [_view(m, m.grad + 4 * at, p) for _, p, at in self.params]
            return
        for _, p, at in self.params:
            self._share(p, m.params + 4 * at)
            p.grad = None
            self.grads.append(self._grad(p, at))
            self.complete.append(-1)
        self.grad_addresses = [g.data_ptr() for g in self.grads]
        for _, b, at in self.buffers:
            self._share(b, m.buffers + 4 * at)

    def _share(self, t: torch.Tensor, at: int) -> None:
        """The tensor is in the memory from now on, with its value."""
        assert self.memory is not None
        view = _view(self.memory, at, t, t.dtype)
        view.copy_(_tensors.data(t))
        _tensors.set_data(t, view)

    def _grad(self, p: torch.Tensor, at: int) -> torch.Tensor:
        """The gradient of p is in the memory from now on, with its value."""
        assert self.memory is not None
        view = _view(self.memory, self.memory.grad + 4 * at, p)
        if p.grad is None:
            view.zero_()
        else:
            view.copy_(p.grad)
        p.grad = view
        return view

    # Tensors that the script changes between two steps.

    def _watch(self) -> None:
        """Changes count from now on: the script goes on."""
        if self.tensors is not None:
            self.tensors.settle()
            self.tensors.watching = True

    def _look(self) -> None:
        """Takes over what the script has changed. Values of parameters are the job's where it updates them, so that a change of them is an error."""
        tensors = self.tensors
        if tensors is None or not tensors.watching:
            return
        changes = tensors.changes()
        tensors.watching = False
        if changes is None:
            return
        n = len(self.params)
        for i in sorted([*changes.replaced, *changes.moved]):
            t = tensors.now(i)
            if t is None:
                raise self._changed_tensor(i, "was taken out of the model")
            if t is not tensors.tensors[i]:
                if i < n:
                    raise self._changed_tensor(i, "was replaced by another tensor, which the optimizer does not have")
                tensors.put(i, t)
            if tensors.kind(t) != tensors.kinds[i]:
                raise self._changed_tensor(i, "is %s now, it was %s: tensors of a job keep shape, type and device" % (tensors.kind(t), tensors.kinds[i]))
            if i < n and not self.own and (self.gpu is not None or not self._unchanged(t, self.params[i].at)):
                raise self._changed_tensor(i, "was given other values (p.data = …)")
            self._take_over(i)
        if changes.written:
            raise self._changed_tensor(changes.written[0], "was changed in place (by load_state_dict, clamp_ and the like, or Embedding(max_norm=…))")

    def _place(self, i: int) -> Tensor:
        n = len(self.params)
        return self.params[i] if i < n else self.buffers[i - n]

    def _changed_tensor(self, i: int, what: str) -> StarError:
        if i < len(self.params) and not self.own:
            what += (
                " after the first batch. The servers of the job update parameters, and do not see that: leave it away, do it before the first batch,"
                " or have the optimizer make its steps in this process, by star.attach(…, own=True) and --arch allreduce"
            )
        return StarError("%s %s" % (self._place(i).name, what), _link.EXIT_USAGE)

    def _unchanged(self, p: torch.Tensor, at: int) -> bool:
        """Whether a parameter with other storage has the values of the memory."""
        assert self.memory is not None
        view = _view(self.memory, self.memory.params + 4 * at, p)
        return p.dtype == view.dtype and torch.equal(_tensors.data(p), view)

    def _take_over(self, i: int) -> None:
        """The memory gets a tensor that has other storage, and the tensor is in the memory again."""
        assert self.memory is not None and self.tensors is not None
        n = len(self.params)
        name, old, at = self._place(i)
        t = self.tensors.tensors[i]
        known = self.params if i < n else self.buffers
        known[i if i < n else i - n] = Tensor(name, t, at)
        if self.gpu is not None:
            self.gpu.put(old, t)
            return
        self._share(t, (self.memory.params if i < n else self.memory.buffers) + 4 * at)
        if i < n:
            self.grads[i] = self._grad(t, at)
            self.grad_addresses[i] = self.grads[i].data_ptr()

    def advance(self) -> None:
        """The script has done with its last step: the job goes on, until it wants a batch of this worker or is over."""
        if self.due or (self.pending is None and not self.over):
            self._finish()
            self._next()
            self._watch()
        elif self.over:  # what was changed behind the last step is in no checkpoint
            self._look()

    def _finish(self) -> None:
        """The update that the script's optimizer has made counts, with what the script has done to the parameters since."""
        if not self.due:
            return
        self._look()
        if self.gpu is not None:
            self.gpu.give_parameters()
        due, self.due = self.due, 0
        assert self.link is not None
        self.link.updated(due)

    # What the agent says.

    def _next(self) -> None:
        """Waits until the agent asks for a gradient, which stays pending, or the job is over."""
        assert self.link is not None
        while self._idle():
            f = self.queue.pop(0) if self.queue else self.link.receive()
            if f.kind == _link.COMPUTE:
                self.asked = time.perf_counter_ns()
                self.wanted = f.c >> _link.TURN & 0x7FFF
                self.pending = f = f._replace(c=f.c & ~(0x7FFF << _link.TURN))
                if self.gpu is not None:
                    self.gpu.take()
                if self.schedule is not None:
                    self.schedule.show(f.c & ~_link.WANTS_PARTS)
            elif f.kind == _link.LEASE:
                self.leases[f.a] = self._part(_link.indices(f))
            elif f.kind == _link.JOINED:
                self.rank, self.workers = f.a, f.b
            elif f.kind == _link.UPDATE:
                self._update(f)
            elif f.kind == _link.STATE and self.own:
                self._restore(f)
            elif f.kind == _link.STOP:
                self.over = True
            else:
                self._serve(f)

    def _idle(self) -> bool:
        """Whether the agent is waited for."""
        return self.pending is None and not self.over and not self.due

    def _serve(self, f: _link.Frame) -> None:
        """What the job asks of a process also when its loop is over."""
        assert self.link is not None
        if f.kind == _link.EVALUATE:
            self._evaluate(f)
        elif f.kind == _link.RECALL:
            self._recalled(f)
        elif f.kind == _link.STATE and not self.own:
            self.last = (f.c, self.link.recalled(f))

    def _recalled(self, f: _link.Frame) -> None:
        """The agent asks for the optimizer's state: of one in this process, or, as the job begins, of the one that the job runs from now on."""
        assert self.link is not None and self.optimizer is not None
        if self.own:
            self.link.state(f.a, _state.pack(_state.each(self._whole, self.optimizer.state_dict())))
        else:
            self.link.state(f.a, _rule.slots(self.optimizer, self.rule_name, self.params, self._whole))

    def _whole(self, v: Any) -> Any:
        """A tensor of the optimizer's state; this process may have a part of it."""
        return v

    def _mine(self, p: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """What this process has of a tensor of the optimizer's state that is as large as a parameter."""
        return v

    def recall(self) -> None:
        """Has the optimizer remember what the job's does."""
        if self.own or self.link is None or self.optimizer is None or self.known == self.computed:
            return
        answer = None if self.over else self._ask()
        if self.over and self.last is not None:
            return self._remember(*self.last)
        if answer is None:
            raise StarError(
                "the job is over, and what its optimizer remembers is in its checkpoint, with which star run --resume goes on: worker 0 may call state_dict() now (star.rank()), all others"
                " while there are batches",
                _link.EXIT_USAGE,
            )
        steps, data = answer
        if steps & _link.RECALLED_ERROR:
            raise StarError("the job does not say what its optimizer remembers: %s" % data.decode("utf-8", "replace"), _link.EXIT_LOST)
        self._remember(steps, data)

    def _ask(self) -> Optional[Tuple[int, bytes]]:
        """The steps of the job's optimizer, and what it remembers; None: the job is over."""
        assert self.link is not None
        self.link.recall()
        f = self.link.receive()
        while f.kind not in (_link.STATE, _link.STOP):
            self.queue.append(f)
            f = self.link.receive()
        self.over = f.kind == _link.STOP
        return None if self.over else (f.c, self.link.recalled(f))

    def _remember(self, steps: int, data: bytes) -> None:
        assert self.optimizer is not None
        slots, n = _rule.SLOTS[self.rule_name], self._elements()
        if len(data) != 4 * n * len(slots):
            raise StarError(
                "the job's optimizer remembers %d bytes, and %s has %d: the job updates by another rule (--optimizer)" % (len(data), self.rule_name, 4 * n * len(slots)),
                _link.EXIT_USAGE,
            )
        self.known = self.computed
        self.optimizer.state.clear()
        flat = torch.frombuffer(bytearray(data), dtype=torch.float32).view(len(slots), n) if slots else torch.empty(0)
        if not flat.any():
            return  # it has made no step
        for _, p, at in self.params:
            state: Dict[str, Any] = {} if "momentum_buffer" in slots else {"step": torch.tensor(float(steps))}
            for k, slot in enumerate(slots):
                state[slot] = self._mine(p, flat[k, at : at + p.numel()].view(p.shape).to(p.device, p.dtype, copy=True))
            self.optimizer.state[p] = state

    def _restore(self, f: _link.Frame) -> None:
        """What the optimizer of another worker, or of a checkpoint, remembers."""
        assert self.link is not None
        optimizer = self._own()
        self._load(optimizer, self.link.recalled(f))
        self.link.updated(f.a)

    def _load(self, optimizer: torch.optim.Optimizer, state: bytes) -> None:
        optimizer.load_state_dict(_state.unpack(state, optimizer.state_dict()))

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
        if self.gpu is not None:
            self.gpu.take_gradient()
        cast("Attached", optimizer).make_step()
        self.due = f.a
        if not self.stepping:  # an update without a gradient of this worker
            self._finish()

    def _evaluate(self, f: _link.Frame) -> None:
        assert self.link is not None and self.model is not None
        if self.test is None:
            raise StarError("the agent asks for an evaluation, and there is no test set")
        if self.gpu is not None:
            self.gpu.take(evaluate=True)
        if self.tensors is not None:
            self.tensors.known = False  # the script's function may write what it restores
        was = [(m, m.training) for m in self.model.modules()]
        self.model.eval()
        try:
            with torch.no_grad():
                loss, correct, count = self._tested(self.test, _link.indices(f))
        finally:
            for m, training in was:
                m.training = training
        self.link.evaluated(f.a, float(loss), int(correct), int(count))

    def _tested(self, test: Test, samples: List[int]) -> Tuple[float, int, int]:
        return test.run(samples)

    # A gradient.

    def give(self) -> Tuple[int, List[int]]:
        """The batch that is pending: its position and its samples."""
        assert self.pending is not None
        f = self.pending
        self.step, self.parts_wanted = f.a, bool(f.c & _link.WANTS_PARTS)
        self.low, self.told = len(self.params), self._elements()
        self.losses, self.loss, self.again, self.weight = 0, 0.0, False, 1.0
        self.count = f.b
        for i in range(len(self.complete)):
            self.complete[i] = -1
        if self.gpu is not None:
            self.gpu.begin()
        return f.c & ~_link.WANTS_PARTS, self._part(_link.indices(f))

    def _part(self, samples: List[int]) -> List[int]:
        """This process's part of a batch of the worker."""
        return samples

    def weigh(self, weight: float, first: bool) -> None:
        """The next part of the batch, or its first one, counts so much, where the script adds up its parts as if they were of one size."""
        if not first and weight != self.weight:
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
        self._look()
        if infinite is not None:  # a GradScaler was here
            if float(infinite) > 0:
                self._scale(0)  # it counts as zero
            elif scale is not None:
                self._scale(1 / float(scale))
            if loss is None and scale is not None:
                loss = float(self.loss) / float(scale)
            elif loss is None:
                self.losses = 0  # the script has scaled it by an unknown factor
        if self.pending is None or self.step == 0:
            raise StarError("opt.step() without a batch of star.loader in hand: each batch of it makes one step (star.loader(accumulate=N) makes one of N)", _link.EXIT_USAGE)
        assert self.link is not None and self.loader is not None
        ld = self.loader
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
        by = self.weight
        if ld.sums:  # in an update a gradient counts by its samples, which is right for means
            by *= ld.batch_size * ld.accumulate * self.processes / self.count
            loss /= self.count
        if by != 1:
            self._scale(by)
            loss *= self.weight
        self._send(loss, touched or by != 1)

    def _send(self, loss: float, changed: bool) -> None:
        """The job gets the gradient, which was changed after backward, or not. Comes back when the parameters are the next ones."""
        assert self.link is not None
        if self.gpu is not None:
            self._leave(self.gpu, changed)
        step, self.step, self.pending = self.step, 0, None
        self.computed += 1
        self.link.done(step, loss, self.loaded - self.asked, self._computing())
        self.stepping = True
        self._next()
        self.stepping = False
        self._watch()

    def _computing(self) -> int:
        """How long this process has computed the gradient, ns."""
        return time.perf_counter_ns() - self.loaded

    def _gather(self) -> bool:
        """Has all gradients in the memory. True: one was changed after backward had completed it."""
        grads, params = self.grads, [t.tensor for t in self.params]
        mine = [p.grad for p in params]
        if not all(map(operator.is_, mine, grads)) or list(map(torch.Tensor.data_ptr, grads)) != self.grad_addresses:
            for i, (name, p, at) in enumerate(self.params):
                view, grad = grads[i], p.grad
                if grad is None:
                    view.zero_()
                    p.grad = view
                elif grad.is_sparse:
                    raise StarError("the gradient of %s is sparse: give the embedding sparse=False" % name, _link.EXIT_DISAGREE)
                elif grad.data_ptr() != self.grad_addresses[i]:
                    grads[i] = self._grad(p, at)
                    self._copied(name)
                else:
                    p.grad = view
        # What backward has not come to was not told of.
        return any(c not in (-1, g._version) for c, g in zip(self.complete, grads))

    def _changed(self) -> bool:
        """Whether a gradient was changed after backward had completed it."""
        for name, p, _ in self.params:
            if p.grad is not None and p.grad.is_sparse:
                raise StarError("the gradient of %s is sparse: give the embedding sparse=False" % name, _link.EXIT_DISAGREE)
        return any(c not in (-1, grad_version(p)) for c, (_, p, _) in zip(self.complete, self.params))

    def _leave(self, gpu: _cuda.Mirror, again: bool) -> None:
        """The gradient goes from the GPU to the memory; its parts are reported as they arrive."""
        gpu.leave(again)
        gpu.give_buffers()
        while gpu.there(wait=True) > 0:
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
            if self.early and self.trial == 0 and self.step and not self.again:
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


session: Optional[Session] = None
_stock_warned = False


def current() -> Optional[Session]:
    """The session of this process; None: there is no job, and everything is stock PyTorch."""
    global session, _stock_warned
    if session is None:
        if _link.wanted():
            _link.watch()
            session = Session()
        elif not _stock_warned:
            _stock_warned = True
            warnings.warn("star_train: this process is part of no job, so it trains alone, as plain PyTorch: start it by star run --workers N -- python …", stacklevel=3)
    return session


_plain_backward = torch.Tensor.backward


def _backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    s = session
    if s is not None and s.step and self.numel() == 1:
        s.losses += 1
        loss = self.detach()
        s.loss += (float(loss) if s.device is None else loss.double()) * s.factor
        if s.factor != 1:
            args, kwargs = _times(self, s.factor, args, kwargs)
    try:
        return _plain_backward(self, *args, **kwargs)  # type: ignore[no-untyped-call]
    except RuntimeError:
        if s is not None and s.failed is not None:
            failed, s.failed = s.failed, None
            raise failed from None
        raise


def _times(loss: torch.Tensor, factor: float, args: Tuple[Any, ...], kwargs: "Dict[str, Any]") -> Tuple[Tuple[Any, ...], "Dict[str, Any]"]:
    """The arguments with which backward of a loss makes the gradient times a factor."""
    given = args[0] if args else kwargs.get("gradient")
    gradient = torch.full_like(loss.detach(), factor) if given is None else given * factor
    return (gradient, *args[1:]), {k: v for k, v in kwargs.items() if k != "gradient"}


def _check(name: str, p: torch.Tensor, gpu: Optional[torch.device]) -> None:
    if p.dtype not in (_cuda.FLOATS if gpu is not None else (torch.float32,)):
        raise StarError(
            "parameter %s is %s: the job exchanges float32. Use model.float(), and torch.autocast for what may be computed in less" % (name, p.dtype), _link.EXIT_DISAGREE
        )
    if p.is_sparse:
        raise StarError("parameter %s is sparse" % name, _link.EXIT_DISAGREE)


def _buffer(t: Tensor) -> "Dict[str, Any]":
    """A buffer as the link names it."""
    about: Dict[str, Any] = {"name": t.name, "shape": list(t.tensor.shape)}
    if t.tensor.dtype != torch.float32:
        about["dtype"] = _DTYPES[t.tensor.dtype]
    return about


_COMPILED, _PARALLEL = "_orig_mod", "module"  # where torch.compile and DistributedDataParallel have the model


def _unwrapped(model: torch.nn.Module) -> Tuple[torch.nn.Module, str]:
    """The model within what torch.compile, DataParallel and DistributedDataParallel make of it, and what they put before its names."""
    prefix = ""
    while True:
        if _COMPILED in model._modules:
            part = _COMPILED
        elif isinstance(model, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
            part = _PARALLEL
        else:
            return model, prefix
        model = cast(torch.nn.Module, model._modules[part])
        prefix += part + "."


def _plain(model: torch.nn.Module) -> Callable[[str], str]:
    """Takes what wrappers add away from the name of a tensor."""
    prefix = _unwrapped(model)[1]
    return lambda name: name[len(prefix) :].replace("." + _COMPILED + ".", ".")


def _view(m: _link.Memory, at: int, like: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The memory from a byte on, in the shape of a tensor."""
    if like.numel() == 0:
        return torch.empty(like.shape, dtype=dtype)
    return cast(torch.Tensor, _cuda.area(m, at, like.numel(), dtype).view(like.shape))
