"""Collectives between hosts for the star backend of torch.distributed: the agent of this host (``star agent``), and groups that span hosts.

One agent serves all processes of a job on its host. The first of them starts it, the others find it through the job's store; it ends with the last one. The
processes of a group on one host share memory; :meth:`Agent.group` gives it to the agent, and :class:`Hosts` has the agents of all hosts sum, send and receive
ranges of it in place. Nothing here imports torch: a store is anything with ``set``, ``get``, ``wait``, ``add`` and ``check`` of ``torch.distributed.Store``.

Frames and requests are described in worker/agent/frame.go.
"""

from __future__ import annotations

import datetime
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from . import __version__, _link
from ._link import EXIT_DISAGREE, EXIT_LOST, EXIT_USAGE, AgentLost, StarError

VERSION = 1

HELLO, OPEN, FORM, ALL_REDUCE, EXCHANGE, BROADCAST, BARRIER, ABORT, LEAD, FOLLOW, LEAVE = range(1, 12)
_DONE, _ERROR = 64, 65
_HEADER = struct.Struct("<IIQQQQQ")  # kind, bytes of the body, number, A, B, C, nanoseconds
_MAX_BODY = 64 << 10

# What the agents can sum between hosts; the values are codes of the agent.
DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3, "int32": 4, "int64": 5}
OPS = {"sum": 0, "mean": 1, "max": 2, "min": 3}

# How much longer than its time limit a request may take before the agent counts as hung: hosts look for the one at fault meanwhile.
GRACE = 10.0

Timeout = Union[float, datetime.timedelta]


class HostLost(StarError):
    """An operation between hosts failed because of one of them: ``host`` is its index in the group."""

    code = EXIT_LOST

    def __init__(self, message: str, host: int) -> None:
        super().__init__(message)
        self.host = host


def host_id() -> str:
    """Equal for processes on one host: STAR_HOST_ID, else the boot and the network namespace."""
    given = os.environ.get("STAR_HOST_ID")
    if given:
        return given
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            return f.read().strip() + " " + os.readlink("/proc/self/ns/net")
    except OSError:
        return socket.gethostname()


def _seconds(timeout: Timeout) -> float:
    return timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)


class _Deadline:
    def __init__(self, timeout: Timeout) -> None:
        self.timeout = _seconds(timeout)
        self._end = time.monotonic() + self.timeout

    def left(self) -> float:
        return max(self._end - time.monotonic(), 0.001)


def _await(store: Any, key: str, deadline: _Deadline, what: str) -> str:
    """The value of a key that another process sets."""
    try:
        store.wait([key], datetime.timedelta(seconds=deadline.left()))
        value = store.get(key)
    except Exception as e:
        raise StarError("no sign of %s in the job's store within %.0f s: %s" % (what, deadline.timeout, str(e).split("\n", 1)[0]), EXIT_LOST) from None
    return value.decode() if isinstance(value, bytes) else str(value)


def _store_address(store: Any) -> str:
    """host:port of a store; empty: it is no address, as that of a file."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    if not host:
        host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "1")
    if not host:
        return ""
    return ("[%s]:%s" if ":" in host else "%s:%s") % (host, port)


_open: "weakref.WeakSet[_Connection]" = weakref.WeakSet()
_current: "Optional[Agent]" = None  # of this process


def _forked() -> None:
    """In a child of fork(): connections are the parent's. The agent takes the end of the last copy for the end of the process."""
    global _current
    for c in list(_open):
        c.forked()
    _open.clear()
    _current = None


os.register_at_fork(after_in_child=_forked)


class _Connection:
    """One connection to the agent. One thread at a time asks; others may abort or close it meanwhile."""

    def __init__(self, name: str, rank: int, token: str, deadline: _Deadline) -> None:
        self._pid = os.getpid()
        self._number = 0
        self._lock = threading.Lock()  # of a request and its reply
        self._send = threading.Lock()  # of a frame
        self._limit = -1.0
        self._closed = ""
        self.agent = 0  # its process
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.settimeout(deadline.left())
            self._sock.connect("\0" + name)
        except OSError as e:
            self._sock.close()
            raise AgentLost("the agent of this host (star agent, at @%s) cannot be reached: %s: its last messages are in the log of rank 0 of this host" % (name, e)) from None
        _open.add(self)
        hello = {"client": "star-train " + __version__, "rank": rank, "token": token}
        try:
            self.about: Dict[str, Any] = json.loads(self.ask("hello", HELLO, VERSION, body=json.dumps(hello).encode(), timeout=deadline.left()))
        except BaseException:
            self.close()
            raise
        self.agent = int(self.about["pid"])

    def ask(self, what: str, kind: int, a: int = 0, b: int = 0, c: int = 0, body: bytes = b"", timeout: float = 60.0, fd: int = -1) -> bytes:
        """Sends a request, waits for its reply and returns the body of that. what names the request in errors."""
        if os.getpid() != self._pid:
            raise StarError(
                "%s: process %d was forked from process %d, and only that one may use the group: call init_process_group in the process that trains"
                % (what, os.getpid(), self._pid),
                EXIT_USAGE,
            )
        with self._lock:
            if self._closed:
                raise AgentLost("%s: %s" % (what, self._closed))
            self._number += 1
            try:
                frame = _HEADER.pack(kind, len(body), self._number, a, b, c, max(int(timeout * 1e9), 1)) + body
            except struct.error as e:
                raise StarError("%s: offsets and sizes must be from 0 to 2**64: %s" % (what, e), EXIT_USAGE) from None
            try:
                if timeout != self._limit:
                    self._limit = timeout
                    self._sock.settimeout(timeout + GRACE)
                with self._send:
                    if fd < 0:
                        self._sock.sendall(frame)
                    else:
                        socket.send_fds(self._sock, [frame], [fd])
                reply, size, number, code, host, _, _ = _HEADER.unpack(self._exactly(_HEADER.size))
                if reply not in (_DONE, _ERROR) or size > _MAX_BODY or number not in (0, self._number):
                    raise StarError("%s: the agent says %d of %d bytes to request %d: it is no star of this version" % (what, reply, size, number), EXIT_DISAGREE)
                text = self._exactly(size) if size else b""
            except socket.timeout:
                self.close("the agent of this host (process %d) did not answer within %.0f s of the time limit of an earlier request" % (self.agent, GRACE))
                raise AgentLost(
                    "%s: the agent of this host (process %d) did not answer within %.0f s: look at its state, as with ps -o stat,wchan -p %d"
                    % (what, self.agent, timeout + GRACE, self.agent)
                ) from None
            except OSError as e:
                if not self._closed:
                    self.close("the agent of this host (process %d) has ended" % self.agent)
                raise AgentLost("%s: %s (%s)" % (what, self._closed, e)) from None
        if reply == _ERROR:
            raise _Refused(text.decode("utf-8", "replace"), code, host - 1)
        return text

    def _exactly(self, n: int) -> bytes:
        got = b""
        while len(got) < n:
            part = self._sock.recv(n - len(got))
            if not part:
                raise OSError("end of connection")
            got += part
        return got

    def check(self) -> None:
        """Raises an error if the agent has ended."""
        with self._lock:
            try:
                ended = bool(self._closed) or bool(select.select([self._sock], [], [], 0)[0]) and not self._sock.recv(1, socket.MSG_PEEK)
            except OSError:
                ended = True
        if ended:
            raise AgentLost("the agent of this host (process %d) has ended" % self.agent)

    def tell(self, kind: int, text: str = "") -> None:
        """Sends a frame that has no reply."""
        if self._closed or os.getpid() != self._pid:
            return
        body = text.encode("utf-8", "replace")[:1024]
        try:
            with self._send:
                self._sock.sendall(_HEADER.pack(kind, len(body), 0, 0, 0, 0, 1) + body)
        except OSError:
            pass  # the agent is gone

    def close(self, why: str = "it was closed") -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = why
        _open.discard(self)
        try:
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits
        except OSError:
            pass
        self._sock.close()

    def forked(self) -> None:
        self._sock.close()


class _Refused(StarError):
    """The agent's error reply; host is the index of the one at fault, or -1."""

    def __init__(self, message: str, code: int, host: int) -> None:
        super().__init__(message, code)
        self.host = host


class Agent:
    """The agent of this host, as one process sees it. All groups of the process share it."""

    def __init__(self, name: str, rank: int, token: str, deadline: _Deadline) -> None:
        self._name = name
        self._rank = rank
        self._token = token
        self._own = _Connection(name, rank, token, deadline)

    @classmethod
    def ensure(cls, store: Any, rank: int, size: int, local_rank: int, timeout: Timeout) -> Optional["Agent"]:
        """The agent of this host. The process with local_rank 0 starts it, the others wait for that.

        rank and size are of the whole job, local_rank among the processes with the same host_id(). All processes of the job call it; later calls, as for
        sub-groups, return the same agent until close(). None: there is no program star on this host. StarError: it cannot be started, or has ended."""
        global _current
        if _current is None:
            _current = cls._begin(store, rank, local_rank, _Deadline(timeout))
        if _current is not None:
            _current._own.check()
        return _current

    @classmethod
    def _begin(cls, store: Any, rank: int, local_rank: int, deadline: _Deadline) -> Optional["Agent"]:
        # A store may outlive a group: each call of all ranks has keys of its own.
        prefix = "star/agent/%d/" % store.add("star/agent/calls/%d" % rank, 1)
        if rank == 0:
            store.set(prefix + "token", os.urandom(16).hex())
        key = prefix + "host/" + host_id()
        if local_rank != 0:
            name = _await(store, key, deadline, "the agent that the first process of this host starts")
            if name.startswith("!"):
                raise StarError("the agent of this host could not be started: " + name[1:], EXIT_LOST)
            if not name:
                return None
            return cls(name, rank, _await(store, prefix + "token", deadline, "rank 0"), deadline)
        try:
            program = _link._agent()
        except StarError:
            store.set(key, "")
            if rank == 0:
                store.set(prefix + "head", "")
            return None
        try:
            token = _await(store, prefix + "token", deadline, "rank 0")
            name = "star-agent-" + os.urandom(12).hex()
            process = _start(program, name)
            try:
                agent = cls(name, rank, token, deadline)
            except StarError as e:
                raise _why(e, process, program) from None
        except StarError as e:
            store.set(key, "!" + str(e))
            raise
        threading.Thread(target=_reap, args=(process, agent._own.about.get("hook")), name="star agent", daemon=True).start()
        store.set(key, name)
        agent._lead(store, prefix, deadline)
        return agent

    def _lead(self, store: Any, prefix: str, deadline: _Deadline) -> None:
        """Has the agent of rank 0's host judge what those of all hosts measure. Jobs go on without."""
        if not self._own.about.get("hook"):
            if self._rank == 0:
                store.set(prefix + "head", "")
            return
        try:
            if self._rank == 0:
                addr = self._own.ask("lead", LEAD, body=_store_address(store).encode(), timeout=deadline.left())
                store.set(prefix + "head", addr.decode())
            else:
                head = _await(store, prefix + "head", deadline, "the agent of rank 0's host")
                if head:
                    self._own.ask("follow", FOLLOW, body=head.encode(), timeout=deadline.left())
        except StarError as e:
            sys.stderr.write("star_train: this host is not measured: %s\n" % e)
            if self._rank == 0:
                store.set(prefix + "head", "")

    def group(self, store: Any, name: str, host_index: int, hosts: int, fd: int, size: int, timeout: Timeout, ranks: str = "") -> "Hosts":
        """A group that spans hosts, for its first process on this one. fd is a memfd of size bytes, which the processes of the group on this host share; it
        may be closed afterwards, and must not be shortened. All first processes call it with the same name, and a store that all of them have. ranks names
        the processes of this host in errors of other hosts."""
        deadline = _Deadline(timeout)
        what = "group %r: host %d of %d" % (name, host_index, hosts)
        connection = _Connection(self._name, self._rank, self._token, deadline)
        prefix = ""
        try:
            about = {"name": name, "host": host_index, "hosts": hosts, "host_id": host_id(), "token": self._token, "store": _store_address(store)}
            addr = connection.ask(what, OPEN, size, body=json.dumps(about).encode(), timeout=deadline.left(), fd=fd).decode()
            prefix = "star/group/%s/%d/" % (name, store.add("star/group/%s/calls/%d" % (name, host_index), 1))
            store.set(prefix + str(host_index), "%s, %s" % (socket.gethostname(), ranks or "rank %d" % self._rank))
            if host_index == 0:
                store.set(prefix + "address", addr)
            else:
                addr = _await(store, prefix + "address", deadline, "host 0 of %s" % what)
            connection.ask(what, FORM, body=addr.encode(), timeout=deadline.left())
            names = [_await(store, prefix + str(i), deadline, "the name of host %d" % i) for i in range(hosts)]
        except _Refused as e:
            connection.close()
            missing = [i for i in range(hosts) if prefix and not store.check([prefix + str(i)])]
            gone = "; hosts %s have not come" % missing if missing else ""
            if e.host >= 0 or missing:
                raise HostLost("%s: %s%s" % (what, e, gone), e.host if e.host >= 0 else missing[0]) from None
            raise StarError("%s: %s%s" % (what, e, gone), e.code) from None
        except BaseException:
            connection.close()
            raise
        return Hosts(connection, name, host_index, names)

    def watch(self) -> bool:
        """Has this process measured, unless star watch does: the module star_watch of the agent is imported and installed. False: nothing is measured."""
        hook, path = self._own.about.get("hook"), self._own.about.get("socket")
        if os.environ.get("STAR_WATCH_SOCKET") or not hook or not path:
            return bool(os.environ.get("STAR_WATCH_SOCKET"))
        os.environ["STAR_WATCH_SOCKET"] = path
        sys.path.insert(0, hook)
        try:
            import star_watch  # type: ignore[import-not-found]

            star_watch.install()
        except Exception as e:  # the job goes on without
            sys.stderr.write("star_train: this process is not measured: %s\n" % e)
            return False
        finally:
            sys.path.remove(hook)
            del os.environ["STAR_WATCH_SOCKET"]  # programs that this one starts are no ranks
        return True

    def close(self) -> None:
        """This process needs the agent no longer. The agent ends with its last process, also without this call."""
        global _current
        self._own.close()
        if _current is self:
            _current = None


def _start(program: str, name: str) -> "subprocess.Popen[bytes]":
    """Starts the agent with a socket that listens already, so that no process needs to wait for it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        try:
            s.bind("\0" + name)
            s.listen(1024)
            # A session of its own: Ctrl-C in a terminal is for the processes.
            return subprocess.Popen(
                [program, "agent", "--listen-fd", str(s.fileno())], pass_fds=[s.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as e:
            raise StarError("the agent %s cannot be started: %s" % (program, e), 66) from None


def _reap(process: "subprocess.Popen[bytes]", hook: Optional[str]) -> None:
    """Waits for the end of the agent, so that it leaves no zombie and, if it is killed, no folder."""
    code = process.wait()
    if code != 0:
        how = "exit code %d" % code if code > 0 else "signal %d" % -code
        sys.stderr.write("star_train: the agent of this host (process %d) ended by %s: this job is no longer measured, and its groups with other hosts fail\n" % (process.pid, how))
    if hook:
        shutil.rmtree(os.path.dirname(hook), ignore_errors=True)


def _why(e: StarError, process: "subprocess.Popen[bytes]", program: str) -> StarError:
    """e, with how the agent has ended, if it has."""
    try:
        code = process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return e
    how = "with exit code %d" % code if code >= 0 else "by signal %d" % -code
    return StarError("%s agent has ended %s: its message is above; %s" % (program, how, e), code if code > 0 else EXIT_LOST)


class Hosts:
    """The hosts of a group. Ranges are bytes in the group's memory on this host. One operation runs at a time; abort and close may be called by any thread.

    All hosts call the same operations in the same order. After an error the group is unusable. Times are seconds or timedeltas."""

    def __init__(self, connection: _Connection, name: str, index: int, names: Sequence[str]) -> None:
        self._connection = connection
        self.name = name
        self.index = index
        self.names = list(names)

    def _ask(self, what: str, kind: int, a: int, b: int, c: int, timeout: Timeout, body: bytes = b"") -> None:
        try:
            self._connection.ask(what, kind, a, b, c, body, _seconds(timeout))
        except _Refused as e:
            text = "%s in group %r of %d hosts: " % (what, self.name, len(self.names))
            if 0 <= e.host < len(self.names):
                _, gave_up, why = str(e).partition(": it gave up: ")
                raise HostLost("%shost %d (%s)%s: %s" % (text, e.host, self.names[e.host], " gave up" if gave_up else "", why or e), e.host) from None
            raise StarError(text + str(e), e.code) from None

    def all_reduce(self, offset: int, count: int, dtype: str, op: str, timeout: Timeout) -> None:
        """Combines count elements of all hosts in place."""
        if dtype not in DTYPES or op not in OPS:
            raise StarError("all_reduce between hosts with %s of %s: it has the types %s and the operators %s" % (op, dtype, ", ".join(DTYPES), ", ".join(OPS)), EXIT_USAGE)
        self._ask("all_reduce (%s of %d %s)" % (op, count, dtype), ALL_REDUCE, offset, count, DTYPES[dtype] | OPS[op] << 8, timeout)

    def exchange(self, sends: Sequence[Tuple[int, int]], receives: Sequence[Tuple[int, int]], timeout: Timeout) -> None:
        """Sends the range (offset, bytes) sends[h] to host h, and receives from it receives[h], which must be as long as what it sends. The entries of this
        host are ignored."""
        if not len(sends) == len(receives) == len(self.names):
            raise StarError("exchange with %d ranges to send and %d to receive: one of each for each of %d hosts" % (len(sends), len(receives), len(self.names)), EXIT_USAGE)
        values: List[int] = []
        for s, r in zip(sends, receives):
            values += (*s, *r)
        try:
            body = struct.pack("<%dQ" % len(values), *values)
        except struct.error as e:
            raise StarError("exchange: offsets and sizes must be from 0 to 2**64: %s" % e, EXIT_USAGE) from None
        self._ask("exchange of %d bytes" % sum(s[1] for s in sends), EXCHANGE, 0, 0, 0, timeout, body)

    def broadcast(self, root_host: int, offset: int, size: int, timeout: Timeout) -> None:
        """Sends bytes of one host to all."""
        self._ask("broadcast of %d bytes of host %d" % (size, root_host), BROADCAST, root_host, offset, size, timeout)

    def barrier(self, timeout: Timeout) -> None:
        """Returns when all hosts have called it."""
        self._ask("barrier", BARRIER, 0, 0, 0, timeout)

    def abort(self, reason: str = "abort was called") -> None:
        """Ends the running operation and all later ones with an error, on all hosts."""
        self._connection.tell(ABORT, reason)

    def close(self) -> None:
        """Leaves the group. An operation that runs on another host fails."""
        self._connection.tell(LEAVE)
        self._connection.close("the group was closed")
