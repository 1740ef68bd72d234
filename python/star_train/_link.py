"""The link to the agent, ``star worker``, which joins the job for this process. docs/link.md describes it; nothing here knows PyTorch."""

from __future__ import annotations

import array
import atexit
import faulthandler
import json
import math
import mmap
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from types import FrameType, TracebackType
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Tuple, Type, TypeVar

from . import __version__

VERSION = 1

ABOUT, MEMORY, READY, COMPUTE, PART, DONE, EVALUATE, EVALUATED, LEASE, ERROR, STOP, LEAVE, JOINED, UPDATE, UPDATED, RECALL, STATE, HALT = range(1, 19)
_NAMES = (
    "",
    "about",
    "memory",
    "ready",
    "compute",
    "part",
    "done",
    "evaluate",
    "evaluated",
    "lease",
    "error",
    "stop",
    "leave",
    "joined",
    "update",
    "updated",
    "recall",
    "state",
    "halt",
)

_HEADER = struct.Struct("<IIQQQ")
HEADER = _HEADER.size
header, parse = _HEADER.pack, _HEADER.unpack_from
_MEMORY = struct.Struct("<8s8Q")
_AGENT = slice(_MEMORY.size, mmap.PAGESIZE)  # a text that ends with 0
_F64 = struct.Struct("<d")
_U64 = struct.Struct("<Q")

# Bytes of an element of a buffer, by the name of its type.
SIZES = {
    "F32": 4, "F64": 8, "F16": 2, "BF16": 2, "C64": 8, "C128": 16, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "BOOL": 1, "U8": 1, "U16": 2, "U32": 4, "U64": 8,
    "F8_E5M2": 1, "F8_E4M3": 1, "F8_E5M2FNUZ": 1, "F8_E4M3FNUZ": 1, "F8_E8M0": 1,
}  # fmt: skip
_TYPED_BUFFERS, _PROCESSES = 1, 2  # the agent knows of types, and of several processes

_MAX_BODY = 16 << 20
STATE_PART = 1 << 20
WANTS_PARTS = 1 << 63
RECALLED_ERROR = 1 << 63  # in C of the answer to a recall: the body says why the state is missing
TURN = 48  # from this bit of the position on

# Exit codes (docs/recover.md).
EXIT_USAGE, EXIT_DATA, EXIT_LOST, EXIT_DISAGREE = 2, 65, 69, 78


class StarError(RuntimeError):
    """What goes wrong between this process, its agent and the job. ``code`` is the exit code that fits."""

    code = 1

    def __init__(self, message: str, code: Optional[int] = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class AgentLost(StarError):
    """The agent, which speaks to the job for this process, is gone."""

    code = EXIT_LOST


class JobError(StarError):
    """The job has ended with an error, or goes on without this worker."""


def float_of(bits: int) -> float:
    """The float64 in a field of a frame."""
    out: float = _F64.unpack(_U64.pack(bits))[0]
    return out


class Frame(NamedTuple):
    kind: int
    a: int
    b: int
    c: int
    body: bytes


def _program_of(m: "mmap.mmap") -> str:
    """The agent's version and commit as messages have them. Empty: it is an older one."""
    text = m[_AGENT].split(b"\0", 1)[0].decode("utf-8", "replace")
    return " (%s)" % text[:200] if text else ""


class Memory(NamedTuple):
    """Where things lie in the shared memory, in bytes, and how many words of 4 bytes they are."""

    map: mmap.mmap
    params: int
    nparams: int
    grad: int
    buffers: int
    nbuffers: int


def place(dtype: str, elements: int, end: int) -> Tuple[int, int]:
    """The words of 4 bytes from which and to which a tensor lies behind another one, which ends at a word."""
    size = SIZES[dtype]
    step = max(1, size // 4)
    begin = -(-end // step) * step
    return begin, begin + -(-elements * size // 4)


def _words(tensors: Sequence["dict[str, Any]"]) -> int:
    end = 0
    for t in tensors:
        end = place(t.get("dtype", "F32"), math.prod(t["shape"]), end)[1]
    return end


def indices(f: Frame) -> List[int]:
    """The samples that a frame names."""
    a = array.array("q")
    if len(f.body) != 8 * f.b:
        raise StarError("the agent says %s of %d samples in %d bytes: it is no star of this version" % (name(f.kind), f.b, len(f.body)), EXIT_DISAGREE)
    a.frombytes(f.body)
    if sys.byteorder != "little":
        a.byteswap()
    return a.tolist()


class Link:
    """One end of the link. It is used by one thread at a time, but for :meth:`part`, which a thread of autograd may call meanwhile."""

    def __init__(self, sock: socket.socket, agent: Optional["subprocess.Popen[bytes]"] = None) -> None:
        self._sock = sock
        self._agent = agent
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self.finish: Optional[Callable[[], None]] = None  # called before the end in good order
        self.serve: Optional[Callable[[Frame], None]] = None  # answers what comes after that
        self._memory: Optional[Memory] = None
        self._cpu = 0
        self._faults = 0
        self._switches = 0
        self._measure()
        _register(self)

    # The handshake.

    def begin(self, about: "dict[str, Any]", share: Optional[Callable[[Frame, int], None]] = None) -> Memory:
        """Says what is trained; the memory in which parameters, gradient and buffers are from now on. share gets its frame and descriptor before it is closed."""
        about = dict(about, pid=os.getpid(), client="star-train " + __version__)
        self._send(ABOUT, VERSION, 0, 0, json.dumps(about).encode())
        f, fd = self._receive_fd()
        if f.kind == STOP:
            raise self._stopped(f)
        if f.kind != MEMORY or fd is None:
            if fd is not None:
                os.close(fd)
            raise StarError("the agent begins with %s, expected memory: it is no star of this version" % name(f.kind), EXIT_DISAGREE)
        try:
            m = mmap.mmap(fd, f.a, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            magic, version, size, params, nparams, grad, buffers, nbuffers, can = _MEMORY.unpack_from(m)
            if share is not None:
                share(f, fd)
        except OSError as e:
            raise StarError("%d MB of memory that is shared with the agent cannot be mapped: %s: see ulimit -v" % (f.a // 1_000_000, e.strerror), EXIT_LOST) from None
        except (ValueError, OverflowError, struct.error) as e:
            raise StarError("the agent gives memory of %d bytes, which is not that of a link (%s): it is not a star of this version" % (f.a, e), EXIT_DISAGREE) from None
        finally:
            os.close(fd)
        if magic != b"STARLINK" or version != VERSION or size != f.a:
            raise StarError(
                "the memory of the agent%s begins with %r, version %d: this star-train %s speaks version %d" % (_program_of(m), magic, version, __version__, VERSION),
                EXIT_DISAGREE,
            )
        typed = [t["name"] for t in about.get("buffers", ()) if "dtype" in t]
        if typed and not can & _TYPED_BUFFERS:
            raise StarError("%s is not float32, which this star cannot save: take the star that belongs to this star-train" % typed[0], EXIT_DISAGREE)
        if about.get("processes", 1) > 1 and not can & _PROCESSES:
            raise StarError("this star%s has workers of one process only: take the star that belongs to this star-train" % _program_of(m), EXIT_DISAGREE)
        counts = [_words(about.get(area, ())) for area in ("layout", "buffers")]
        ends = [at + 4 * n for at, n in ((params, nparams), (grad, nparams), (buffers, nbuffers))]
        if counts != [nparams, nbuffers] or max(ends) > size:
            raise StarError(
                "the memory of the agent is for %d parameters and %d of buffers in %d bytes, this process has %d and %d" % (nparams, nbuffers, size, *counts), EXIT_DISAGREE
            )
        self._memory = Memory(m, params, nparams, grad, buffers, nbuffers)
        return self._memory

    def ready(self) -> None:
        """Parameters and buffers are in the memory."""
        self._send(READY)

    # A step.

    def receive(self) -> Frame:
        """Waits for the agent. STOP with another code than 0 is a JobError."""
        f = self._read()
        if f.kind == STOP:
            self._closed = True
            if f.a != 0:
                raise self._stopped(f)
        return f

    def part(self, step: int, element: int) -> None:
        """The gradient from this element on is complete."""
        self._send(PART, step, element)

    def done(self, step: int, loss: float, load: int, compute: int) -> None:
        """The gradient is complete. load and compute are nanoseconds."""
        self._done(step, loss, self._used(load, compute))

    def _used(self, load: int, compute: int) -> List[int]:
        """The measurements of a step."""
        cpu, faults, switches = self._cpu, self._faults, self._switches
        self._measure()
        return [max(n, 0) for n in (load, compute, self._cpu - cpu, self._faults - faults, self._switches - switches, 0)]

    def _done(self, step: int, loss: float, usage: List[int]) -> None:
        global _exiting
        _exiting = None  # the script has gone on
        self._send(DONE, step, _U64.unpack(_F64.pack(loss))[0], 0, struct.pack("<%dq" % len(usage), *usage))

    def evaluated(self, step: int, loss_sum: float, correct: int, count: int) -> None:
        self._send(EVALUATED, step, correct, count, _F64.pack(loss_sum))

    # An optimizer of this process's own.

    def updated(self, step: int) -> None:
        self._send(UPDATED, step)

    def state(self, step: int, state: bytes) -> None:
        """What the optimizer remembers."""
        for at in range(0, max(len(state), 1), STATE_PART):
            self._send(STATE, step, len(state), 0, state[at : at + STATE_PART])

    def recall(self) -> None:
        """Asks for the state of the job's optimizer; the answer is a STATE, and recalled has the rest of it."""
        self._send(RECALL)

    def recalled(self, f: Frame) -> bytes:
        """The complete state of another worker's optimizer; f is its first part."""
        parts, got = [f.body], len(f.body)
        while got < f.b:
            more = self._read()
            if more.kind != STATE or more.a != f.a or not more.body:
                raise StarError("the agent says %s within the state of an optimizer" % name(more.kind), EXIT_DISAGREE)
            parts.append(more.body)
            got += len(more.body)
        return b"".join(parts)

    # The end.

    def fail(self, text: str, code: int = 1) -> None:
        """Says that this process cannot go on, and ends with an exit code."""
        self._last(ERROR, text.encode("utf-8", "replace")[-(1 << 20) :], code)

    def halt(self, why: str) -> None:
        """Has the job end in good order, for all workers."""
        self._send(HALT, body=why.encode("utf-8", "replace")[:1024])

    def leave(self) -> None:
        """Says that this process has nothing more to compute. What the end of the job asks of it is answered until the agent says stop."""
        if self.finish is not None and not self._closed and os.getpid() == self._pid:
            try:
                self.finish()
            except (OSError, StarError) as e:
                sys.stderr.write("star_train: %s\n" % e)
                return self.fail(str(e), e.code if isinstance(e, StarError) else 1)
        if self.serve is None:
            return self._last(LEAVE)
        if self._closed or os.getpid() != self._pid:
            return
        try:
            self._send(LEAVE, 1)
            for f in iter(self._read, None):
                if f.kind == STOP:
                    break
                self.serve(f)
        except (OSError, StarError):
            pass  # the agent is gone
        except Exception:
            self.fail(traceback.format_exc())
            traceback.print_exc()
        self._closed = True

    def _last(self, kind: int, body: bytes = b"", a: int = 0) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        try:
            self._send(kind, a, body=body)
        except (OSError, StarError):
            pass  # the agent is gone, too

    @property
    def closed(self) -> bool:
        return self._closed

    def patience(self, seconds: Optional[float]) -> None:
        """How long the agent is waited for from now on; after that it counts as gone. None: without end."""
        self._sock.settimeout(seconds)

    def wait(self, timeout: float) -> Optional[int]:
        """Hangs up and waits for the agent, if this process has started it: its exit code."""
        if os.getpid() != self._pid:
            return None
        self._sock.close()
        if self._agent is None:
            return None
        try:
            return self._agent.wait(timeout)
        except subprocess.TimeoutExpired:
            sys.stderr.write("star_train: the agent (process %d) does not end within %.0f s; it goes on by itself\n" % (self._agent.pid, timeout))
            return None

    def interrupt(self, number: int) -> None:
        """Passes a signal on to the agent, which has the job let this worker go; False where it has got it by itself."""
        if self._agent is not None:
            self._agent.send_signal(number)

    def forked(self) -> None:
        """In a child of fork(): the link is the parent's. The agent takes the end of the last copy for the end of the program."""
        self._closed = True
        try:
            self._sock.close()
        except OSError:
            pass

    # Bytes.

    def _measure(self) -> None:
        u = resource.getrusage(resource.RUSAGE_SELF)
        self._cpu = int((u.ru_utime + u.ru_stime) * 1e9)
        self._faults = u.ru_majflt
        self._switches = u.ru_nivcsw

    def _mine(self) -> None:
        if os.getpid() != self._pid:
            raise StarError(
                "process %d was forked from process %d and cannot use the link to the job: train in the process that has called star.attach" % (os.getpid(), self._pid),
                EXIT_USAGE,
            )

    def _send(self, kind: int, a: int = 0, b: int = 0, c: int = 0, body: bytes = b"") -> None:
        self._mine()
        data = _HEADER.pack(kind, len(body), a, b, c) + body
        try:
            with self._lock:
                self._sock.sendall(data)
        except OSError as e:
            raise self._gone(e) from None

    def _read(self) -> Frame:
        self._mine()
        return self._frame(self._exactly(_HEADER.size))

    def _frame(self, header: bytes) -> Frame:
        kind, size, a, b, c = _HEADER.unpack(header)
        if size > _MAX_BODY or not ABOUT <= kind <= HALT:
            raise StarError("the agent says %s with %d bytes: it is no star of this version" % (name(kind), size), EXIT_DISAGREE)
        return Frame(kind, a, b, c, self._exactly(size) if size else b"")

    def _exactly(self, n: int) -> bytes:
        try:
            b = self._sock.recv(n)
            if len(b) == n:
                return b
            parts = [b]
            got = len(b)
            while b and got < n:
                b = self._sock.recv(n - got)
                parts.append(b)
                got += len(b)
        except OSError as e:
            raise self._gone(e) from None
        if got < n:
            raise self._gone(None)
        return b"".join(parts)

    def _receive_fd(self) -> Tuple[Frame, Optional[int]]:
        self._mine()
        try:
            header, fds, _, _ = socket.recv_fds(self._sock, _HEADER.size, 1)
        except OSError as e:
            raise self._gone(e) from None
        if not header:
            raise self._gone(None)
        if len(header) < _HEADER.size:
            header += self._exactly(_HEADER.size - len(header))
        return self._frame(header), fds[0] if fds else None

    def _gone(self, e: Optional[OSError]) -> StarError:
        self._closed = True
        how = advice = ""
        code = None
        if self._agent is not None:
            try:
                code = self._agent.wait(2)
                how = ", with exit code %d" % code if code >= 0 else ", by signal %d" % -code
                limit = resource.getrlimit(resource.RLIMIT_AS)[0]
                if code == 2 and self._memory is None and limit != resource.RLIM_INFINITY:  # as Go's runtime ends where it cannot begin
                    advice = ". The address space is limited to %d MB, and the agent needs 2000 MB of it: raise or remove the limit (ulimit -v)" % (limit // 1_000_000)
                    code = EXIT_LOST
            except subprocess.TimeoutExpired:
                pass
        return AgentLost(
            "the agent (star worker), which speaks to the job for this process, has ended%s%s: what it said last is in the log above%s" % (how, " (%s)" % e if e else "", advice),
            code if code and code > 0 else None,
        )

    def _stopped(self, f: Frame) -> StarError:
        self._closed = True
        return JobError(f.body.decode("utf-8", "replace") or "the job has ended with exit code %d" % f.a, f.a)


L = TypeVar("L", bound=Link)


def name(kind: int) -> str:
    return _NAMES[kind] if 0 < kind < len(_NAMES) else "kind %d" % kind


# How a process finds its agent.


def wanted() -> bool:
    """Whether this process is part of a job: it was started as a worker, and STAR_OFF=1 is not set."""
    if os.environ.get("STAR_OFF", "") not in ("", "0"):
        return False
    if os.environ.get("STAR_LINK_FD") or os.environ.get("STAR_AGENT") or os.environ.get("STAR_COORDINATOR"):
        return True
    # The variables of a launcher that star worker understands, too.
    return all(os.environ.get(v) for v in ("MASTER_ADDR", "RANK", "WORLD_SIZE"))


def connect(kind: "Type[L]", drop: Sequence[str] = ()) -> "L":
    """The link to the agent that has started this process, or to one that it starts now, without some variables of the environment."""
    fd = os.environ.pop("STAR_LINK_FD", "")
    if fd:
        try:
            s = socket.socket(fileno=int(fd))
            s.set_inheritable(False)
        except (OSError, ValueError) as e:
            raise StarError(
                "STAR_LINK_FD=%s is no open socket (%s): start this process by star worker -- …, and no process in between that closes it" % (fd, e), EXIT_USAGE
            ) from None
        return kind(s)
    agent = _agent()
    ours, theirs = socket.socketpair()
    env = dict(os.environ, STAR_LINK_FD=str(theirs.fileno()))
    for name in ("STAR_AGENT", *drop):
        env.pop(name, None)
    try:
        # A session of its own: Ctrl-C in a terminal reaches this process, which passes it on once.
        p = subprocess.Popen([agent, "worker"], pass_fds=[theirs.fileno()], env=env, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as e:
        ours.close()
        raise StarError("the agent %s cannot be started: %s" % (agent, e), 66) from None
    finally:
        theirs.close()
    return kind(ours, p)


# The program of this package: only wheels have it.
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "star")


def _agent() -> str:
    """The program star: the one that started the job, the one of this package, the one in PATH."""
    for p in (os.environ.get("STAR_AGENT"), PROGRAM if os.path.exists(PROGRAM) else None, shutil.which("star")):
        if p:
            return p
    raise StarError("there is no star to join the job with: install the star-train wheel for this platform, put star into PATH, or set STAR_AGENT to it", 66)


def show_stacks() -> bool:
    """Makes SIGUSR2 write the stacks of all threads to standard error, to show what this process waits for. False: not possible."""
    if signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
        return False
    try:
        faulthandler.register(signal.SIGUSR2, all_threads=True)
    except (OSError, RuntimeError, ValueError, AttributeError):
        return False  # standard error is no file
    return True


# The end of this process, whatever it is.

_link: Optional[Link] = None
_failed: Optional[BaseException] = None
_exiting: Any = None  # what sys.exit was called with last, and no gradient has come since
_process = 0  # the process with a handler for its end


def watch() -> None:
    """Sees to it that the agent hears of an exception, and that this process ends with its exit code, also before there is a link."""
    global _process
    if _process == 0:
        _process = os.getpid()
        os.register_at_fork(after_in_child=_after_fork)
        atexit.register(_at_exit)
        _chain_excepthook()
        _chain_exit()


def _register(link: Link) -> None:
    global _link
    watch()
    if _link is None:
        _handle_signals()
    _link = link


def _after_fork() -> None:
    if _link is not None:
        _link.forked()


def _chain_excepthook() -> None:
    before: Callable[[Type[BaseException], BaseException, Optional[TracebackType]], Any] = sys.excepthook

    def hook(kind: Type[BaseException], e: BaseException, tb: Optional[TracebackType]) -> None:
        global _failed
        _failed = e
        if isinstance(e, StarError):
            _hide(tb)
        # The traceback comes before what others say about it. A hook of the script's own may wait for a person, so the job hears first.
        usual = before is sys.__excepthook__
        if usual:
            _show(kind, e, tb)
        if os.getpid() == _process:
            try:
                link = _link or (connect(Link) if os.environ.get("STAR_LINK_FD") else None)
            except StarError:
                link = None
            if link is not None:  # closed if this comes from the agent
                if isinstance(e, StarError):
                    link.fail(str(e), e.code)
                else:
                    link.fail("".join(traceback.format_exception(kind, e, tb)))
        if not usual:
            before(kind, e, tb)

    sys.excepthook = hook


def _hide(tb: Optional[TracebackType]) -> None:
    """Takes the frames of this package away from the end of a traceback: an error of ours is about the call in the script."""
    own = os.path.dirname(__file__)
    last = None
    while tb is not None:
        if os.path.dirname(tb.tb_frame.f_code.co_filename) != own:
            last = tb
        tb = tb.tb_next
    if last is not None:
        last.tb_next = None


def _show(kind: Type[BaseException], e: BaseException, tb: Optional[TracebackType]) -> None:
    """The usual traceback. Of an error that the agent reports as its last words there is only the line of the script."""
    if not isinstance(e, JobError) or tb is None:
        return sys.__excepthook__(kind, e, tb)
    at = traceback.extract_tb(tb)[-1]
    sys.stderr.write('File "%s", line %s, in %s: the job ended this worker (exit code %d); its agent says why\n' % (at.filename, at.lineno, at.name, e.code))


def _chain_exit() -> None:
    before = sys.exit

    def leave(status: Any = None, /) -> NoReturn:
        """sys.exit, which an exit code other than 0 makes a failure of this worker."""
        global _exiting
        _exiting = status
        before(status)

    sys.exit = leave


def _handle_signals() -> None:
    """The first SIGINT or SIGTERM has the job let this worker go, after a checkpoint if it must; one that comes a second later or more ends this process."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is usual:
            signal.signal(number, _on_signal)


# Within how many seconds two signals of a kind are one: a wrapper passes on what its whole group is sent.
_SAME_SIGNAL = 1.0
_signals: Dict[int, float] = {}  # when the first of each kind came


def _on_signal(number: int, _: Optional[FrameType]) -> None:
    now, first = time.monotonic(), _signals.get(number)
    ours = _link is not None and os.getpid() == _link._pid
    if _link is not None and ours and first is None and not _link.closed:
        _signals[number] = now
        _link.interrupt(number)
    elif not ours or first is None or now - first >= _SAME_SIGNAL:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _at_exit() -> None:
    if os.getpid() != _process:
        return
    code = None
    failed = _failed
    # sys.exit(None) and sys.exit(0) are a success, everything else is a failure.
    exits = failed is None and _exiting is not None and _exiting != 0
    if _link is not None:
        if exits:
            _link.fail("the script ended with sys.exit(%r)" % (_exiting,))
        else:
            _link.leave()
        code = _link.wait(60)
    # The interpreter would end with 1 for an exception of ours, and with 0 where the agent has failed.
    if isinstance(failed, StarError):
        code = failed.code
    elif failed is not None or exits or not code or code < 0:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
