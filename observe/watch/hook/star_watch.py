"""The part of star watch that is in the watched process: it measures each training step of a rank, and sends what it
took as a line of JSON to the collector of the node. Nothing here waits, and nothing here can end the program: a line
that cannot be sent at once is dropped and counted, and after the first error of our own nothing more is measured.

It distinguishes, per step of an optimizer:

  load      in __next__ of a DataLoader
  exchange  from the last local gradient to the end of backward(), where DDP waits for the others; where it
            broadcasts buffers before forward; in collectives and waits for them that Python calls, as those of
            FSDP and of the script are
  the rest  the rank's own: forward, backward, whatever the script does

A step lasts from the end of the optimizer's step before to the end of its own. Each call in which the rank waits for
others is recorded in a file (star_calls), and so is where the rank is while it makes no progress: from these the
collector finds hangs. Scripts without DDP say what is what:

  from star_train import watch
  with watch.step(samples=32):
      grads = compute()
      with watch.exchange():
          all_reduce(grads)
  with watch.phase("evaluation"):  # long, and no hang, though other ranks wait
      evaluate()

In star watch star_train.watch has the functions of this module; elsewhere its own, which do nothing."""

import json
import os
import socket
import sys
import threading
import time
import weakref

import star_calls

_VERSION = 2
_SETTLE = 5  # steps in which every parameter is hooked
_LAST = 4  # parameters that stay hooked then
_COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_gather_single", "all_to_all", "all_to_all_single", "barrier",
                "broadcast", "broadcast_object_list", "gather", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor",
                "scatter")
# isend and irecv stay as they are: torch.distributed.P2POp compares functions with them.
_TRANSFERS = {"send": "dst", "recv": "src"}
_OPERANDS = ("tensor", "input_tensor", "input", "output", "input_tensor_list", "tensor_list", "output_tensor")
_STEP = '{"k":"step","v":%d,"pid":%d,"dropped":%d,"rank":%d,"step":%d,"took":%.9f,"load":%.9f,"wait":%.9f,"samples":%d,"cpu":%.9f,"gpu":%.9f,"queue":%.9f,"at":%.6f,"from":%.6f%s}'
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
        self.calls = None  # star_calls.Calls, from the first call on
        self.counts = {}  # calls of each group
        self.groups = {}  # of torch.distributed: their ranks
        self.works = weakref.WeakKeyDictionary()  # asynchronous calls: number and text
        self.passes = 0  # backward passes that are open
        self.exchanging = 0  # the token of the exchange of gradients
        self.expected = self.came = 0  # gradients of a backward pass
        self.line = ""  # where the thread that trains is most of the time, as a field of a row
        self.sending = 0.0  # share of its exchanges in which its data wait for a link
        self.schedstat = None  # the kernel's file on the thread that trains, once it is open; -1: no such file
        self.reset(None)

    def reset(self, start):
        self.start = start  # of the step
        self.load = self.wait = 0.0
        self.longest = self.longest_from = 0.0  # exchange
        self.samples = 0
        self.last = 0.0  # local gradient
        self.used_start = self.used_last = self.used() if start is not None else (0.0, 0.0)
        self.cpu_wait = self.queue_wait = 0.0
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

    # -- calls in which the rank waits for others

    def record(self):
        """The file of calls, which the first call opens. It starts the thread that looks where this one is."""
        if self.calls is None and not self.off and self.pid == os.getpid():
            self.me, world = self.rank()
            self.calls = star_calls.Calls(os.path.dirname(self.path), self.me, world)
            self.watcher = star_calls.Watcher(self.path, _VERSION, self.calls.map, lambda: self.thread, self.waits, self.says, self.fail,
                                              sends=self.sends)
            self.watcher.rank = self.me
            self.watcher.start()
        return self.calls

    def waits(self):
        return self.inside > 0 or (self.passes > 0 and self.last > 0)

    def says(self, line):
        self.line = ',"line":' + json.dumps(line[:200]) if line else ""

    def sends(self, share):
        self.sending = share

    def named(self, rank, world):
        """Says the rank again, which a process group may have given."""
        self.me = rank
        if self.calls is not None:
            self.calls.rank(rank, world)
            self.watcher.rank = rank

    def number(self, group):
        n = self.counts[group] = self.counts.get(group, 0) + 1
        return n

    def group(self, pg):
        """Name and ranks of a process group; None for one of other ranks."""
        c10d = sys.modules["torch.distributed.distributed_c10d"]
        if pg is None or pg is getattr(getattr(c10d, "group", None), "WORLD", None):
            pg = c10d._get_default_group()
        name = getattr(pg, "group_name", None)
        if name is None:
            name = c10d._pg_names.get(pg)
        if name is None:
            return None
        name = str(name)
        ranks = self.groups.get(name)
        if ranks is None:
            world = self.rank()[1]
            get = getattr(c10d, "get_process_group_ranks", None)
            ranks = get(pg) if get else list(c10d._pg_group_ranks.get(pg) or range(world))
            ranks = self.groups[name] = tuple(ranks)
        return name, ranks

    def used(self):
        """Seconds for which the process has had processors, and for which the thread that trains has waited for one."""
        cpu, queue = time.process_time(), 0.0
        if self.schedstat != -1:
            try:
                if self.schedstat is None:
                    self.schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
                queue = int(os.pread(self.schedstat, 64, 0).split()[1]) / 1e9
            except (OSError, ValueError, IndexError):  # another kernel, or the program has closed it
                self.schedstat = -1
        return cpu, queue

    # -- what hooks call

    def progress(self):
        if self.calls is not None:
            self.calls.progressed()

    def loaded(self, seconds):
        self.load += seconds
        self.progress()

    def gradient(self, name):
        self.last, self.used_last = _now(), self.used()
        self.order[name] = self.last
        self.came += 1
        if self.exchanging and self.came == self.expected:
            self.calls.computing(0)
        if self.gpu is not None:
            self.gpu.mark()

    def exchanged(self, since, used):
        took = max(0.0, _now() - since)
        self.wait += took
        if took > self.longest:
            self.longest, self.longest_from = took, since
        cpu, queue = self.used()
        self.cpu_wait += max(0.0, cpu - used[0])
        self.queue_wait += max(0.0, queue - used[1])

    def forward(self, module, args, kwargs):
        if self.start is None:
            self.begin()
        self.progress()
        for x in list(args) + list(kwargs.values()):
            if hasattr(x, "shape") and hasattr(x, "size") and len(x.shape) > 0:
                self.samples += int(x.shape[0])
                break

    def begin(self):
        if self.thread != threading.get_ident():
            self.thread, self.schedstat = threading.get_ident(), None
        if self.calls is not None:
            self.watcher.lines, self.line = [], ""  # where it was before the first step, as in imports, says nothing of steps
        self.reset(_now())
        if self.gpu is not None:
            self.gpu.begin()

    def end(self):
        """The end of a step: that of the first one begins the second."""
        now = _now()
        if self.calls is not None:
            self.calls.stepped()
        if self.start is None:
            self.begin()
            return
        if not self.said:
            self.hello()
        took = now - self.start
        wait = min(self.wait, took)
        gpu = self.gpu.own() if self.gpu is not None else None
        more = self.line
        cpu, queue = self.used()
        if self.sending > 0:
            more += ',"send":%.9f' % (self.sending * wait)
        self.write(_STEP % (_VERSION, self.pid, self.dropped, self.me, self.count, took, min(self.load, took - wait), wait, self.samples,
                            max(0.0, cpu - self.used_start[0] - self.cpu_wait), gpu or 0.0, max(0.0, queue - self.used_start[1] - self.queue_wait), now,
                            self.longest_from, more))
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
        self.expected = len(self.handles)

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
    r.last, r.came = 0.0, 0
    r.passes += 1
    if r.passes == 1 and r.how.startswith("DDP") and getattr(r.module, "require_backward_grad_sync", True):
        where = r.group(getattr(r.module, "process_group", None))
        if where is not None and r.record() is not None:
            r.exchanging = _opened(r, "gradients of " + where[0], where[1], "gradients of DDP", "")
            r.calls.computing(r.exchanging)


@_guard
def _backward_left(r):
    r.passes = max(r.passes - 1, 0)
    if r.passes == 0 and r.exchanging:
        r.calls.computing(0)
        r.calls.closed(r.exchanging)
        r.exchanging = 0


@_guard
def _backward_ends(r):
    r.expected = r.came or r.expected
    if r.last:
        r.exchanged(r.last, r.used_last)
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


def _opened(r, group, ranks, kind, detail):
    """Records that the process waits in the next call of a group; returns a token for leave."""
    seq = r.number(group)
    return r.calls.opened(seq, r.calls.issued(group, ranks, seq, kind, detail))


def enter(group, ranks, seq, kind, detail):
    """Records that this process waits for other ranks in a call of a library: seq counts the calls of a group, ranks
    are those of the job. detail has type and shape, as float32[1024]. Returns a token for leave; 0 records nothing."""
    r = _rank
    try:
        if r is None or r.off or r.record() is None or threading.get_ident() in r.calls.outer:
            return 0
        return r.calls.opened(seq, r.calls.issued(group, ranks, seq, kind, detail))
    except Exception:
        r.fail()
        return 0


def leave(token):
    """Records the end of a call that enter has recorded."""
    r = _rank
    if token and r is not None and r.calls is not None and r.pid == os.getpid():
        r.calls.closed(token)


class _Collective(object):
    """Time in which the thread that trains waits for others: collectives in collectives count once. open returns the
    token of the recorded call, from the rank; timed is false for a call that is no part of a step."""

    def __init__(self, open=None, timed=True):
        self.open, self.timed = open, timed

    def __enter__(self):
        r, thread = _rank, threading.get_ident()
        self.of, self.token, self.thread = None, 0, 0
        self.rank = r if r is not None and r.thread == thread and self.timed else None
        if r is None or r.off:
            return
        if self.rank is not None:
            r.inside += 1
            self.since, self.used = _now(), r.used()
        try:
            if r.pid == os.getpid() and r.record() is not None and thread not in r.calls.outer:
                self.token = (self.open or _exchange)(r)
                r.calls.outer[thread] = True
                self.of, self.thread = r, thread
        except Exception:
            r.fail()

    def __exit__(self, *exc):
        if self.of is not None and self.of is _rank:
            self.of.calls.outer.pop(self.thread, None)
            self.of.calls.closed(self.token)
        r = self.rank
        if r is not None and r is _rank and not r.off:
            r.inside -= 1
            if r.inside == 0:
                r.exchanged(self.since, self.used)
        return False


def _exchange(r):
    return _opened(r, "exchange", range(r.rank()[1]), "exchange", "")


def _detail(x):
    """Type and shape of a tensor, or of the first one of a list."""
    if isinstance(x, (list, tuple)) and x:
        return "%d x %s" % (len(x), _detail(x[0]))
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        return ""
    key = (x.dtype, x.shape)
    text = _details.get(key)
    if text is None:
        if len(_details) > 4096:
            _details.clear()
        text = _details[key] = "%s[%s]" % (str(x.dtype).split(".")[-1], ",".join(map(str, x.shape)))
    return text


_details = {}


def _parameters(f):
    import inspect

    try:
        return list(inspect.signature(f).parameters)
    except (TypeError, ValueError):
        return []


def _argument(names, name, args, kwargs):
    if name in kwargs:
        return kwargs[name]
    i = names.index(name) if name in names else len(args)
    return args[i] if i < len(args) else None


_wrapped = {}  # by id: a function, and what is in its place


def _rebind():
    """Names by which other modules have imported functions before they were wrapped, as that of fully_shard."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict) or str(names.get("__name__")).split(".")[0] == "torch":
            continue
        for name, value in list(names.items()):
            own, call = _wrapped.get(id(value), (None, None))
            if own is not None and own is value:
                names[name] = call


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
    _wrapped[id(own)] = own, call


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

        _wrap(cls, "step", lambda own, args, kwargs: _one_step(own, args, kwargs, lambda optimizer: optimizer))

    def made(own, args, kwargs):
        out = own(*args, **kwargs)
        for cls in type(args[0]).__mro__:
            if cls is not object and cls is not torch.optim.Optimizer:
                optimized(cls)
        return out

    _wrap(torch.optim.Optimizer, "__init__", made)

    def backward(own, args, kwargs):
        _backward_begins()
        try:
            out = own(*args, **kwargs)
            _backward_ends()
            return out
        finally:
            _backward_left()

    _wrap(torch.autograd, "backward", backward)

    if not torch.distributed.is_available():
        return
    ddp = torch.nn.parallel.DistributedDataParallel
    names = _parameters(ddp.__init__)

    def built(own, args, kwargs):
        group = _argument(names, "process_group", args, kwargs)
        with _Collective(lambda r: _in_group(r, group, "construction of DDP", ""), False):
            out = own(*args, **kwargs)
        _adopt(args[0], "DDP over " + str(torch.distributed.get_backend()))
        return out

    def forward(own, args, kwargs):
        _forward(args[0], args[1:], kwargs)
        return own(*args, **kwargs)

    def buffers(own, args, kwargs):
        module = args[0]
        return _together(own, args, kwargs, lambda r: _in_group(r, module.process_group, "broadcast of buffers", ""))

    _wrap(ddp, "__init__", built)
    _wrap(ddp, "forward", forward)
    _wrap(ddp, "_sync_buffers", buffers)
    for name in _COLLECTIVES:
        _wrap(torch.distributed, name, _collective(torch.distributed, name))
    for name, end in _TRANSFERS.items():
        _wrap(torch.distributed, name, _transfer(torch.distributed, name, end))
    _wrap(torch.distributed, "init_process_group", _started)
    _wrap(torch.distributed, "new_group", lambda own, args, kwargs: _together(own, args, kwargs, lambda r: _in_group(r, None, "new_group", ""), False))
    _wrap(torch.distributed.Work, "wait", _waited)


def _one_step(own, args, kwargs, optimizer):
    """The step of an optimizer, and of others that it calls."""
    r = _rank
    if r is not None:
        r.depth += 1
    try:
        return own(*args, **kwargs)
    finally:
        if r is not None:
            r.depth -= 1
            if r.depth == 0:
                _stepped(optimizer(args[0]))


def _in_group(r, pg, kind, detail):
    where = r.group(pg)
    return 0 if where is None else _opened(r, where[0], where[1], kind, detail)


def _collective(dist, name):
    """What to call in the place of a collective."""
    names = _parameters(getattr(dist, name, None))
    operand = next((n for n in _OPERANDS if n in names), "")

    def collective(own, args, kwargs):
        r = _rank
        if r is None or r.off or _compiling():
            return own(*args, **kwargs)
        if not r.how:
            r.how = "own loop over " + str(dist.get_backend())
        entered = []

        def open(r):
            where = r.group(_argument(names, "group", args, kwargs))
            if where is None:
                return 0
            seq = r.number(where[0])
            text = r.calls.issued(where[0], where[1], seq, name, _detail(_argument(names, operand, args, kwargs)) if operand else "")
            entered.append((seq, text))
            return r.calls.opened(seq, text)

        with _Collective(open):
            out = own(*args, **kwargs)
        _remember(r, out, entered)
        return out

    return collective


def _remember(r, work, entered):
    """Keeps number and text of an asynchronous call, for its wait."""
    if entered and hasattr(work, "wait"):
        try:
            r.works[work] = entered[0]
        except TypeError:
            pass


def _waited(own, args, kwargs):
    def open(r):
        seq, text = r.works.get(args[0], (0, None))
        return r.calls.opened(seq, text)

    return _together(own, args, kwargs, open)


def _transfer(dist, name, end):
    """What to call in the place of a transfer between two ranks. Both ends record one call of a group of two."""
    names = _parameters(getattr(dist, name, None))

    def transfer(own, args, kwargs):
        r, other = _rank, _argument(names, end, args, kwargs)
        if r is None or r.off or _compiling() or not isinstance(other, int):
            return own(*args, **kwargs)
        entered = []

        def open(r):
            a, b = (r.me, other) if end == "dst" else (other, r.me)
            group = "transfers %d to %d" % (a, b)
            seq = r.number(group)
            text = r.calls.issued(group, (a, b), seq, "send/recv from %d to %d" % (a, b), _detail(_argument(names, "tensor", args, kwargs)))
            entered.append((seq, text))
            return r.calls.opened(seq, text)

        with _Collective(open):
            out = own(*args, **kwargs)
        _remember(r, out, entered)
        return out

    return transfer


def _started(own, args, kwargs):
    """init_process_group, which waits for all ranks."""

    def open(r):
        rank, world = kwargs.get("rank", -1), kwargs.get("world_size", -1)
        if isinstance(rank, int) and isinstance(world, int) and rank >= 0 and world > 0:
            r.named(rank, world)
        else:
            world = r.rank()[1]
        return _opened(r, "start", range(world), "init_process_group", "")

    with _Collective(open, False):
        out = own(*args, **kwargs)
    _ranked()
    return out


@_guard
def _ranked(r):
    r.named(*r.rank())


def _together(own, args, kwargs, open=None, timed=True):
    if _compiling():  # the call becomes a part of the compiled program
        return own(*args, **kwargs)
    with _Collective(open or (lambda r: 0), timed):
        return own(*args, **kwargs)


def _compiling():
    compiler = sys.modules.get("torch.compiler")
    return compiler is not None and hasattr(compiler, "is_compiling") and compiler.is_compiling()


def _patch_functional(functional):
    """DTensor, by which gradients of FSDP2 are clipped, waits here."""
    def waited(own, args, kwargs):
        return _together(own, args, kwargs, lambda r: _opened(r, "functional", range(r.rank()[1]), "functional collective", _detail(args[0]) if args else ""))

    _wrap(functional, "wait_tensor", waited)


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


def _patch_pipeline(pipelining):
    """A stage of a pipeline waits for the stages beside it in calls of Python."""

    def built(own, args, kwargs):
        out = own(*args, **kwargs)
        _adopt_stage(args[0])
        return out

    _wrap(pipelining._PipelineStageBase, "__init__", built)


@_guard
def _adopt_stage(r, stage):
    if r.module is None and not r.how.startswith("pipeline"):
        r.how = "pipeline over " + str(sys.modules["torch"].distributed.get_backend())


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


def _patch_deepspeed(engine):
    """DeepSpeed exchanges by collectives and transfers that Python calls. A step of its engine calls several of optimizers."""

    def built(own, args, kwargs):
        out = own(*args, **kwargs)
        _adopt_deepspeed(args[0])
        return out

    def forward(own, args, kwargs):
        _forward(args[0], args[1:], kwargs)
        return own(*args, **kwargs)

    def step(own, args, kwargs):
        return _one_step(own, args, kwargs, lambda engine: getattr(engine, "basic_optimizer", None) or engine.optimizer)

    _wrap(engine.DeepSpeedEngine, "__init__", built)
    _wrap(engine.DeepSpeedEngine, "forward", forward)
    _wrap(engine.DeepSpeedEngine, "_take_model_step", step)


@_guard
def _adopt_deepspeed(r, engine):
    stage = engine.zero_optimization_stage()
    how = "pipeline of DeepSpeed" if getattr(engine.module, "num_stages", 1) > 1 else "DeepSpeed ZeRO-%d" % stage if stage else "DeepSpeed"
    r.params = sum(getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters())
    r.adopt(engine.module, how + " over " + str(sys.modules["torch"].distributed.get_backend()), True)


_PATCHES = {"torch": _patch, "torch.distributed.fsdp": _patch_fsdp, "torch.distributed._composable.fsdp": _patch_fsdp,
            "torch.distributed._functional_collectives": _patch_functional, "torch.distributed.pipelining.stage": _patch_pipeline,
            "deepspeed.runtime.engine": _patch_deepspeed}


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
    parent = star_calls.parent_of(os.path.dirname(path), os.getppid())
    _listen(parent, os.getppid())  # a worker that a DataLoader has spawned
    if parent is None:
        _launched()
    if hasattr(os, "register_at_fork"):  # rows of a child would be of a rank that exists already
        os.register_at_fork(after_in_child=_forked)
    for name, patch in _PATCHES.items():
        if name in sys.modules:
            patch(sys.modules[name])
    _rebind()
    sys.meta_path.insert(0, _Finder())


@_guard
def _launched(r):
    """A rank of a launcher is known before it waits for others, or is waited for."""
    if r.rank()[1] > 1:
        r.record()


def _forked():
    """A child by fork (as multiprocessing makes them) may be a rank itself, or load data: it measures for itself, and says nothing until it has steps."""
    global _rank
    if _rank is not None:
        parent, _rank = _rank, _Rank(_rank.path)
        if parent.calls is not None:
            _listen(parent.calls.map, parent.pid)


def _listen(calls, parent):
    """Has a process that works for a rank send its stack when that rank makes no progress."""
    if calls is not None:
        star_calls.Watcher(_rank.path, _VERSION, calls, parent=parent).start()


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

    def __init__(self):
        _Collective.__init__(self)


class phase(object):
    """Long work of this rank that is no hang, though others wait: with star_train.watch.phase("evaluation"): …"""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        _phase(self.name)
        return self

    def __exit__(self, *exc):
        _phase("")
        return False


@_guard
def _phase(r, name):
    if r.record() is not None:
        r.calls.phase(str(name))
