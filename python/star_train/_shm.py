"""Memory that the ranks of one process group share within a host, and the signals between them. Part of the backend (``docs/backend.md``).

The leader, the lowest rank of the host, makes a memfd, so that nothing lies in ``/dev/shm``, and passes it to the other ranks over an abstract Unix socket.
Each rank has 2 * LAG slots in it, which steps use in turn. A step is: write the own slot, signal to all ranks, wait for the signals of all, read their slots.
A rank may write LAG steps ahead of what it has read, so that it seldom waits for a rank that is a little behind. When it writes step k, it has seen the signals
of step k - LAG, which each rank gave after it had read step k - 2 * LAG: so that step's slot is free.

Signals are POSIX semaphores, one for each ordered pair of ranks. They are full memory barriers, so that what was written before a signal is seen after it.
Each rank holds a POSIX record lock on its byte of the memfd: the kernel releases it when the process ends, and children by fork do not inherit it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import secrets
import socket
import struct
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import torch

from . import __version__
from ._agent import host_id

# Changes with the layout of the memory or the meaning of a step: ranks with different numbers cannot share memory.
LAYOUT = 2

# A step's header: the part that must agree, then text for people.
KEY, HEADER = 192, 320
_STATE = struct.Struct("<IIQ")  # state, process id, number of collectives begun
_HEADERS = 64
_FAILURE = _HEADERS + 2 * HEADER
_CONTROL = 2048
_SEMAPHORE = 64  # sem_t has 32 bytes in glibc and musl on 64-bit Linux
_ALIGN = 4096

ABSENT, JOINED, LEFT, FAILED = range(4)

# Steps that a rank may be ahead, bytes of all slots of a group, and of one: memory is used only where a collective has written.
LAG = 8
_SLOTS = 32 << 20
_SLOT = 256 << 10

# A rank that waits looks again up to _SPINS times before it sleeps, if waits of late ended within _SOON seconds, about what sleeping and waking costs. It
# never yields the processor: on a busy host that takes longer than to sleep, as the scheduler prefers processes that have slept. After each _SLICE seconds
# of sleep it looks for dead ranks.
_SPINS = 128
_SOON = 40e-6
_SLICE = 0.1

_libc = ctypes.CDLL(None, use_errno=True)
_held = ctypes.PyDLL(None, use_errno=True)  # calls that end at once keep the interpreter's lock


def _function(library: Any, name: str, result: Any, *arguments: Any) -> Any:
    f = getattr(library, name)
    f.argtypes, f.restype = arguments, result
    return f


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


_pointer, _int = ctypes.c_void_p, ctypes.c_int
_sem_init = _function(_libc, "sem_init", _int, _pointer, _int, ctypes.c_uint)
_sem_post = _function(_held, "sem_post", _int, _pointer)
_sem_trywait = _function(_held, "sem_trywait", _int, _pointer)
copy = _function(_libc, "memcpy", _pointer, _pointer, _pointer, ctypes.c_size_t)
try:  # glibc 2.30: a step of the wall clock does not move the end of a wait
    _sem_clockwait = _function(_libc, "sem_clockwait", _int, _pointer, _int, ctypes.POINTER(_Timespec))
except AttributeError:
    _sem_timedwait = _function(_libc, "sem_timedwait", _int, _pointer, ctypes.POINTER(_Timespec))
    _clock = time.time

    def _sem_sleep(semaphore: int, until: _Timespec) -> int:
        return int(_sem_timedwait(semaphore, until))
else:
    _clock = time.monotonic

    def _sem_sleep(semaphore: int, until: _Timespec) -> int:
        return int(_sem_clockwait(semaphore, time.CLOCK_MONOTONIC, until))


# The end of an error after which a new group without some ranks works.
GO_ON = "; go on with a new group of the others, or restart the job"

_Base: Any = getattr(torch.distributed, "DistBackendError", RuntimeError)


class BackendError(_Base):  # type: ignore[misc]
    """A collective of the backend failed. The text names the rank, the collective and what to do."""


class Hello(NamedTuple):
    """What a rank tells the others when a group begins."""

    host: str
    size: int
    star: str
    layout: int
    torch: str
    order: str
    pid: int
    node: str

    def __str__(self) -> str:
        return "process %d on %s" % (self.pid, self.node)


_met = 0  # groups that this process has begun


def wait(store: Any, keys: List[str], seconds: float) -> bool:
    """Waits for keys of a store. Store.wait would log a warning each time that it ends without them."""
    end, pause = time.monotonic() + seconds, 0.0005
    try:
        while not store.check(keys):
            if time.monotonic() >= end:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)
        return True
    except Exception as e:
        raise BackendError("cannot meet the other ranks: the store failed: %s; check that the process with rank 0 runs" % e) from e


def numbers(ranks: Sequence[int]) -> str:
    text = ", ".join(map(str, ranks[:10])) + (", … (%d in all)" % len(ranks) if len(ranks) > 10 else "")
    return ("rank " if len(ranks) == 1 else "ranks ") + text


def meet(store: Any, rank: int, size: int, timeout: float) -> Tuple[str, List[Hello]]:
    """Waits until all ranks of a group have said hello through its store. Returns the prefix of the group's keys, and the hellos by rank.

    A group may begin several times in one store, as after destroy_process_group under torchrun: each time has keys of its own.
    """
    global _met
    if not 0 <= rank < size:
        raise ValueError("cannot begin the group: rank %d of %d ranks; ranks begin with 0" % (rank, size))
    me = Hello(host_id(), size, __version__, LAYOUT, ".".join(torch.__version__.split(".")[:2]), sys.byteorder + " " + platform.machine(), os.getpid(), socket.gethostname())
    time_of_day = int(store.add("star/begun/%d" % rank, 1))
    prefix = "star/%d/" % time_of_day
    if time_of_day > 1 and _met == 0:
        other = "another process"
        if store.check(["star/%d/hello/%d" % (time_of_day - 1, rank)]):
            other = str(Hello(*json.loads(store.get("star/%d/hello/%d" % (time_of_day - 1, rank)))))
        raise BackendError(
            "cannot begin the group: %s already has rank %d at this address; two jobs use one MASTER_PORT, or two processes have one rank: give each job a port, each process a rank"
            % (other, rank)
        )
    _met += 1
    store.set(prefix + "hello/%d" % rank, json.dumps(me))
    hellos: Dict[int, Hello] = {}
    end = time.monotonic() + timeout
    while True:
        missing = [r for r in range(size) if r not in hellos]
        arrived = wait(store, [prefix + "hello/%d" % r for r in missing], min(1.0, end - time.monotonic()))
        for r in missing:
            key = prefix + "hello/%d" % r
            if arrived or store.check([key]):
                hellos[r] = Hello(*json.loads(store.get(key)))
                why = _disagree(rank, me, r, hellos[r])
                if why:
                    linger(store, prefix, rank, max(size, hellos[r].size))
                    raise BackendError("cannot begin the group: " + why)
        missing = [r for r in missing if r not in hellos]
        if not missing:
            return prefix, [hellos[r] for r in range(size)]
        if time.monotonic() >= end:
            raise BackendError("cannot begin the group of %d ranks: no message of %s within %.0f s; check that these processes run" % (size, numbers(missing), timeout))


def _disagree(rank: int, me: Hello, other: int, its: Hello) -> str:
    """Why two ranks cannot be in one group; empty: they can."""
    for what, mine, theirs, fix in (
        ("world size", me.size, its.size, "give all processes one WORLD_SIZE, and each job a MASTER_PORT"),
        ("star_train", "%s, layout %d" % (me.star, me.layout), "%s, layout %d" % (its.star, its.layout), "install one version everywhere"),
        ("PyTorch", me.torch, its.torch, "install one version everywhere"),
        ("byte order and processor", me.order, its.order, "use one kind of processor"),
    ):
        if mine != theirs:
            return "rank %d (%s) has %s %s, rank %d %s; %s" % (other, its, what, theirs, rank, mine, fix)
    return ""


def linger(store: Any, prefix: str, rank: int, size: int) -> None:
    """Waits some seconds until the other ranks have found that the group cannot begin, too: the store may end with this process."""
    try:
        store.set(prefix + "refused/%d" % rank, "")
        others = [r for r in range(size) if r != rank and store.check([prefix + "hello/%d" % r])]
        wait(store, [prefix + "refused/%d" % r for r in others], 5.0)
    except Exception:  # the store has ended
        pass


def _receive(s: socket.socket, end: float, peer: str) -> bytes:
    s.settimeout(max(0.05, end - time.monotonic()))
    try:
        got = s.recv(1)
    except OSError as e:
        raise BackendError("cannot begin the group: no answer of %s: %s; check that it runs" % (peer, e)) from e
    if not got:
        raise BackendError("cannot begin the group: %s ended" % peer)
    return got


class Segment:
    """The shared memory of the ranks of one group on this host.

    rank and size count the ranks of this host; names has their numbers in the group, for messages. Its methods need one caller at a time.
    """

    def __init__(self, store: Any, prefix: str, ranks: Sequence[int], hellos: Sequence[Hello], me: int, timeout: float, extra: int = 0) -> None:
        self.names, self.rank, self.size = list(ranks), list(ranks).index(me), len(ranks)
        size = self.size
        slot = max(_ALIGN, min(_SLOT, _SLOTS // (2 * LAG * size)) // _ALIGN * _ALIGN)
        self.slot = slot
        self._semaphores = _CONTROL * size
        self._slots = -(-(self._semaphores + _SEMAPHORE * size * size) // _ALIGN) * _ALIGN
        self.extra = self._slots + 2 * LAG * slot * size  # where memory for the exchange between hosts begins
        total = self.extra + extra
        self.bytes_total = total
        self.number = 0  # collectives
        self.written = 0  # steps that this rank has signalled
        self.read = 0  # steps that it has read
        self.closed = ""  # why no more collectives are possible
        self.on_failure: Callable[[str], None] = lambda why: None  # tells ranks that do not have this memory
        self._processors = len(os.sched_getaffinity(0))
        self._spins = _SPINS if size <= self._processors else 0
        self.stopping = False
        self.active = False  # a collective has begun and has not ended
        end = time.monotonic() + timeout
        if self.rank == 0:
            try:
                self._make(total)
            except BackendError as e:
                store.set(prefix + "memory/%d" % me, json.dumps(["", str(e)]))
                raise
            if size > 1:
                self._give(store, prefix, me, end)
        else:
            self._get(store, prefix, hellos, total, end)

    # -- beginning

    def _map(self, fd: int, total: int) -> None:
        self.fd = fd
        self.memory = mmap.mmap(fd, total)
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)
        self.address = self.bytes.data_ptr()
        base, size = self.address + self._semaphores, self.size
        others = [j for j in range(size) if j != self.rank]
        self._post = [base + _SEMAPHORE * (self.rank * size + j) for j in others]
        self._await = [(j, base + _SEMAPHORE * (j * size + self.rank)) for j in others]
        self._headers = [(j, tuple(_CONTROL * j + _HEADERS + HEADER * p for p in (0, 1))) for j in others]
        self._mine = tuple(_CONTROL * self.rank + _HEADERS + HEADER * p for p in (0, 1))
        self._views: Dict[Tuple[int, int, torch.dtype], torch.Tensor] = {}
        self._addresses: List[Tuple[int, ...]] = [tuple(self.address + self._slots + self.slot * (2 * LAG * r + p) for r in range(size)) for p in range(2 * LAG)]

    def _join(self) -> None:
        fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self.rank)
        self._say(JOINED)

    def _say(self, state: int) -> None:
        _STATE.pack_into(self.memory, _CONTROL * self.rank, state, os.getpid(), self.number)

    def _make(self, total: int) -> None:
        try:
            fd = os.memfd_create("star", os.MFD_CLOEXEC)
            os.ftruncate(fd, total)
            self._map(fd, total)
        except OSError as e:
            raise BackendError("cannot make %d bytes of shared memory (memfd): %s; check the limits of this process (ulimit -a)" % (total, e)) from e
        for i in range(self.size * self.size):
            if _sem_init(self.address + self._semaphores + _SEMAPHORE * i, 1, 0) != 0:
                raise BackendError("cannot make a semaphore: %s" % os.strerror(ctypes.get_errno()))
        self._join()

    def _give(self, store: Any, prefix: str, me: int, end: float) -> None:
        """Passes the memory to the other ranks, and waits until all have it: from then on a dead rank is noticed."""
        name, token = "star-" + secrets.token_hex(16), secrets.token_hex(16)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind("\0" + name)
            listener.listen(self.size)
            store.set(prefix + "memory/%d" % me, json.dumps([name, token]))
            peers: Dict[int, socket.socket] = {}
            try:
                while len(peers) < self.size - 1:
                    listener.settimeout(max(0.05, end - time.monotonic()))
                    try:
                        s, _ = listener.accept()
                    except socket.timeout:
                        missing = [self.names[r] for r in range(1, self.size) if r not in peers]
                        raise BackendError("cannot begin the group: %s did not ask for the shared memory in time; check that these processes run" % numbers(missing)) from None
                    s.settimeout(max(0.05, end - time.monotonic()))
                    try:
                        said = s.recv(256).decode("ascii", "replace").split()
                    except OSError:
                        said = []
                    if len(said) != 2 or not secrets.compare_digest(said[0], token) or not said[1].isdigit() or not 0 < int(said[1]) < self.size or int(said[1]) in peers:
                        s.close()  # not a rank of this group
                        continue
                    peers[int(said[1])] = s
                    socket.send_fds(s, [b"m"], [self.fd])
                for r, s in peers.items():
                    _receive(s, end, "rank %d" % self.names[r])
                for s in peers.values():
                    try:
                        s.sendall(b"g")
                    except OSError:  # it died since: its first collective finds that
                        pass
            finally:
                for s in peers.values():
                    s.close()

    def _get(self, store: Any, prefix: str, hellos: Sequence[Hello], total: int, end: float) -> None:
        leader = self.names[0]
        if not wait(store, [prefix + "memory/%d" % leader], end - time.monotonic()):
            raise BackendError("cannot begin the group: rank %d (%s) did not offer the shared memory in time; check that it runs" % (leader, hellos[leader]))
        name, token = json.loads(store.get(prefix + "memory/%d" % leader))
        if not name:
            raise BackendError("cannot begin the group: rank %d (%s): %s" % (leader, hellos[leader], token))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.settimeout(max(0.05, end - time.monotonic()))
            try:
                s.connect("\0" + name)
                s.sendall(b"%s %d" % (token.encode(), self.rank))
                _, fds, _, _ = socket.recv_fds(s, 1, 1)
            except OSError as e:
                raise BackendError(
                    "cannot begin the group: no shared memory from rank %d (%s): %s; if it runs in another container or network namespace, set STAR_HOST_ID to different names"
                    % (leader, hellos[leader], e)
                ) from e
            if len(fds) != 1:
                raise BackendError("cannot begin the group: rank %d (%s) ended" % (leader, hellos[leader]))
            os.set_inheritable(fds[0], False)
            try:
                self._map(fds[0], total)
            except OSError as e:
                raise BackendError("cannot map %d bytes of shared memory: %s; check the limits of this process (ulimit -a)" % (total, e)) from e
            self._join()
            s.sendall(b"j")
            _receive(s, end, "rank %d" % leader)

    # -- slots

    def view(self, rank: int, dtype: torch.dtype) -> torch.Tensor:
        """The slot of a rank in the step that is read, as a vector of a type."""
        key = rank, self.read % (2 * LAG), dtype
        got = self._views.get(key)
        if got is None:
            at = self._slots + self.slot * (2 * LAG * rank + self.read % (2 * LAG))
            got = self._views[key] = self.bytes[at : at + self.slot].view(dtype)
        return got

    def to_write(self) -> int:
        """The address of this rank's slot in the step that it writes."""
        return self._addresses[self.written % (2 * LAG)][self.rank]

    def to_read(self) -> Tuple[int, ...]:
        """The addresses of all slots in the step that is read."""
        return self._addresses[self.read % (2 * LAG)]

    # -- steps

    def begin(self, header: bytes) -> None:
        """Begins a collective: its header is compared with those of all ranks in the first step."""
        if self.closed:
            raise BackendError(self.closed)
        self.number += 1
        self.active = True
        _STATE.pack_into(self.memory, _CONTROL * self.rank, JOINED, os.getpid(), self.number)
        at = self._mine[self.number & 1]
        self.memory[at : at + HEADER] = header

    def signal(self) -> None:
        """Tells the other ranks that this one's slot is written."""
        self.written += 1
        for semaphore in self._post:
            _sem_post(semaphore)

    def wait(self, header: bytes, end: float, first: bool) -> None:
        """Waits until all ranks have signalled the step that is read next. first: it is the collective's first one."""
        waiting = None
        for other in self._await:
            if _sem_trywait(other[1]) != 0:
                if waiting is None:
                    waiting = [other]
                else:
                    waiting.append(other)
        if waiting is not None:
            self._sleep(waiting, header, end)
        if first:
            parity = self.number & 1
            for j, at in self._headers:
                if self.memory[at[parity] : at[parity] + KEY] != header[:KEY]:
                    self._differ(j, at[parity], header)

    def done(self) -> None:
        """Ends a step: this rank has read the slots of the others."""
        self.read += 1

    def _sleep(self, waiting: List[Tuple[int, int]], header: bytes, end: float) -> None:
        """Waits for signals."""
        for _ in range(self._spins):
            waiting = [w for w in waiting if _sem_trywait(w[1]) != 0]
            if not waiting:
                return
        begin = now = time.monotonic()
        while waiting:
            until = _clock() + min(_SLICE, max(end - now, 0.001))
            if _sem_sleep(waiting[0][1], _Timespec(int(until), int(until % 1 * 1e9))) == 0:
                del waiting[0]
                continue
            e = ctypes.get_errno()
            if e not in (errno.ETIMEDOUT, errno.EINTR, 0):
                raise BackendError("cannot wait for rank %d: %s" % (self.names[waiting[0][0]], os.strerror(e)))
            now = time.monotonic()
            self._look(waiting, header, now, end)
        soon = time.monotonic() - begin < _SOON
        self._spins = min(_SPINS, 2 * self._spins + 4) if soon and self.size <= self._processors else self._spins // 2

    def _look(self, waiting: List[Tuple[int, int]], header: bytes, now: float, end: float) -> None:
        """Raises an error if the ranks that are waited for cannot arrive, or have not in time."""
        what = self._text(header)
        if self.stopping:
            self.fail("rank %d aborted %s" % (self.names[self.rank], what))
        bad: List[Tuple[int, str]] = []
        for j, semaphore in waiting:
            name = self.names[j]
            if not self.alive(j):
                state, pid, _ = _STATE.unpack_from(self.memory, _CONTROL * j)
                why = "rank %d left the group (destroy_process_group, or its end)" % name if state == LEFT else "rank %d (process %d) died" % (name, pid)
                bad.append((semaphore, self._failure(j) if state == FAILED else why))
        for j in range(self.size):
            if j != self.rank and _STATE.unpack_from(self.memory, _CONTROL * j)[0] == FAILED and self.alive(j):
                bad.append((next((s for i, s in waiting if i == j), 0), self._failure(j)))
        for semaphore, why in bad:
            # A rank may have signalled before it ended. One that failed later than in this step did so after all had signalled for this step.
            waiting[:] = [w for w in waiting if semaphore not in (0, w[1]) or _sem_trywait(w[1]) != 0]
            if waiting and semaphore in [0] + [w[1] for w in waiting]:
                self.fail("cannot complete %s: %s" % (what, why), GO_ON)
        if now >= end and waiting:
            late = []
            for j, _ in waiting:
                number = _STATE.unpack_from(self.memory, _CONTROL * j)[2]
                late.append("rank %d (at collective %d%s)" % (self.names[j], number, ", " + self._last(j) if number else ""))
            self.fail("cannot complete %s: timed out waiting for %s" % (what, ", ".join(late)), "; if they are only slow, set a longer timeout")

    def alive(self, j: int) -> bool:
        """Whether the process of a rank still holds its lock."""
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, j, 1, 0)
        return bool(struct.unpack("hhqqi4x", fcntl.fcntl(self.fd, fcntl.F_GETLK, lock))[0] != fcntl.F_UNLCK)

    def _text(self, header: bytes) -> str:
        return "collective %d (%s)" % (self.number, text(header))

    def _last(self, j: int) -> str:
        """The newest header of another rank."""
        at = _CONTROL * j + _HEADERS + HEADER * (_STATE.unpack_from(self.memory, _CONTROL * j)[2] & 1)
        return text(self.memory[at : at + HEADER])

    def _failure(self, j: int) -> str:
        at = _CONTROL * j + _FAILURE
        return self.memory[at : at + _CONTROL - _FAILURE].rstrip(b"\0").decode("utf-8", "ignore")

    def _differ(self, j: int, at: int, header: bytes) -> None:
        theirs = self.memory[at : at + HEADER]
        number = _STATE.unpack_from(self.memory, _CONTROL * j)[2]
        self.fail(
            "collective %d differs: rank %d calls %s, rank %d calls %s (its collective %d); all ranks must make the same calls in the same order"
            % (self.number, self.names[self.rank], text(header), self.names[j], text(theirs), number)
        )

    # -- end

    def fail(self, why: str, advice: str = "") -> None:
        """Ends the use of the group, tells the other ranks why, and raises the error. advice is for this rank alone: the others give their own."""
        first, self.closed = not self.closed, self.closed or why + advice
        if self.fd >= 0:
            said = ("rank %d gave up: %s" % (self.names[self.rank], why)).encode()[: _CONTROL - _FAILURE]
            at = _CONTROL * self.rank + _FAILURE
            self.memory[at : at + len(said)] = said
            self._say(FAILED)
        if first:
            self.on_failure(why)
        raise BackendError(why + advice)

    def close(self) -> None:
        """Leaves the group: other ranks that wait for this one get an error. The memory is released with the last process that has it."""
        if self.fd < 0:
            return
        if _STATE.unpack_from(self.memory, _CONTROL * self.rank)[0] != FAILED:
            self._say(LEFT)
        self.closed = self.closed or "the group is destroyed"
        fd, self.fd = self.fd, -1
        self._views.clear()
        del self.bytes
        try:
            self.memory.close()
        except BufferError:  # a tensor still views it; the last one releases it
            pass
        os.close(fd)


def text(header: bytes) -> str:
    """The part of a header that is for people."""
    return header[KEY:].rstrip(b"\0").decode("utf-8", "ignore")


def pack(key: str, human: str) -> bytes:
    """A header: of a key that is too long a digest is compared."""
    k = key.encode()
    if len(k) > KEY:
        import hashlib

        k = k[: KEY - 40] + hashlib.blake2b(k, digest_size=16).hexdigest().encode()
    return k.ljust(KEY, b"\0") + human.encode()[: HEADER - KEY].ljust(HEADER - KEY, b"\0")
