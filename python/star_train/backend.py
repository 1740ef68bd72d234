"""The backend ``star`` of torch.distributed: ``init_process_group("star")``. ``docs/backend.md`` in the project describes it.

An installed star-train registers it when torch is imported; otherwise ``import star_train.backend`` does. Ranks of one host exchange data in shared memory
(``_shm``, ``_collectives``). What this backend does not do itself it has done by Gloo.
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import functools
import importlib
import os
import queue
import sys
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import torch as typed_torch

from . import _across
from ._autoload import register
from ._collectives import Local, dense
from ._shm import BackendError, Segment, linger, meet, pack, wait

__all__ = ["BackendError", "register"]

BackendError.__module__ = __name__

# Which types PyTorch gives these depends on its version.
torch: Any = typed_torch
dist: Any = torch.distributed
_c10d: Any = getattr(torch._C, "_distributed_c10d", None)
_Work: Any = getattr(_c10d, "Work", object)


def _base() -> Any:
    """The class to derive from: Backend, or, where it cannot be derived from in Python (before PyTorch 2.10), ProcessGroup."""
    if not dist.is_available() or not hasattr(_c10d, "Backend"):
        raise ImportError("cannot use the backend star: PyTorch %s has no interface for it in torch.distributed; try PyTorch 2.5 or later" % torch.__version__)
    try:
        type("Probe", (_c10d.Backend,), {"__init__": lambda self: _c10d.Backend.__init__(self, 0, 1)})()
        return _c10d.Backend
    except (TypeError, AttributeError):
        return dist.ProcessGroup


_Backend: Any = _base()
_GROUP = _Backend is getattr(dist, "ProcessGroup", None)
_Tensor = typed_torch.Tensor

# How long the end of the program waits for collectives that it has begun and not waited for.
_LINGER = 5.0

# The most works of a group that are kept though nothing waits for them.
_UNWAITED = 1024

# A timeout for calls that have none, and the longest one: time.monotonic() + it stays a number that a wait accepts.
_LONGEST = 1e9

_OPS = {"SUM": "sum", "AVG": "avg", "PRODUCT": "product", "MIN": "min", "MAX": "max", "BAND": "band", "BOR": "bor", "BXOR": "bxor", "PREMUL_SUM": "premul_sum"}
_names: Dict[Any, str] = {}

_FORKED = (
    "cannot use a process group in a process that forked after init_process_group; call destroy_process_group and then init_process_group, with another MASTER_PORT, in the child"
)

_groups: "weakref.WeakSet[StarBackend]" = weakref.WeakSet()
_kept: Dict[int, "StarBackend"] = {}  # PyTorch may hold only the C++ half of an object
_began = False  # this process has made its first group


class _Last(threading.local):
    """The Work that this thread called get_future of last."""

    work: Optional["StarWork"] = None


_last = _Last()


class StarWork(_Work):  # type: ignore[misc]
    """A collective that is queued, running or done."""

    def __init__(self, group: "StarBackend", run: Callable[[float], None], outputs: Sequence[_Tensor], timeout: float) -> None:
        super().__init__()
        self._group, self._run, self._outputs, self._timeout = group, run, outputs, timeout
        self._done = threading.Lock()
        self._done.acquire()
        self._over = False
        self._error: Optional[BaseException] = None
        self._future: Any = None
        self._future_lock = threading.Lock()

    def execute(self) -> None:
        """Runs the collective. The caller has the group's lock."""
        try:
            self._group.perform(self._run, self._timeout)
        except BaseException as e:  # whatever it is, the thread that waits gets it
            self._error = e

    def finish(self) -> None:
        """Tells all that wait. Callbacks of the future run here, and may call collectives: the caller has no lock."""
        with self._future_lock:
            self._over = True
            future = self._future
        self._done.release()
        if future is not None:
            self._complete(future)
            self._group.waited(self)

    def _complete(self, future: Any) -> None:
        if self._error is None:
            future.set_result(self._outputs)
        else:
            error = self._error
            future.set_exception(error if isinstance(error, Exception) else BackendError(str(error) or type(error).__name__))

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        seconds = timeout.total_seconds()
        if not self._over:
            self._group.help(self, seconds if seconds > 0 else _LONGEST)
        self._group.waited(self)
        if self._error is not None:
            raise self._error
        return True

    def until(self, seconds: float) -> bool:
        """Waits for the end of the collective for some seconds, and returns whether it is over."""
        if not self._over and self._done.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            self._done.release()
        return self._over

    def has_callbacks(self) -> bool:
        return self._future is not None

    def get_future(self) -> Any:
        _last.work = self
        with self._future_lock:
            if self._future is not None:
                return self._future
            future = self._future = torch.futures.Future()
            over = self._over
        if over:
            self._complete(future)
        return future

    def is_completed(self) -> bool:
        return self._over

    def is_success(self) -> bool:
        return self._over and self._error is None

    def exception(self) -> Any:
        return self._error

    def result(self) -> List[_Tensor]:
        return list(self._outputs)

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        raise BackendError("cannot tell the source rank of a collective: only a receive from any rank has one")

    _source_rank = source_rank


class _Default:
    """Options of a call that has none."""

    timeout = timedelta(seconds=-1)
    asyncOp = True
    reduceOp = getattr(dist.ReduceOp, "SUM", None)
    rootRank = 0


_DEFAULT = _Default()


class _Done(StarWork):
    """A collective that is over when its call returns."""

    def __init__(self) -> None:
        _Work.__init__(self)
        self._outputs, self._over, self._error, self._future = (), True, None, None
        self._future_lock = threading.Lock()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True


class _Behind(StarWork):
    """A call that Gloo carries out."""

    def __init__(self, group: "StarBackend", work: Any, what: str) -> None:
        _Work.__init__(self)
        self._group, self._work, self._what = group, work, what

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        try:
            return bool(self._work.wait(timeout) if timeout > timedelta(0) else self._work.wait())
        except RuntimeError as e:
            raise self._group.explained(e, self._what) from e

    def get_future(self) -> Any:
        _last.work = self
        return self._work.get_future()

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> List[_Tensor]:
        return list(self._work.result())

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return int(self._work._source_rank())

    _source_rank = source_rank


def _ask_python_works() -> None:
    """Has a Work of torch.distributed answer for the Python object in it.

    PyTorch wraps a Work that Python returns in an object which passes on wait and get_future only: is_completed would be False for ever, and a receive from
    any rank could not tell its source. get_future leads from the wrapper to the Work in it.
    """
    if getattr(_Work, "_star_asks", False):
        return

    def asking(name: str) -> None:
        own = getattr(_Work, name, None)
        if own is None:
            return

        def ask(self: Any, *args: Any) -> Any:
            if type(self) is _Work:
                _last.work = None
                try:
                    self.get_future()
                except Exception:  # most kinds of Work have no future
                    pass
                work, _last.work = _last.work, None
                if work is not None:
                    return getattr(work, name)(*args)
            return own(self, *args)

        ask.__name__, ask.__doc__ = name, own.__doc__
        setattr(_Work, name, ask)

    for name in ("is_completed", "is_success", "exception", "result", "source_rank", "_source_rank", "synchronize"):
        asking(name)
    _Work._star_asks = True


def _op(opts: Any) -> Tuple[str, Any]:
    """The name of a reduction, and the factor of premul_sum."""
    op = opts.reduceOp
    kind = getattr(op, "op", op)
    name = _names.get(kind)
    if name is None:
        name = _names[kind] = _OPS.get(kind.name if hasattr(kind, "name") else str(kind).split(".")[-1], "")
        if not name:
            raise BackendError("cannot reduce by %s: unknown operation; use sum, avg, product, min, max, band, bor or bxor" % op)
    return name, (op.__getstate__()[1] if name == "premul_sum" else None)


class StarBackend(_Backend):  # type: ignore[misc]
    """One process group."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, name: str = "", ranks: Sequence[int] = ()) -> None:
        super().__init__(rank, size)
        self._store, self._me, self._count, self._timeout = store, rank, size, timeout.total_seconds()
        self._name, self._ranks = name, tuple(ranks) or tuple(range(size))
        self._sequence = 0
        self._queue: Deque[StarWork] = collections.deque()
        self._unwaited: Dict[int, StarWork] = {}
        self._tokens: "queue.SimpleQueue[int]" = queue.SimpleQueue()
        self._busy = threading.Lock()
        self._threads: List[threading.Thread] = []
        self._idle = 0  # of the threads
        self._pool = threading.Lock()
        self._headers: Dict[Any, bytes] = {}
        self._closed = False
        self.inherited = False  # this process forked from the one that made the group
        self._local: Optional[Local] = None
        self._gloo: Any = None
        self._streams: Dict[Any, Any] = {}
        seconds = min(self._timeout, _LONGEST)
        prefix, hellos = meet(store, rank, size, seconds)
        self._prefix, self._monitored = prefix, 0
        hosts = sorted({h.host for h in hellos}, key=[h.host for h in hellos].index)
        where = [hosts.index(h.host) for h in hellos]
        here = [r for r in range(size) if where[r] == where[rank]]
        try:
            agent = self._agent(prefix, here, seconds, len(hosts) > 1)
            if len(hosts) == 1 or agent is not None:
                segment = Segment(store, prefix, here, hellos, rank, seconds, _across.area(len(hosts)) if len(hosts) > 1 else 0)
                self._local = Local(segment) if len(hosts) == 1 else _across.begin(agent, store, prefix, name, segment, where, rank, seconds)
        except BackendError:
            linger(store, prefix, rank, size)
            raise
        if size > 1 or _GROUP:
            self._gloo = self._behind(dist.PrefixStore(prefix + "gloo", store))
        if _GROUP and self._gloo is not None:  # calls that C++ makes and this class has not, and the name of the group, are those of a registered backend
            self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._gloo)
        self._watch = _watch()
        self._done = _Done()
        _groups.add(self)
        _kept[id(self)] = self

    def _agent(self, prefix: str, here: Sequence[int], timeout: float, needed: bool) -> Any:
        """The agent of this host, if all ranks have one: it exchanges data with other hosts, and measures the job from its first group on."""
        global _began
        first, _began = not _began, True
        if not needed and not (first and self._count > 1 and os.environ.get("STAR_WATCH", "true").lower() not in ("false", "0")):
            return None
        agent, said = None, "no"
        try:
            agent = importlib.import_module("star_train._agent").Agent.ensure(self._store, self._me, self._count, here.index(self._me), timeout)
            said = "no" if agent is None else "yes"
        except Exception as e:  # a job on one host goes on without
            if needed:
                said = str(e) or type(e).__name__
            else:
                sys.stderr.write("star_train: this job is not measured: %s\n" % e)
        if first and agent is not None:
            agent.watch()
        self._store.set(prefix + "agent/%d" % self._me, said)
        end = time.monotonic() + timeout
        for r in [self._me, *range(self._count)]:
            if not wait(self._store, [prefix + "agent/%d" % r], end - time.monotonic()):
                raise BackendError("cannot begin the group: rank %d did not say whether it has an agent; check that it runs" % r)
            said = self._store.get(prefix + "agent/%d" % r).decode()
            if said not in ("yes", "no"):
                raise BackendError("cannot begin the group, which spans hosts: rank %d has no agent: %s" % (r, said))
            if said == "no":
                return None
        return agent

    # -- what PyTorch asks. A flag that is not set here would make PyTorch ask itself without end.

    supports_coalescing = supports_reconfigure = supports_window = supports_abort_hooks = _supports_time_estimate = False

    def getBackendName(self) -> str:
        return "star"

    def name(self) -> str:
        return "star"

    @property
    def options(self) -> Any:
        o = _c10d.Backend.Options("star", timedelta(seconds=self._timeout))
        if hasattr(o, "global_ranks_in_group"):
            o.global_ranks_in_group = list(self._ranks)
            o.group_name = self._name
        return o

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        pass

    def get_error(self) -> Any:
        """Whether a collective has failed, as an ErrorType of PyTorch."""
        why = self._local.segment.closed if self._local is not None and not self._closed else ""
        kinds = _c10d.ErrorType
        return kinds.SUCCESS if not why else kinds.TIMEOUT if "timed out" in why else kinds.COMM_ERROR

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout.total_seconds()
        if hasattr(self._gloo, "set_timeout"):
            self._gloo.set_timeout(timeout)

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    @property
    def supports_splitting(self) -> bool:
        return True

    def split(self, store: Any, ranks: Sequence[int], opts: Any) -> "StarBackend":
        """A group of some of this one's ranks, which alone call it."""
        timeout = getattr(opts, "_timeout", timedelta(0))
        if timeout <= timedelta(0):
            timeout = timedelta(seconds=self._timeout)
        return StarBackend(store, list(ranks).index(self._me), len(ranks), timeout, getattr(opts, "group_name", ""), [self._ranks[r] for r in ranks])

    @property
    def supports_shrinking(self) -> bool:
        return True

    def shrink(self, excluded: Sequence[int], flags: int = 0, opts: Any = None) -> "StarBackend":
        """A group without some ranks, which may have died; the others call it. This group's store must outlive them."""
        rest = [r for r in range(self._count) if r not in set(excluded)]
        store = dist.PrefixStore("%sshrunk/%s/" % (self._prefix, "-".join(map(str, rest))), self._store)
        if flags & 1:  # SHRINK_ABORT
            self.abort()
        return self.split(store, rest, opts)

    # -- running

    def _behind(self, store: Any) -> Any:
        if not dist.is_gloo_available():
            return None
        return dist.ProcessGroupGloo(store, self._me, self._count, timeout=timedelta(seconds=min(self._timeout, 30 * 86400)))

    def perform(self, run: Callable[[float], None], timeout: float) -> None:
        """Runs a collective; the caller has self._busy."""
        segment = self._local.segment if self._local is not None else None
        try:
            run(time.monotonic() + timeout)
        except BaseException as e:
            if segment is not None and segment.active and not segment.closed:
                try:
                    segment.fail("collective %d was interrupted: %s" % (segment.number, str(e) or type(e).__name__))
                except BackendError:
                    pass
            raise
        finally:
            if segment is not None:
                segment.active = False

    def _usable(self) -> None:
        if self._closed or self.inherited:
            raise BackendError(_FORKED if self.inherited else "cannot use the process group: it is destroyed; call init_process_group or new_group")

    def _issue(self, run: Callable[[float], None], outputs: Sequence[_Tensor], opts: Any) -> StarWork:
        """Runs a collective now, or queues it. Collectives run in the order of their calls."""
        self._usable()
        self._sequence += 1
        timeout = opts.timeout.total_seconds()
        if timeout <= 0:
            timeout = self._timeout
        blocking = not getattr(opts, "asyncOp", True)
        if blocking and not self._queue and self._busy.acquire(False):
            try:
                self.perform(run, timeout)
            finally:
                self._busy.release()
            return self._done
        work = self._keep(StarWork(self, run, outputs, timeout))
        self._queue.append(work)
        if not self._threads:
            self.grow()
        self._tokens.put(1)
        if blocking:
            work.wait()
        return work

    def _keep(self, work: "StarWork") -> "StarWork":
        """Keeps a work until it was waited for, where PyTorch would let C++ wait for one that has no Python object any more."""
        if _GROUP:
            self._unwaited[id(work)] = work
            if len(self._unwaited) > _UNWAITED:
                del self._unwaited[next(iter(self._unwaited))]
        return work

    def waited(self, work: "StarWork") -> None:
        """Drops a work that was waited for, or that gave its result to a future."""
        self._unwaited.pop(id(work), None)

    def advance(self, wait: bool) -> bool:
        """Runs the oldest queued collective, if another thread does not run one. Returns whether it could."""
        if not self._busy.acquire(wait):
            return False
        work = None
        try:
            if self._queue:
                work = self._queue.popleft()
                work.execute()
        finally:
            self._busy.release()
        if work is not None:
            if work.has_callbacks() and threading.current_thread() in self._threads:
                self.grow()  # a callback may wait for a collective that another thread must run
            work.finish()
        return True

    def grow(self) -> None:
        """Starts a thread that runs queued collectives, unless one has nothing to do."""
        with self._pool:
            if self._idle > 0:
                return
            self._idle += 1
            thread = threading.Thread(target=_serve, args=(weakref.ref(self), self._tokens), name="star-backend", daemon=True)
            self._threads.append(thread)
        thread.start()

    def busier(self, by: int) -> None:
        """A thread of this group begins (1) or ends (-1) a collective."""
        with self._pool:
            self._idle -= by

    def help(self, work: StarWork, seconds: float) -> None:
        """Waits for a collective, and meanwhile runs queued ones in this thread, which saves the way to the other thread."""
        end = time.monotonic() + seconds
        while not work.until(0):
            if not self.advance(False):
                work.until(min(0.05, max(end - time.monotonic(), 0)))  # another thread runs one, and goes on with the next one by itself
            if time.monotonic() >= end and not work.until(0):
                raise BackendError("timed out after %.3g s waiting for a collective of the group; wait longer, or find the slow rank" % seconds)

    def _header(self, kind: str, x: _Tensor, op: str = "", root: int = -1, count: bool = True) -> bytes:
        """What this rank calls: kind, operation, root, type and number of elements are compared, the shape is for the message."""
        key = kind, op, root, x.dtype, x.shape if count else None
        got = self._headers.get(key)
        if got is None:
            dtype = str(x.dtype)[6:]
            human = "%s(%s)" % (kind, ", ".join(([op] if op else []) + (["root %d" % root] if root >= 0 else [])))
            human += " of %s%s" % (dtype, list(x.shape) if count else "")
            got = pack("%s %s %d %s %d" % (kind, op, root, dtype, x.numel() if count else -1), human)
            if len(self._headers) >= 4096:
                self._headers.clear()
            self._headers[key] = got
        return got

    def _watched(self, kind: str, x: Optional[_Tensor], run: Callable[[float], None]) -> Callable[[float], None]:
        """run, with its beginning and end reported to star watch."""
        watch = self._watch
        if watch is None:
            return run
        sequence, detail = self._sequence + 1, "%s%s" % (str(x.dtype)[6:], list(x.shape)) if x is not None else ""

        def watched(end: float) -> None:
            token = watch.enter(self._name, self._ranks, sequence, kind, detail)
            try:
                run(end)
            finally:
                watch.leave(token)

        return watched

    # -- tensors

    def _collective(
        self, kind: str, x: _Tensor, reads: Sequence[_Tensor], writes: Sequence[_Tensor], opts: Any, call: Callable[[List[_Tensor], List[_Tensor], float], None]
    ) -> StarWork:
        """Issues a collective on tensors. call gets them as dense vectors in host memory: the tensors' own, or copies. Copies of writes are copied back."""
        if all(map(dense, reads)) and all(map(dense, writes)):

            def run(end: float) -> None:
                call([_flat(t) for t in reads], [_flat(t) for t in writes], end)

        else:
            for t in (*reads, *writes):
                self._need(
                    t.device.type in ("cpu", "cuda"), kind, "a tensor on %s; star has cpu and cuda: copy it to one of them, or name another backend for its device" % t.device
                )
            ready = {t.device: torch.cuda.current_stream(t.device).record_event() for t in [*reads, *writes] if t.is_cuda}

            def run(end: float) -> None:
                self._staged(reads, writes, ready, end, call)

        return self._issue(self._watched(kind, x, run), writes, opts)

    def _staged(self, reads: Sequence[_Tensor], writes: Sequence[_Tensor], ready: Dict[Any, Any], end: float, call: Callable[[List[_Tensor], List[_Tensor], float], None]) -> None:
        """As in _collective, for tensors on a GPU, which have been written when the events of ready are over, and for those that are not dense."""
        copies: Dict[int, _Tensor] = {}

        def host(t: _Tensor, read: bool) -> Any:
            if dense(t):
                return _flat(t)
            got = copies.get(id(t))
            if got is None:
                got = copies[id(t)] = torch.empty(t.numel(), dtype=t.dtype, pin_memory=t.is_cuda)
            if read:
                got.view(t.shape).copy_(t.detach(), non_blocking=True)
            return got

        def synchronized(then: Callable[[], Any]) -> Any:
            """then, in a stream of each GPU beside the program's; its copies are over when it returns."""
            streams = []
            for device, event in ready.items():
                stream = self._streams.get(device)
                if stream is None:
                    stream = self._streams[device] = torch.cuda.Stream(device)
                stream.wait_event(event)
                streams.append(stream)
            contexts = [torch.cuda.stream(s) for s in streams]
            for c in contexts:
                c.__enter__()
            try:
                return then()
            finally:
                for c in reversed(contexts):
                    c.__exit__(None, None, None)
                for s in streams:
                    s.synchronize()

        with torch.no_grad():
            ins = synchronized(lambda: [host(t, True) for t in reads])
            outs = [host(t, False) for t in writes]
            call(ins, outs, end)

            def back() -> None:
                for t, h in zip(writes, outs):
                    if id(t) in copies:
                        with torch.inference_mode(t.is_inference()):
                            t.detach().copy_(h.view(t.shape), non_blocking=True)

            synchronized(back)

    def _need(self, ok: bool, kind: str, why: str) -> None:
        if not ok:
            raise ValueError("cannot call %s on rank %d of %d: %s" % (kind, self._me, self._count, why))

    def _passed(self, kind: str, *args: Any, names: Sequence[str] = ()) -> StarWork:
        """Has Gloo carry out a call."""
        self._usable()
        if self._gloo is None and self._count == 1:  # nothing to agree on
            self._gloo = self._behind(dist.HashStore())
        if self._gloo is None:
            raise BackendError("cannot call %s: Gloo carries it out, and this PyTorch is built without Gloo" % kind)
        self._sequence += 1
        for name in (kind, *names):
            f: Any = getattr(self._gloo, name, None)
            if f is not None:
                break
        try:
            work = f(*(a for a in args if a is not _DEFAULT))
            return work if _GROUP else _Behind(self, work, kind)
        except RuntimeError as e:
            raise self.explained(e, kind) from e

    def explained(self, error: RuntimeError, what: str) -> RuntimeError:
        """Names the dead rank behind an error of Gloo, if there is one."""
        dead = self._dead()
        if dead:
            return BackendError("cannot complete %s: rank %s ended; go on with a new group of the others, or restart the job (Gloo: %s)" % (what, ", ".join(map(str, dead)), error))
        return error

    def _dead(self) -> List[int]:
        """The ranks on this host with processes that have ended, or have left the group."""
        if self._local is None or self._closed:
            return []
        segment = self._local.segment
        return [segment.names[j] for j in range(segment.size) if j != segment.rank and not segment.alive(j)]

    def _told(self, key: str, rank: int, end: float) -> bool:
        """Waits for a key of the store that a rank sets, and returns whether it did so in time and before it ended."""
        while not wait(self._store, [key], min(0.5, max(0.0, end - time.monotonic()))):
            if time.monotonic() >= end or rank in self._dead():
                return bool(self._store.check([key]))
        return True

    # -- collectives

    def allreduce(self, tensors: Sequence[_Tensor], opts: Any = _DEFAULT) -> StarWork:
        local, x = self._local, tensors[0]
        if local is None or len(tensors) != 1 or x.layout is not torch.strided:
            return self._passed("allreduce", tensors, opts)
        op, factor = _op(opts)
        header = self._header("all_reduce", x, op)

        def call(x: _Tensor, end: float) -> None:
            if factor is not None:
                x.mul_(factor)
            local.all_reduce(x, op, header, end)

        return self._in_place("all_reduce", x, tensors, opts, call)

    def _in_place(self, kind: str, x: _Tensor, tensors: Sequence[_Tensor], opts: Any, call: Callable[[_Tensor, float], None]) -> StarWork:
        """Issues a collective on one tensor."""
        if dense(x):
            return self._issue(self._watched(kind, x, lambda end: call(_flat(x), end)), tensors, opts)
        return self._collective(kind, x, tensors, tensors, opts, lambda ins, outs, end: call(outs[0], end))

    def allreduce_coalesced(self, tensors: Sequence[_Tensor], opts: Any = _DEFAULT) -> Any:
        return self._each(tensors, opts, [functools.partial(self.allreduce, [t]) for t in tensors])

    def allreduce_sparse(self, tensors: Sequence[_Tensor], opts: Any = _DEFAULT) -> StarWork:
        return self._passed("allreduce_sparse", tensors, opts, names=("allreduce",))

    def _each(self, outputs: Sequence[_Tensor], opts: Any, calls: Sequence[Callable[[Any], StarWork]]) -> Any:
        """Several collectives as one."""
        works = [call(opts) for call in calls]
        if not getattr(opts, "asyncOp", True):
            for w in works:
                w.wait()
            return self._done
        return self._keep(_All(self, works, outputs))

    def broadcast(self, tensors: Sequence[_Tensor], opts: Any = _DEFAULT) -> StarWork:
        if self._local is None or len(tensors) != 1 or tensors[0].layout is not torch.strided:
            return self._passed("broadcast", tensors, opts)
        local, root = self._local, opts.rootRank
        self._need(0 <= root < self._count, "broadcast", "root rank %d" % root)
        header = self._header("broadcast", tensors[0], "", root)
        return self._in_place("broadcast", tensors[0], tensors, opts, lambda x, end: local.broadcast(x, root, header, end))

    def reduce(self, tensors: Sequence[_Tensor], opts: Any = _DEFAULT) -> StarWork:
        if self._local is None or len(tensors) != 1 or tensors[0].layout is not torch.strided:
            return self._passed("reduce", tensors, opts)
        local, root, (op, factor) = self._local, opts.rootRank, _op(opts)
        self._need(0 <= root < self._count, "reduce", "root rank %d" % root)
        header = self._header("reduce", tensors[0], op, root)

        def call(x: _Tensor, end: float) -> None:
            if factor is not None:
                x.mul_(factor)
            local.reduce(x, op, root, header, end)

        return self._in_place("reduce", tensors[0], tensors, opts, call)

    def _blocks(self, kind: str, tensors: Sequence[_Tensor], like: _Tensor, what: str) -> None:
        self._need(len(tensors) == self._count, kind, "%d %s tensors; one for each rank is needed" % (len(tensors), what))
        for i, t in enumerate(tensors):
            self._need(t.dtype == like.dtype and t.numel() == like.numel(), kind, "%s %d is %s%s, not %s%s" % (what, i, t.dtype, list(t.shape), like.dtype, list(like.shape)))

    def allgather(self, outputs: Sequence[Sequence[_Tensor]], inputs: Sequence[_Tensor], opts: Any = _DEFAULT) -> StarWork:
        if self._local is None or len(inputs) != 1:
            return self._passed("allgather", outputs, inputs, opts)
        local, x = self._local, inputs[0]
        self._need(len(outputs) == 1, "all_gather", "%d lists of outputs for one input" % len(outputs))
        self._blocks("all_gather", outputs[0], x, "output")
        header = self._header("all_gather", x)
        return self._collective("all_gather", x, inputs, outputs[0], opts, lambda ins, outs, end: local.all_gather(outs, ins[0], header, end))

    def allgather_coalesced(self, outputs: Sequence[Sequence[_Tensor]], inputs: Sequence[_Tensor], opts: Any = _DEFAULT) -> Any:
        self._need(
            len(outputs) == self._count and all(len(o) == len(inputs) for o in outputs), "all_gather_coalesced", "a list of outputs for each rank, as long as the inputs, is needed"
        )
        return self._each([t for o in outputs for t in o], opts, [functools.partial(self.allgather, [[o[i] for o in outputs]], [x]) for i, x in enumerate(inputs)])

    def all_gather_single(self, output: _Tensor, x: _Tensor, opts: Any = _DEFAULT) -> StarWork:
        if self._local is None:
            return self._passed("all_gather_single", output, x, opts, names=("_allgather_base",))
        local, n = self._local, x.numel()
        self._need(output.dtype == x.dtype and output.numel() == n * self._count, "all_gather", "output %s%s for input %s%s" % _two(output, x))
        header = self._header("all_gather", x)
        return self._collective(
            "all_gather", x, [x], [output], opts, lambda ins, outs, end: local.all_gather([outs[0][n * r : n * (r + 1)] for r in range(self._count)], ins[0], header, end)
        )

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Sequence[_Tensor], inputs: Sequence[_Tensor], opts: Any = _DEFAULT) -> Any:
        return self._each(outputs, opts, [functools.partial(self.all_gather_single, o, x) for o, x in zip(outputs, inputs)])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: Sequence[_Tensor], inputs: Sequence[Sequence[_Tensor]], opts: Any = _DEFAULT) -> StarWork:
        if self._local is None or len(outputs) != 1:
            return self._passed("reduce_scatter", outputs, inputs, opts)
        x = outputs[0]
        self._need(len(inputs) == 1, "reduce_scatter", "%d lists of inputs for one output" % len(inputs))
        self._blocks("reduce_scatter", inputs[0], x, "input")
        return self._reduce_scatter(x, inputs[0], opts, lambda ins: ins)

    def _reduce_scatter(self, x: _Tensor, inputs: Sequence[_Tensor], opts: Any, blocks: Callable[[List[_Tensor]], Sequence[_Tensor]]) -> StarWork:
        assert self._local is not None
        local, (op, factor) = self._local, _op(opts)
        header = self._header("reduce_scatter", x, op)

        def call(ins: List[_Tensor], outs: List[_Tensor], end: float) -> None:
            given = blocks(ins)
            if factor is not None:
                given = [b * factor for b in given]
            local.reduce_scatter(outs[0], given, op, header, end)

        return self._collective("reduce_scatter", x, inputs, [x], opts, call)

    def reduce_scatter_single(self, output: _Tensor, x: _Tensor, opts: Any = _DEFAULT) -> StarWork:
        if self._local is None:
            return self._passed("reduce_scatter_single", output, x, opts, names=("_reduce_scatter_base",))
        n = output.numel()
        self._need(output.dtype == x.dtype and x.numel() == n * self._count, "reduce_scatter", "output %s%s for input %s%s" % _two(output, x))
        return self._reduce_scatter(output, [x], opts, lambda ins: [ins[0][n * r : n * (r + 1)] for r in range(self._count)])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Sequence[_Tensor], inputs: Sequence[_Tensor], opts: Any = _DEFAULT) -> Any:
        return self._each(outputs, opts, [functools.partial(self.reduce_scatter_single, o, x) for o, x in zip(outputs, inputs)])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(self, outputs: Sequence[Sequence[_Tensor]], inputs: Sequence[_Tensor], opts: Any = _DEFAULT) -> StarWork:
        if self._local is None or len(inputs) != 1:
            return self._passed("gather", outputs, inputs, opts)
        local, x, root = self._local, inputs[0], opts.rootRank
        self._need(0 <= root < self._count, "gather", "root rank %d" % root)
        to: Sequence[_Tensor] = ()
        if self._me == root:
            self._need(len(outputs) == 1, "gather", "%d lists of outputs on the root" % len(outputs))
            to = outputs[0]
            self._blocks("gather", to, x, "output")
        else:
            self._need(len(outputs) == 0 or len(outputs[0]) == 0, "gather", "outputs on another rank than the root, %d" % root)
        header = self._header("gather", x, "", root)
        return self._collective("gather", x, inputs, to, opts, lambda ins, outs, end: local.gather(outs, ins[0], root, header, end))

    def gather_single(self, output: _Tensor, x: _Tensor, opts: Any = _DEFAULT) -> StarWork:
        outputs = [list(output.detach().reshape(-1).split(x.numel()))] if self._me == opts.rootRank and output is not None else []
        if outputs and not output.is_contiguous():
            raise ValueError("cannot gather into a tensor that is not contiguous")
        return self.gather(outputs, [x], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Sequence[_Tensor], inputs: Sequence[Sequence[_Tensor]], opts: Any = _DEFAULT) -> StarWork:
        if self._local is None or len(outputs) != 1:
            return self._passed("scatter", outputs, inputs, opts)
        local, x, root = self._local, outputs[0], opts.rootRank
        self._need(0 <= root < self._count, "scatter", "root rank %d" % root)
        given: Sequence[_Tensor] = ()
        if self._me == root:
            self._need(len(inputs) == 1, "scatter", "%d lists of inputs on the root" % len(inputs))
            given = inputs[0]
            self._blocks("scatter", given, x, "input")
        else:
            self._need(len(inputs) == 0 or len(inputs[0]) == 0, "scatter", "inputs on another rank than the root, %d" % root)
        header = self._header("scatter", x, "", root)
        return self._collective("scatter", x, given, [x], opts, lambda ins, outs, end: local.scatter(outs[0], ins, root, header, end))

    def alltoall(self, outputs: Sequence[_Tensor], inputs: Sequence[_Tensor], opts: Any = _DEFAULT) -> StarWork:
        if self._local is None:
            return self._passed("alltoall", outputs, inputs, opts)
        local = self._local
        self._need(len(outputs) == len(inputs) == self._count, "all_to_all", "%d outputs and %d inputs; one for each rank is needed" % (len(outputs), len(inputs)))
        for t in [*outputs, *inputs]:
            self._need(t.dtype == inputs[0].dtype, "all_to_all", "tensors of %s and %s" % (t.dtype, inputs[0].dtype))
        header = self._header("all_to_all", inputs[0], count=False)
        return self._collective("all_to_all", inputs[0], inputs, outputs, opts, lambda ins, outs, end: local.all_to_all(outs, ins, header, end))

    def all_to_all_single(self, output: _Tensor, x: _Tensor, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any = _DEFAULT) -> StarWork:
        if self._local is None:
            return self._passed("all_to_all_single", output, x, output_splits, input_splits, opts, names=("alltoall_base",))
        local = self._local
        self._need(output.dtype == x.dtype, "all_to_all", "output %s%s for input %s%s" % _two(output, x))
        takes, gives = self._splits(output, output_splits, "output"), self._splits(x, input_splits, "input")
        header = self._header("all_to_all", x, count=False)
        return self._collective("all_to_all", x, [x], [output], opts, lambda ins, outs, end: local.all_to_all(torch.split(outs[0], takes), torch.split(ins[0], gives), header, end))

    alltoall_base = all_to_all_single

    def _splits(self, t: _Tensor, splits: Sequence[int], what: str) -> List[int]:
        """Elements for each rank; splits are in rows."""
        rows = t.shape[0] if t.dim() > 0 else 1
        if len(splits) == 0:
            self._need(rows % self._count == 0, "all_to_all", "%s has %d rows, which are not divisible by the number of ranks; pass split sizes" % (what, rows))
            return [t.numel() // self._count] * self._count
        self._need(len(splits) == self._count and sum(splits) == rows and min(splits) >= 0, "all_to_all", "%s has %d rows, and split sizes %s" % (what, rows, list(splits)))
        row = t.numel() // rows if rows else 0
        return [s * row for s in splits]

    def barrier(self, opts: Any = _DEFAULT) -> StarWork:
        if self._local is None:
            return self._passed("barrier", opts)
        local, header = self._local, self._header("barrier", _EMPTY, count=False)
        return self._issue(self._watched("barrier", None, lambda end: local.barrier(header, end)), (), opts)

    def monitored_barrier(self, opts: Any = _DEFAULT, wait_all_ranks: bool = False) -> None:
        """Rank 0 waits for a key of each rank in the store and answers with one. The texts are those of Gloo, which scripts look for."""
        self._usable()
        timeout = (opts if isinstance(opts, timedelta) else opts.timeout).total_seconds()
        seconds, self._monitored = timeout if timeout > 0 else self._timeout, self._monitored + 1
        key, end = "%sbarrier/%d/" % (self._prefix, self._monitored), time.monotonic() + seconds
        if self._me != 0:
            self._store.set(key + str(self._me), "here")
            if not self._told(key + "answer", 0, end + 1):  # rank 0 answers at the end of its own time
                raise BackendError("[Rank %d] Rank 0 failed to pass monitoredBarrier in %d ms%s" % (self._me, seconds * 1000, "; it ended" if 0 in self._dead() else ""))
            answer = self._store.get(key + "answer").decode()
            if answer != "all":
                errors = "received errors while waiting for send/recv from rank 0"
                raise BackendError("[Rank %d]: Rank %d successfully reached monitoredBarrier, but %s: %s" % (self._me, self._me, errors, answer))
            return
        missing = [r for r in range(1, self._count) if not self._told(key + str(r), r, end)]
        missing = missing if wait_all_ranks else missing[:1]
        answer = "Rank%s %s failed to pass monitoredBarrier in %d ms" % ("s" if len(missing) > 1 else "", ", ".join(map(str, missing)), seconds * 1000) if missing else "all"
        ended = [r for r in self._dead() if r in missing]
        answer += "; rank %s ended" % ", ".join(map(str, ended)) if ended else ""
        self._store.set(key + "answer", answer)
        if missing:
            raise BackendError("[Rank 0]: " + answer)

    def send(self, tensors: Sequence[_Tensor], rank: int, tag: int) -> StarWork:
        self._need(0 <= rank < self._count, "send", "no rank %d in the group" % rank)  # Gloo would crash
        return self._passed("send", tensors, rank, tag)

    def recv(self, tensors: Sequence[_Tensor], rank: int, tag: int) -> StarWork:
        self._need(0 <= rank < self._count, "recv", "no rank %d in the group" % rank)  # Gloo would crash
        return self._passed("recv", tensors, rank, tag)

    def recv_anysource(self, tensors: Sequence[_Tensor], tag: int) -> StarWork:
        return self._passed("recv_anysource", tensors, tag)

    # -- end

    def abort(self) -> None:
        """Ends collectives that wait, with an error, on all ranks."""
        if self._local is not None:
            self._local.abort()
        self._end(1.0)

    def shutdown(self) -> None:
        self._end(self._timeout)

    def _end(self, seconds: float) -> None:
        """Waits for queued collectives, and leaves the group. Has no effect a second time."""
        if self._closed or self.inherited:  # an inherited one stays in _kept: to free it would end Gloo's threads, which only the parent has
            self._closed = True
            return
        end = time.monotonic() + seconds
        while self._queue and time.monotonic() < end:
            if not self.advance(False):
                time.sleep(0.001)
        self._closed = True
        idle = self._busy.acquire(timeout=max(0.0, end - time.monotonic()) + 2 * 0.2)
        if self._local is not None:
            if not idle:
                self._local.abort()
                idle = self._busy.acquire(timeout=1.0)
            if idle:
                self._local.close()
        if idle:
            self._busy.release()
        while self._queue:  # their collectives find a group that is closed
            self.advance(True)
        for _ in self._threads:
            self._tokens.put(0)
        for thread in self._threads:
            if threading.current_thread() is not thread:
                thread.join(1.0)
        self._unwaited.clear()
        gloo, self._gloo = self._gloo is not None, None
        if _GROUP and gloo:  # this object's end joins Gloo's threads with the interpreter's lock, which they need to drop the last call's tensors
            time.sleep(0.1)
        _kept.pop(id(self), None)


class _All(StarWork):
    """Several collectives that are over when the last one is."""

    def __init__(self, group: StarBackend, works: List[StarWork], outputs: Sequence[_Tensor]) -> None:
        _Work.__init__(self)
        self._group, self._works, self._outputs = group, works, outputs
        self._future: Any = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        for w in self._works:
            w.wait(timeout)
        self._group.waited(self)
        return True

    def get_future(self) -> Any:
        if self._future is None:
            outputs = self._outputs
            self._future = torch.futures.collect_all([w.get_future() for w in self._works]).then(lambda f: (f.value(), outputs)[1])
        _last.work = self
        return self._future

    def is_completed(self) -> bool:
        return all(w.is_completed() for w in self._works)

    def is_success(self) -> bool:
        return all(w.is_success() for w in self._works)

    def exception(self) -> Any:
        return next((e for e in (w.exception() for w in self._works) if e is not None), None)


def _serve(group: "weakref.ref[StarBackend]", tokens: "queue.SimpleQueue[int]") -> None:
    """The thread of a group: runs queued collectives."""
    _single_threaded()
    while tokens.get():
        g = group()
        if g is None:
            return
        g.busier(1)
        g.advance(True)
        g.busier(-1)
        del g


def _single_threaded() -> None:
    """Has PyTorch's operations in this thread use it alone: OpenMP would start a second team beside that of the program."""
    try:
        with open("/proc/self/maps") as f:
            path = next((line.split()[-1] for line in f if "/libgomp" in line or "/libiomp5" in line or "/libomp" in line), "")
        if path:
            torch.get_num_threads()  # this thread's number is set first, or PyTorch would set it later
            ctypes.CDLL(path).omp_set_num_threads(1)
    except (OSError, AttributeError):
        pass


_EMPTY = torch.empty(0, dtype=torch.uint8)


def _two(output: _Tensor, x: _Tensor) -> Tuple[Any, ...]:
    return str(output.dtype)[6:], list(output.shape), str(x.dtype)[6:], list(x.shape)


def _flat(t: _Tensor) -> Any:
    """The elements of a dense tensor as a vector that can be written."""
    if t.is_inference() and not torch.is_inference_mode_enabled():  # PyTorch would refuse to write
        n = t.numel() * t.element_size()
        return torch.frombuffer((ctypes.c_char * n).from_address(t.data_ptr()), dtype=t.dtype) if n else torch.empty(0, dtype=t.dtype)
    return t.detach().view(-1)


def _watch() -> Any:
    """The module that reports collectives to star watch, if this process has it."""
    module = sys.modules.get("star_watch")
    if module is None and os.environ.get("STAR_WATCH_SOCKET"):
        try:
            module = importlib.import_module("star_watch")
        except ImportError:
            return None
    return module if hasattr(module, "enter") and hasattr(module, "leave") else None


def create(opts: Any) -> StarBackend:
    """Makes a process group for torch.distributed. All its ranks call it."""
    if not _GROUP:
        _ask_python_works()
    world = dist.group.WORLD
    if world is not None and any(g.inherited and not g._closed for g in _kept.values()):  # a new group would use the parent's connection to the store
        raise BackendError(_FORKED)
    return StarBackend(opts.store, opts.group_rank, opts.group_size, opts.timeout, str(opts.group_id), list(opts.global_ranks_in_group))


def _after_fork() -> None:
    for group in list(_groups):
        group.inherited = True


def _exit() -> None:
    for group in list(_groups):
        group._end(_LINGER)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_exit)
register()
