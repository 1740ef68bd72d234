"""The part of star watch that is in the watched process: it measures each training step of a rank, and sends what it
took as a line of JSON to the collector of the node. Nothing here waits, and nothing here can end the program: a line
that cannot be sent at once is dropped and counted, and after the first error of our own nothing more is measured.

It distinguishes, per step of an optimizer:

  load      in __next__ of a DataLoader
  exchange  from the last local gradient to the end of backward(), where DDP waits for the others; where it
            broadcasts buffers before forward; in collectives and waits for them that Python calls, as those of
            FSDP and of the script are
  the rest  the rank's own: forward, backward, whatever the script does

A step lasts from the end of the optimizer's step before to the end of its own. Scripts without DDP say what is what:

  from star_train import watch
  with watch.step(samples=32):
      grads = compute()
      with watch.exchange():
          all_reduce(grads)

In star watch star_train.watch has the functions of this module; elsewhere its own, which do nothing."""

import json
import os
import socket
import sys
import threading
import time

_VERSION = 1
_SETTLE = 5  # steps in which every parameter is hooked
_LAST = 4  # parameters that stay hooked then
_COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_gather_single", "all_to_all", "all_to_all_single", "barrier",
                "broadcast", "broadcast_object_list", "gather", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor",
                "scatter")
_STEP = '{"k":"step","v":%d,"pid":%d,"dropped":%d,"rank":%d,"step":%d,"took":%.9f,"load":%.9f,"wait":%.9f,"samples":%d,"cpu":%.9f,"gpu":%.9f,"at":%.6f,"from":%.6f}'
_now = time.perf_counter


class _Rank:
    """What is measured of this process."""

    def __init__(self, path):
        self.path = path
        self.pid = os.getpid()
        self.socket = None
        self.tail = b""
        self.off = False
        self.dropped = 0
        self.said = False
        self.me = 0  # the rank, once it has said hello
        self.module = None  # the module of DDP or FSDP
        self.how = ""
        self.params = 0  # before FSDP has them in parts
        self.thread = threading.get_ident()  # that trains
        self.input = None  # the hook that sees what goes into the module of FSDP2
        self.optimizer = None
        self.depth = 0  # of optimizer steps that call others
        self.blocks = 0  # star_watch.step that are open
        self.inside = 0  # collectives that are called
        self.count = 0
        self.handles = []
        self.order = {}  # of parameters, by when their gradients came
        self.batch = 0
        self.gpu = None
        self.reset(None)

    def reset(self, start):
        self.start = start  # of the step
        self.load = self.wait = 0.0
        self.longest = self.longest_from = 0.0  # exchange
        self.samples = 0
        self.last = 0.0  # local gradient
        self.cpu_start = time.process_time()
        self.cpu_last = self.cpu_wait = 0.0
        self.order.clear()

    def fail(self):
        """An error of ours: the program goes on without us, and the collector hears why."""
        if not self.off:
            self.off = True
            import traceback

            self.send({"k": "note", "rank": self.me, "text": traceback.format_exc(limit=-2)[-600:]})

    def rank(self):
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        for rank, world in (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
            if rank in os.environ and world in os.environ:
                return int(os.environ[rank]), int(os.environ[world])
        return 0, 1

    def send(self, row):
        row["v"], row["pid"], row["dropped"] = _VERSION, self.pid, self.dropped
        self.write(json.dumps(row))

    def write(self, line):
        try:
            if self.pid != os.getpid():  # a process that a DataLoader forked
                return
            if self.socket is None:
                self.tail = b""
                self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self.socket.setblocking(False)
                self.socket.connect(self.path)
            while self.tail:  # of a line that went out in part
                self.tail = self.tail[self.socket.send(self.tail):]
            line = line.encode() + b"\n"
            self.tail = line[self.socket.send(line):]
        except BlockingIOError:
            self.dropped += 1
        except OSError:  # the collector is gone
            self.dropped += 1
            if self.socket is not None:
                self.socket.close()
                self.socket = None

    def hello(self):
        self.said = True
        self.me, world = self.rank()
        row = {"k": "hello", "rank": self.me, "world": world, "how": self.how or "own loop", "script": os.path.basename(sys.argv[0] or "python")[:200],
               "python": sys.version.split()[0], "optimizer": "", "momentum": 0.0, "cuda": self.gpu is not None}
        torch = sys.modules.get("torch")
        if torch is not None:
            row["torch"] = str(torch.__version__)
            if self.module is not None:
                row["params"] = self.params or sum(p.numel() for p in self.module.parameters())
        if self.optimizer is not None:
            row["optimizer"] = type(self.optimizer).__name__
            group = self.optimizer.param_groups[0] if self.optimizer.param_groups else {}
            betas = group.get("betas")
            row["momentum"] = float(betas[0] if betas else group.get("momentum", 0.0) or 0.0)
        self.send(row)

    # -- what hooks call

    def loaded(self, seconds):
        self.load += seconds

    def gradient(self, name):
        self.last, self.cpu_last = _now(), time.process_time()
        self.order[name] = self.last
        if self.gpu is not None:
            self.gpu.mark()

    def exchanged(self, since, cpu):
        took = max(0.0, _now() - since)
        self.wait += took
        if took > self.longest:
            self.longest, self.longest_from = took, since
        self.cpu_wait += max(0.0, time.process_time() - cpu)

    def forward(self, module, args, kwargs):
        if self.start is None:
            self.begin()
        for x in list(args) + list(kwargs.values()):
            if hasattr(x, "shape") and hasattr(x, "size") and len(x.shape) > 0:
                self.samples += int(x.shape[0])
                break

    def begin(self):
        self.thread = threading.get_ident()
        self.reset(_now())
        if self.gpu is not None:
            self.gpu.begin()

    def end(self):
        """The end of a step: that of the first one begins the second."""
        now = _now()
        if self.start is None:
            self.begin()
            return
        if not self.said:
            self.hello()
        took = now - self.start
        wait = min(self.wait, took)
        gpu = self.gpu.own() if self.gpu is not None else None
        self.write(_STEP % (_VERSION, self.pid, self.dropped, self.me, self.count, took, min(self.load, took - wait), wait, self.samples,
                            max(0.0, time.process_time() - self.cpu_start - self.cpu_wait), gpu or 0.0, now, self.longest_from))
        self.count += 1
        if self.count == _SETTLE and self.order and self.module is not None:
            late = sorted(self.order, key=self.order.get)[-_LAST:]
            self.hook(set(late))
        self.begin()

    def hook(self, only=None):
        """Has the parameters of the module, or some of them, say when their gradients are there."""
        for h in self.handles:
            h.remove()
        self.handles = []
        for name, p in self.module.named_parameters():
            if not p.requires_grad or (only is not None and name not in only):
                continue

            def came(grad, name=name):
                try:
                    if not self.off:
                        self.gradient(name)
                except Exception:
                    self.fail()

            self.handles.append(p.register_hook(came))

    def adopt(self, module, how, sharded):
        """Takes a module for that of the job. One in shards waits for others in calls of Python, and its gradients need no hooks."""
        self.module, self.how = module, how
        torch = sys.modules["torch"]
        if torch.cuda.is_available() and any(p.is_cuda for p in module.parameters()):
            self.gpu = self.gpu or _GPU(torch)
            if sharded:
                self.how += ", coarse on a GPU"
        if not sharded:
            self.hook()


class _GPU:
    """Times of the GPU: kernels run after the script has gone on. Events of one step are read in a later one, when they are over."""

    def __init__(self, torch):
        self.torch = torch
        self.first = self.last = None
        self.pending = []

    def event(self):
        e = self.torch.cuda.Event(enable_timing=True)
        e.record()
        return e

    def begin(self):
        now = self.event()
        if self.first is not None:  # without hooked gradients all of the step is own
            self.pending.append((self.first, self.last or now))
            del self.pending[:-8]
        self.first, self.last = now, None

    def mark(self):
        self.last = self.event()

    def own(self):
        """Seconds from a step's beginning to its last local gradient, of the newest finished step; None: no finished step."""
        out = None
        while self.pending and self.pending[0][1].query():
            a, b = self.pending.pop(0)
            out = a.elapsed_time(b) / 1e3
        return out


_rank = None  # type: _Rank


def _guard(f):
    """f, but an error of it ends the measuring and not the program."""

    def call(*args):
        r = _rank
        if r is None or r.off or r.pid != os.getpid():
            return None
        try:
            return f(r, *args)
        except Exception:
            r.fail()
            return None

    return call


@_guard
def _loaded(r, seconds):
    r.loaded(seconds)


@_guard
def _forward(r, module, args, kwargs):
    r.forward(module, args, kwargs)


@_guard
def _backward_begins(r):
    r.last = 0.0


@_guard
def _backward_ends(r):
    if r.last:
        r.exchanged(r.last, r.cpu_last)
    elif r.handles and r.count >= _SETTLE:  # others are the last ones now
        r.hook()


@_guard
def _stepped(r, optimizer):
    if r.module is None and not r.how and r.rank()[1] == 1:  # no other rank to exchange with
        r.how = "one process"
    if r.blocks == 0 and (r.module is not None or r.how):
        r.optimizer = r.optimizer or optimizer
        r.end()


@_guard
def _adopt(r, module, how):
    if r.module is None:
        r.adopt(module, how, False)


@_guard
def _adopt_sharded(r, module, how, params):
    """Modules of FSDP are in each other, and the outermost is made last."""
    if r.module is None or r.how.startswith("FSDP"):
        r.params = max(r.params, params)
        r.adopt(module, how + " over " + str(sys.modules["torch"].distributed.get_backend()), True)


class _Collective(object):
    """Time in which the thread that trains waits for others: collectives in collectives count once."""

    def __enter__(self):
        r = self.rank = _rank if _rank is not None and _rank.thread == threading.get_ident() else None
        if r is not None and not r.off:
            r.inside += 1
            self.since, self.cpu = _now(), time.process_time()

    def __exit__(self, *exc):
        r = self.rank
        if r is not None and r is _rank and not r.off:
            r.inside -= 1
            if r.inside == 0:
                r.exchanged(self.since, self.cpu)
        return False


def _wrap(owner, name, around):
    """Puts around in the place of a function of a class or a module, once."""
    own = getattr(owner, name, None)
    if own is None or getattr(own, "_star_watch", False):
        return
    import functools

    @functools.wraps(own)
    def call(*args, **kwargs):
        return around(own, args, kwargs)

    call._star_watch = True
    setattr(owner, name, call)


def _patch(torch):
    """Hooks a torch that has just been imported."""
    from torch.utils.data import dataloader

    def fetched(own, args, kwargs):
        since = _now()
        try:
            return own(*args, **kwargs)
        finally:
            _loaded(_now() - since)

    _wrap(dataloader._BaseDataLoaderIter, "__next__", fetched)

    def optimized(cls):
        if "step" not in cls.__dict__:
            return

        def step(own, args, kwargs):
            r = _rank
            if r is not None:
                r.depth += 1
            try:
                return own(*args, **kwargs)
            finally:
                if r is not None:
                    r.depth -= 1
                    if r.depth == 0:
                        _stepped(args[0])

        _wrap(cls, "step", step)

    def made(own, args, kwargs):
        out = own(*args, **kwargs)
        for cls in type(args[0]).__mro__:
            if cls is not object and cls is not torch.optim.Optimizer:
                optimized(cls)
        return out

    _wrap(torch.optim.Optimizer, "__init__", made)

    def backward(own, args, kwargs):
        _backward_begins()
        out = own(*args, **kwargs)
        _backward_ends()
        return out

    _wrap(torch.autograd, "backward", backward)

    if not torch.distributed.is_available():
        return
    ddp = torch.nn.parallel.DistributedDataParallel

    def built(own, args, kwargs):
        out = own(*args, **kwargs)
        _adopt(args[0], "DDP over " + str(torch.distributed.get_backend()))
        return out

    def forward(own, args, kwargs):
        _forward(args[0], args[1:], kwargs)
        return own(*args, **kwargs)

    def collective(own, args, kwargs):
        r = _rank
        if r is not None and not r.how and not r.off:
            r.how = "own loop over " + str(torch.distributed.get_backend())
        return _together(own, args, kwargs)

    _wrap(ddp, "__init__", built)
    _wrap(ddp, "forward", forward)
    _wrap(ddp, "_sync_buffers", _together)
    for name in _COLLECTIVES:
        _wrap(torch.distributed, name, collective)
    _wrap(torch.distributed.Work, "wait", _together)


def _together(own, args, kwargs):
    if _compiling():  # the call becomes a part of the compiled program
        return own(*args, **kwargs)
    with _Collective():
        return own(*args, **kwargs)


def _compiling():
    compiler = sys.modules.get("torch.compiler")
    return compiler is not None and hasattr(compiler, "is_compiling") and compiler.is_compiling()


def _patch_functional(functional):
    """DTensor, by which gradients of FSDP2 are clipped, waits here."""
    _wrap(functional, "wait_tensor", _together)


def _patch_fsdp(fsdp):
    """FSDP gathers parameters and scatters gradients by collectives that Python calls and waits for."""

    def count(module):
        return sum(p.numel() for p in module.parameters()) if hasattr(module, "parameters") else 0

    def built(own, args, kwargs):
        params = count(args[1] if len(args) > 1 else kwargs.get("module"))
        out = own(*args, **kwargs)
        _adopt_sharded(args[0], "FSDP", params)
        return out

    def forward(own, args, kwargs):
        _sharded_forward(args[0], args[1:], kwargs)
        return own(*args, **kwargs)

    def sharded(own, args, kwargs):
        out = own(*args, **kwargs)
        if hasattr(out, "register_forward_pre_hook"):
            _adopt_sharded(out, "FSDP2", 0)
            _see_input(out)
        return out

    if hasattr(fsdp, "FullyShardedDataParallel"):
        _wrap(fsdp.FullyShardedDataParallel, "__init__", built)
        _wrap(fsdp.FullyShardedDataParallel, "forward", forward)
    if hasattr(fsdp, "fully_shard"):
        _wrap(fsdp, "fully_shard", sharded)


@_guard
def _sharded_forward(r, module, args, kwargs):
    if module is r.module:
        r.forward(module, args, kwargs)


@_guard
def _see_input(r, module):
    if module is r.module:
        if r.input is not None:
            r.input.remove()
        r.input = module.register_forward_pre_hook(_forward, with_kwargs=True)


_PATCHES = {"torch": _patch, "torch.distributed.fsdp": _patch_fsdp, "torch.distributed._composable.fsdp": _patch_fsdp,
            "torch.distributed._functional_collectives": _patch_functional}


class _Finder:
    """Is asked for every module that is imported, and has some of torch hooked when they have been."""

    def find_spec(self, name, path=None, target=None):
        patch = _PATCHES.get(name)
        if patch is None:
            return None
        spec = None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    break
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            try:
                patch(module)
            except Exception:
                if _rank is not None:
                    _rank.fail()

        try:
            spec.loader.exec_module = exec_module
        except AttributeError:
            pass
        return spec


def install():
    """Called once, when Python starts."""
    global _rank
    path = os.environ.get("STAR_WATCH_SOCKET", "")
    if not path or _rank is not None:
        return
    _rank = _Rank(path)
    if hasattr(os, "register_at_fork"):  # rows of a child would be of a rank that exists already
        os.register_at_fork(after_in_child=_forked)
    for name, patch in _PATCHES.items():
        if name in sys.modules:
            patch(sys.modules[name])
    sys.meta_path.insert(0, _Finder())


def _forked():
    """A child by fork (as multiprocessing makes them) may be a rank itself, or load data: it measures for itself, and says nothing until it has steps."""
    global _rank
    if _rank is not None:
        _rank = _Rank(_rank.path)


class step(object):
    """One training step of a loop that star watch does not know: with star_train.watch.step(samples=32): …"""

    def __init__(self, samples=0):
        self.samples = samples

    def __enter__(self):
        r = _rank
        if r is not None and not r.off:
            r.blocks += 1
            if r.blocks == 1:
                r.how = r.how or "own loop"
                r.reset(_now())
                r.samples = self.samples
        return self

    def __exit__(self, *exc):
        r = _rank
        if r is not None and r.blocks > 0:
            r.blocks -= 1
            if r.blocks == 0 and exc[0] is None and not r.off:
                try:
                    r.end()
                except Exception:
                    r.fail()
        return False


class exchange(_Collective):
    """The part of a step in which the rank waits for others: with star_train.watch.exchange(): …"""
