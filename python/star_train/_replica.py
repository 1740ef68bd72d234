"""A worker that is several processes: a group of torch.distributed, with DistributedDataParallel, fully_shard (FSDP2), or neither.

All processes map the memory that the leader, process 0 of the group, shares with its agent. With fully_shard each process writes its shard of the gradient there, and reads
its shard of the parameters. Otherwise the leader hands over the gradient, which is the mean over the group, and all read the parameters.
"""

from __future__ import annotations

import importlib
import time
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, cast

import torch
import torch.distributed

from . import _cuda, _hub, _job, _link, _rule, _state, _tensors
from ._link import StarError

# How long star.attach waits for the other processes of a group, s.
PATIENCE = 120.0

DDP, SHARDED, PLAIN = "DistributedDataParallel", "fully_shard", "neither"


dist: Any = torch.distributed

# fully_shard and its class are public since PyTorch 2.6.
if tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 6) and dist.is_available():
    FSDPModule: Any = importlib.import_module("torch.distributed.fsdp").FSDPModule
    DTensor: Any = importlib.import_module("torch.distributed.tensor").DTensor
    _local_shape: Any = importlib.import_module("torch.distributed.tensor._utils").compute_local_shape_and_global_offset
else:
    DTensor = FSDPModule = _local_shape = None


def sharded(t: Any) -> bool:
    """Whether a process has a shard of a tensor."""
    return DTensor is not None and isinstance(t, DTensor)


def _local(t: torch.Tensor) -> torch.Tensor:
    """What this process has of a tensor."""
    return cast(Any, t)._local_tensor if sharded(t) else _tensors.data(t)


class Cut(NamedTuple):
    """The part of a whole tensor that this process has."""

    slices: Tuple[slice, ...]
    writes: bool  # no other process with the same part has a lower number


def _cut(t: Any) -> Cut:
    if not sharded(t):
        return Cut((), True)
    shape, offset = _local_shape(t.shape, t.device_mesh, t.placements)
    first = all(c == 0 for c, p in zip(t.device_mesh.get_coordinate(), t.placements) if p.is_replicate())
    return Cut(tuple(slice(o, o + n) for o, n in zip(offset, shape)), first)


class Place(NamedTuple):
    """A tensor of the model and its place in the memory, which is that of this process's part of it."""

    tensor: torch.Tensor
    view: torch.Tensor
    writes: bool


class Shards:
    """The tensors of a process, and their places in the memory; it does what _cuda.Mirror does, by copying between steps."""

    def __init__(self, s: "Replica", m: _link.Memory) -> None:
        self.leads = s.index == 0
        whole = s.kind != SHARDED  # the leader alone writes

        def place(t: torch.Tensor, at: int, dtype: torch.dtype) -> Place:
            cut = _cut(t)
            return Place(t, _job._view(m, at, t, dtype)[cut.slices], cut.writes and (self.leads or not whole and sharded(t)))

        self.params = [place(p, m.params + 4 * at, torch.float32) for _, p, at in s.params]
        self.grads = [place(p, m.grad + 4 * at, torch.float32) for _, p, at in s.params]
        kept = [place(b, m.buffers + 4 * at, b.dtype) for _, b, at in s.buffers]
        self.frozen = [(p, _local(p.tensor)._version) for p in kept if isinstance(p.tensor, torch.nn.Parameter)]
        self.buffers = [p for p in kept if not isinstance(p.tensor, torch.nn.Parameter)]
        self.first = True  # nothing has come from the job
        self.give_parameters()
        for p, _ in self.frozen:
            self._give(p)
        self.give_buffers()

    def put(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """Another tensor has taken the place of one in the model."""
        for places in (self.params, self.grads, self.buffers):
            places[:] = [p._replace(tensor=new) if p.tensor is old else p for p in places]
        self.frozen = [(p._replace(tensor=new), -1) if p.tensor is old else (p, version) for p, version in self.frozen]

    # To the job.

    def _give(self, p: Place) -> None:
        if p.writes:
            p.view.copy_(_local(p.tensor))

    def give_parameters(self) -> None:
        for p in self.params:
            self._give(p)

    def give_buffers(self) -> None:
        for i, (p, version) in enumerate(self.frozen):
            if _local(p.tensor)._version != version:
                self.frozen[i] = (p, _local(p.tensor)._version)
                self._give(p)
        for p in self.buffers:
            self._give(p)

    def leave(self, again: bool) -> None:
        """The memory gets the gradient."""
        for p in self.grads:
            if not p.writes:
                continue
            grad: Any = p.tensor.grad
            if grad is None:
                p.view.zero_()
                continue
            if sharded(grad) and grad.placements != cast(Any, p.tensor).placements:
                grad = grad.redistribute(placements=cast(Any, p.tensor).placements)
            p.view.copy_(_local(grad.detach()))

    def begin(self) -> None:
        """A gradient is to be made."""

    def started(self) -> bool:
        return False

    def completed(self, i: int) -> None:
        """Backward has made the gradient of a parameter."""

    def there(self, wait: bool = False) -> int:
        return 0

    def settle(self) -> None:
        """The memory has what the tensors have."""

    def wait(self) -> None:
        """Copies are complete when they return."""

    # From the job.

    def take(self, evaluate: bool = False) -> None:
        """The tensors get what the memory has. Buffers are the leader's; for an evaluation those that are not averaged stay as they are."""
        some = [(p.tensor, p.view) for p in self.params]
        if self.first:
            self.first = False
            some += [(p.tensor, p.view) for p, _ in self.frozen]
        some += [(p.tensor, p.view) for p in self.buffers if not evaluate or p.tensor.is_floating_point() or p.tensor.is_complex()]
        _cuda._copy([_tensors.data(_local(t)) for t, _ in some], [v for _, v in some])

    def take_gradient(self) -> None:
        """Gradients get the mean of the job's."""
        for p in self.grads:
            if p.tensor.grad is None:
                p.tensor.grad = torch.zeros_like(p.tensor)
            _local(p.tensor.grad).copy_(p.view)


class Replica(_job.Session):
    """The part in the job of a process that is a worker together with others."""

    def __init__(self, group: Any, kind: str, before: _job.Session) -> None:
        super().__init__()
        self.loader, self.test = before.loader, before.test
        self.group, self.kind = group, kind
        self.ranks = ranks_of(group)
        self.index, self.processes = dist.get_rank(group), len(self.ranks)
        self.share = 1.0  # of this process in the batch in hand, times the number of processes
        self.made = 0  # when backward has made the last gradient, before it waits for those of other processes, ns
        self.waited = 0  # for other processes in this step, ns
        self.peers: List[Any] = []
        self.leader: Optional[Tuple[Any, int]] = None
        self.trial = 0  # no part of a gradient leaves before its step

    def meet(self) -> None:
        """Finds the other processes."""
        if self.processes == 1:
            return
        m = _hub.Meeting(dist.distributed_c10d._get_default_store(), "-".join(map(str, self.ranks)), self.index, self.processes, PATIENCE)
        if self.index == 0:
            self.peers = m.lead(self.ranks)
        else:
            self.leader = m.follow(self.ranks)

    # The beginning.

    def _connect(self) -> _link.Link:
        if self.leader is not None:
            sock, pid = self.leader
            spoke = _hub.Spoke(sock)
            spoke.follow(pid)
            return spoke
        # A rank of the whole world is no rank of the job.
        hub = _link.connect(_hub.Hub, ("RANK", "WORLD_SIZE"))
        hub.lead(self.peers)
        hub.ask = self._ask
        return hub

    @property
    def hub(self) -> Optional[_hub.Hub]:
        """Of the leader; None: this is another process."""
        return self.link if isinstance(self.link, _hub.Hub) else None

    def _name_of(self, model: torch.nn.Module) -> str:
        if FSDPModule is not None and isinstance(model, FSDPModule):
            return type(model).__mro__[2].__name__  # fully_shard has made a class of FSDPModule and the model's
        return super()._name_of(model)

    def _watches(self) -> bool:
        return self.kind != SHARDED

    def _list(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super()._list(model, optimizer)
        if self.kind != SHARDED:
            return
        for name, p, _ in self.params:
            if not sharded(p):
                raise StarError("%s is not sharded, and other parameters are: call fully_shard on the whole model, without ignored_params" % name, _link.EXIT_USAGE)
        for name, t, _ in [*self.params, *self.buffers]:
            if sharded(t):
                _check(name, t, self.ranks)

    def _map(self, m: _link.Memory) -> None:
        if self.index == 0 and self.kind != SHARDED:
            super()._map(m)
            return
        self.gpu = cast(_cuda.Mirror, Shards(self, m))
        self.complete = [-1] * len(self.params)

    def _hook(self) -> None:
        """Has each process know when it has made its part of the gradient: then it waits for others."""
        if self.kind == DDP:
            self.keep: List[Any] = []
            for _, p, _ in self.params:
                node = cast(Any, p.expand_as(p).grad_fn).next_functions[0][0]
                node.register_hook(self._made)
                self.keep.append(node)
        elif self.kind == SHARDED:
            for module in cast(torch.nn.Module, self.model).modules():
                if isinstance(module, FSDPModule):
                    self._time(module)

    def _made(self, *_: Any) -> None:
        self.made = time.perf_counter_ns()

    def _time(self, module: Any) -> None:
        """Adds up how long a module of fully_shard waits for others. Where PyTorch has these functions under other names, only the time before the first step counts."""
        state = module._get_fsdp_state()
        for params in getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]:
            for name in ("unshard", "wait_for_unshard", "post_backward", "finalize_backward"):
                f = getattr(params, name, None)
                if f is not None:
                    setattr(params, name, self._timed(f))

    def _timed(self, f: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun, before = time.perf_counter_ns(), self.waited
            try:
                return f(*args, **kwargs)
            finally:
                self.waited = before + time.perf_counter_ns() - begun  # one may call another

        return timed

    # A gradient.

    def _part(self, samples: List[int]) -> List[int]:
        n, i, k = len(samples), self.index, self.processes
        return samples[n * i // k : n * (i + 1) // k] or samples[:1]

    def give(self) -> Tuple[int, List[int]]:
        out = super().give()
        n, i, k = self.count, self.index, self.processes
        mine = n * (i + 1) // k - n * i // k
        assert self.loader is not None
        self.share = float(k * (mine > 0)) if self.loader.sums else mine * k / n
        self.factor, self.made, self.waited = self.share, 0, 0
        return out

    def weigh(self, weight: float, first: bool) -> None:
        """Backward makes the gradient times this, because the processes add up theirs there."""
        self.factor = weight * self.share

    def hand(self, loss: Optional[float], scale: Optional[torch.Tensor] = None, infinite: Optional[torch.Tensor] = None) -> None:
        if self.over:
            return
        if self.step and not self.losses and self.share != 1:
            raise StarError(
                "the last batches of a job may be shorter, and star_train saw no loss.backward() in this one, with which it weighs the parts of the processes: call that, and not"
                " torch.autograd.backward",
                _link.EXIT_USAGE,
            )
        if infinite is not None and self.kind != DDP:  # each process has seen its part
            dist.all_reduce(infinite, op=dist.ReduceOp.MAX, group=self.group)
        super().hand(None if loss is None else loss * self.share, scale, infinite)

    def _computing(self) -> int:
        return (self.made if self.made > self.loaded else time.perf_counter_ns()) - self.loaded - self.waited

    def _send(self, loss: float, changed: bool) -> None:
        if self.kind == PLAIN and self.processes > 1:
            self._reduce()
        super()._send(loss, changed)

    def _reduce(self) -> None:
        """The leader's gradient is the mean over the group."""
        begun = time.perf_counter_ns()
        assert self.memory is not None
        if self.index == 0 and self.gpu is None:
            flat = _cuda.area(self.memory, self.memory.grad, self.memory.nparams)
        else:
            flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1).float() for _, p, _ in self.params])
        dist.reduce(flat, self.ranks[0], op=dist.ReduceOp.SUM, group=self.group)
        if self.index == 0:
            flat.div_(self.processes)
            if self.gpu is not None:
                for _, p, at in self.params:
                    p.grad = flat[at : at + p.numel()].view_as(p).to(p.dtype)
        self.waited += time.perf_counter_ns() - begun

    # What the agent says.

    def _tested(self, test: Any, samples: List[int]) -> Tuple[float, int, int]:
        out: Tuple[float, int, int] = test.run(self._part(samples))
        return out if len(samples) * (self.index + 1) // self.processes > len(samples) * self.index // self.processes else (0.0, 0, 0)

    def _ask(self) -> Optional[Tuple[int, bytes]]:
        hub = self.hub
        if hub is None:
            return super()._ask()
        if hub.known is None:
            hub.remember(super()._ask())
        return hub.known

    def _whole(self, v: Any) -> Any:
        return v.full_tensor() if sharded(v) else v  # all processes come here

    def _mine(self, p: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if not sharded(p):
            return v
        d = cast(Any, p)
        return cast(torch.Tensor, DTensor.from_local(v[_cut(p).slices].clone(), d.device_mesh, d.placements, run_check=False, shape=p.shape, stride=p.stride()))

    def _recalled(self, f: _link.Frame) -> None:
        if self.kind == SHARDED and self.hub is None:
            assert self.optimizer is not None
            if self.own:
                _state.each(self._whole, self.optimizer.state_dict())
            else:
                _rule.slots(self.optimizer, self.rule_name, self.params, self._whole)
        elif self.hub is not None:
            super()._recalled(f)

    def _restore(self, f: _link.Frame) -> None:
        assert self.link is not None
        optimizer, state = self._own(), self.link.recalled(f)
        if self.kind != SHARDED:
            self._load(optimizer, state)
            _link.Link.updated(self.link, f.a)  # others have no state
            return
        if self.hub is not None:
            self.hub.tell_state(self.hub.peers, f.a, 0, state)
        whole = _state.unpack(state, optimizer.state_dict())
        params = [p for g in optimizer.param_groups for p in g["params"]]
        for i, of in whole["state"].items():
            if isinstance(i, int) and i < len(params):
                whole["state"][i] = {k: self._mine(params[i], v) if isinstance(v, torch.Tensor) and v.shape == params[i].shape else v for k, v in of.items()}
        optimizer.load_state_dict(whole)
        self.link.updated(f.a)

    def _update(self, f: _link.Frame) -> None:
        hub = self.hub
        if self.kind == SHARDED:
            if hub is not None:
                hub.tell(f.kind, f.a, f.b, f.c)
            super()._update(f)
        elif hub is not None:
            super()._update(f)  # the leader makes the step for all
        else:
            self._own()
            self.due = f.a
            if not self.stepping:
                self._finish()

    def _finish(self) -> None:
        if not self.due:
            return
        if self.kind == SHARDED:
            super()._finish()
        elif self.hub is not None:
            self._look()
            if self.gpu is not None:
                self.gpu.give_parameters()
            due, self.due = self.due, 0
            self.hub.tell(_link.UPDATE, due)
            self.hub.updated(due)
        else:
            assert self.link is not None
            self._look()
            due, self.due = self.due, 0
            self.link.updated(due)


def _check(name: str, t: Any, ranks: Sequence[int]) -> None:
    """Whether a sharded tensor is one that this worker can hand over."""
    mesh = sorted(int(r) for r in t.device_mesh.mesh.flatten().tolist())
    if mesh != sorted(ranks):
        raise StarError(
            "%s is sharded over the ranks %s, and the group of star.attach has %s: give it the mesh of fully_shard, or the dimension of it that has them all"
            % (name, mesh, list(ranks)),
            _link.EXIT_USAGE,
        )
    if sum(not p.is_replicate() for p in t.placements) > 1 or not all(p.is_shard() or p.is_replicate() for p in t.placements):
        raise StarError(
            "%s is sharded by %s: star.attach takes what fully_shard makes, over one dimension or with copies (HSDP); not tensor parallelism" % (name, t.placements),
            _link.EXIT_USAGE,
        )


def ranks_of(group: Any) -> List[int]:
    """The ranks of the whole world that a group has, by their numbers in it."""
    return [int(r) for r in dist.get_process_group_ranks(group)]


def _group(group: Any) -> Any:
    """The process group that star.attach was given, maybe as a mesh of devices."""
    if not dist.is_available() or not dist.is_initialized():
        raise StarError("star.attach(group=…) comes after torch.distributed.init_process_group", _link.EXIT_USAGE)
    if hasattr(group, "get_group") and hasattr(group, "mesh"):
        if group.ndim == 1:
            return group.get_group()
        flat = getattr(group, "_flatten", None)
        if group.size() == dist.get_world_size():
            return dist.group.WORLD
        if flat is None:
            raise StarError("star.attach(group=…) was given a mesh of %d dimensions: give it one of its dimensions, mesh[name]" % group.ndim, _link.EXIT_USAGE)
        return flat().get_group()
    if not isinstance(group, dist.ProcessGroup):
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise _outside()
        raise StarError("star.attach(group=…) wants a group of torch.distributed or a DeviceMesh, not a %s" % type(group).__name__, _link.EXIT_USAGE)
    return group


def _outside() -> StarError:
    return StarError("this process (rank %d) is not in the group of star.attach: give it the group of its own worker" % dist.get_rank(), _link.EXIT_USAGE)


def begin(model: torch.nn.Module, group: Any, before: _job.Session) -> Replica:
    """The session of a process that is a worker together with the others of a group."""
    group = _group(group)
    if dist.get_rank(group) < 0:
        raise _outside()
    ranks = ranks_of(group)
    kind = PLAIN
    for m in model.modules():
        if isinstance(m, torch.nn.parallel.DistributedDataParallel):
            kind = DDP
            theirs = ranks_of(m.process_group)
            if sorted(theirs) != sorted(ranks):
                raise StarError(
                    "DistributedDataParallel has the ranks %s, and the group of star.attach %s: give both the same group (DistributedDataParallel(…, process_group=…))"
                    % (theirs, ranks),
                    _link.EXIT_USAGE,
                )
        elif type(m).__name__ == "FullyShardedDataParallel":
            raise StarError("star.attach does not know FullyShardedDataParallel: use torch.distributed.fsdp.fully_shard, of PyTorch 2.6 or later", _link.EXIT_USAGE)
    if any(sharded(p) for p in model.parameters()):
        if not any(isinstance(m, FSDPModule) for m in model.modules()):
            raise StarError("the parameters are sharded, and not by fully_shard: star.attach does not know tensor parallelism", _link.EXIT_USAGE)
        kind = SHARDED
    s = _job.session = Replica(group, kind, before)
    s.meet()
    return s
