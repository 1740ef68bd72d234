"""The link of a worker that is several processes: one of them, the leader, speaks with the agent, and is what an agent is to the others, over a Unix socket each.

Frames of the agent go to all processes as they are. The agent gets an answer when all processes have answered. All of them map the memory of the link.
"""

from __future__ import annotations

import collections
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from typing import Any, Callable, Deque, Dict, List, NoReturn, Optional, Sequence, Tuple

from . import _link
from ._agent import host_id as _here
from ._link import Frame, Link, StarError

# How long the leader waits for another process to end its step, s; the agent waits as long for a step. And when it says that it waits.
_STEP, _SLOW = 1800.0, 60.0

# How long a process may be in its loop when another one of its worker has ended its own, s.
_LEFT = 60.0

_HELLO = struct.Struct("<II")
_CRED = struct.Struct("iII")  # of SO_PEERCRED: pid, uid, gid

# Frames that the other processes get when the leader says so, not when it reads them.
_LATER = (_link.UPDATE, _link.STATE)


class _Peer:
    """Another process of the worker, as its leader knows it."""

    def __init__(self, sock: socket.socket, rank: int, pid: int) -> None:
        self.sock, self.rank, self.pid = sock, rank, pid
        self.frames: Deque[Frame] = collections.deque()
        self.bytes = b""
        self.left = 0.0  # when its loop ended
        self.ended = False


class Hub(Link):
    """The leader's link to the agent, and to the other processes of its worker."""

    def __init__(self, sock: socket.socket, agent: Any = None) -> None:
        super().__init__(sock, agent)
        self.peers: List[_Peer] = []
        self._heard = threading.Condition()
        self._ending = False  # the others were told to stop
        self._loss: Optional[Tuple[str, int]] = None  # what a process that is gone has done to this worker, and the exit code
        self._telling = threading.Lock()
        self.known: Optional[Tuple[int, bytes]] = None  # what the job's optimizer remembers until the next gradient, if the leader has asked
        self.ask: Optional[Callable[[], Optional[Tuple[int, bytes]]]] = None  # what the job's optimizer remembers

    def lead(self, peers: Sequence[_Peer]) -> None:
        """These are the other processes."""
        self.peers = list(peers)
        threading.Thread(target=self._listen, name="star_train processes of the worker", daemon=True).start()

    # To the other processes.

    def tell(self, kind: int, a: int = 0, b: int = 0, c: int = 0, body: bytes = b"") -> None:
        """All other processes get a frame. One that is gone is the listener's affair."""
        self._send_to(self.peers, _link.header(kind, len(body), a, b, c) + body)

    def _send_to(self, peers: Sequence[_Peer], data: bytes) -> None:
        with self._telling:
            for p in peers:
                try:
                    p.sock.sendall(data)
                except OSError:
                    pass

    def tell_state(self, peers: Sequence[_Peer], step: int, steps: int, state: bytes) -> None:
        """Other processes get the state of an optimizer that has made some steps."""
        parts = [state[at : at + _link.STATE_PART] for at in range(0, max(len(state), 1), _link.STATE_PART)]
        self._send_to(peers, b"".join(_link.header(_link.STATE, len(part), step, len(state), steps) + part for part in parts))

    def remember(self, answer: Optional[Tuple[int, bytes]]) -> None:
        """The leader has asked what the job's optimizer remembers: others that ask for it before the next gradient are answered even while the leader computes."""
        with self._heard:
            self.known = answer
            waiting = [p for p in self.peers if p.frames and p.frames[0].kind == _link.RECALL]
            for p in waiting:
                p.frames.popleft()
        if answer is not None:
            self.tell_state(waiting, 0, *answer)

    def _stop(self, code: int, why: str) -> None:
        if not self._ending:
            self._ending = True
            self.tell(_link.STOP, code, body=why.encode("utf-8", "replace")[-(1 << 20) :])

    # From the other processes.

    def _listen(self) -> None:
        """Reads what they say, also while this process computes: one that dies in the middle takes the worker out of the job at once."""
        poll = select.poll()
        by = {p.sock.fileno(): p for p in self.peers}
        for fd in by:
            poll.register(fd, select.POLLIN | select.POLLRDHUP)
        while by:
            for fd, _ in poll.poll(1000):
                p = by[fd]
                try:
                    data = p.sock.recv(1 << 20, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""
                if not data:
                    poll.unregister(fd)
                    del by[fd]
                with self._heard:
                    self._take(p, data)
                    self._heard.notify_all()
                if self._loss is not None and not self._ending:
                    self._lose()
            late = [p for p in self.peers if p.left and not self._closed and time.monotonic() > p.left + _LEFT]
            if late and not self._ending:
                self._loss = ("process %d of this worker ended its loop %.0f s ago, and process 0 did not: all processes make the same steps" % (late[0].rank, _LEFT), 1)
                self._lose()

    def _take(self, p: _Peer, data: bytes) -> None:
        if not data:
            p.ended = True
            if not (p.left or self._ending or self._closed) and self._loss is None:
                self._loss = (
                    "process %d of the %d of this worker (pid %d) has ended without saying why: it was killed, or crashed" % (p.rank, len(self.peers) + 1, p.pid),
                    _link.EXIT_LOST,
                )
            return
        p.bytes += data
        while len(p.bytes) >= _link.HEADER:
            kind, size, a, b, c = _link.parse(p.bytes)
            if len(p.bytes) < _link.HEADER + size:
                return
            f = Frame(kind, a, b, c, p.bytes[_link.HEADER : _link.HEADER + size])
            p.bytes = p.bytes[_link.HEADER + size :]
            if kind == _link.ERROR:
                text = f.body.decode("utf-8", "replace")
                self._loss = self._loss or ("process %d of the %d of this worker failed: %s" % (p.rank, len(self.peers) + 1, text), f.a or 1)
                p.left = p.left or time.monotonic()
            elif kind == _link.LEAVE:
                p.left = time.monotonic()
            elif kind == _link.RECALL and self.known is not None:
                self.tell_state([p], 0, *self.known)
            else:
                p.frames.append(f)

    def _lose(self) -> NoReturn:
        """A process is gone, so this worker leaves the job; this process may be waiting for that one, and does not come to it by itself."""
        assert self._loss is not None
        text, code = self._loss
        self._last(_link.ERROR, text.encode("utf-8", "replace"), code)
        self._stop(code, text)
        sys.stderr.write("star_train: %s; process 0 ends, too\n" % text.splitlines()[0])
        self._sock.close()
        if self._agent is not None:
            try:
                self._agent.wait(10)
            except Exception:
                pass
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _from(self, p: _Peer, what: str) -> Frame:
        """The next frame of a process."""
        begun, said = time.monotonic(), False
        with self._heard:
            while not p.frames:
                took = time.monotonic() - begun
                if p.left:
                    raise StarError("process %d of this worker ended its loop, and process 0 waits for %s of it: all processes make the same steps" % (p.rank, what), 1)
                if took > _STEP:
                    raise StarError("process %d of this worker (pid %d) has not ended %s within %.0f s" % (p.rank, p.pid, what, _STEP), _link.EXIT_LOST)
                if took > _SLOW and not said:
                    said = True
                    sys.stderr.write("star_train: process 0 has waited %.0f s for %s of process %d of this worker (pid %d)\n" % (took, what, p.rank, p.pid))
                if p.ended or not self._heard.wait(1.0) and p.ended:
                    time.sleep(1)  # the listener ends this process
            return p.frames.popleft()

    def collect(self, kind: int, step: int, what: str) -> List[Frame]:
        """The answers of all other processes."""
        out = []
        for p in self.peers:
            while True:
                f = self._from(p, what)
                if f.kind == kind and (f.a == step or kind in (_link.ABOUT, _link.READY)):
                    out.append(f)
                    break
                if f.kind == _link.RECALL:
                    self._recall_for(p)
                elif f.kind == _link.HALT:
                    self.halt(f.body.decode("utf-8", "replace"))
                elif f.kind not in (_link.DONE, _link.EVALUATED) or f.a >= step:
                    raise StarError(
                        "process %d of this worker says %s, and process 0 waits for %s: all processes make the same steps" % (p.rank, _link.name(f.kind), what), _link.EXIT_USAGE
                    )
        return out

    def _recall_for(self, p: _Peer) -> None:
        """Another process asks what the job's optimizer remembers."""
        assert self.ask is not None
        self.tell_state([p], 0, *(self.ask() or (_link.RECALLED_ERROR, b"the job is over")))

    # To the agent.

    def begin(self, about: "dict[str, Any]", share: Any = None) -> _link.Memory:
        own = json.loads(json.dumps(about))
        for p, f in zip(self.peers, self.collect(_link.ABOUT, 0, "what it trains")):
            _compare(own, json.loads(f.body), p.rank)

        def give(f: Frame, fd: int) -> None:
            for p in self.peers:
                socket.send_fds(p.sock, [_link.header(f.kind, 0, f.a, f.b, f.c)], [fd])

        return super().begin(dict(about, processes=len(self.peers) + 1), give)

    def ready(self) -> None:
        self.collect(_link.READY, 0, "its parameters")
        super().ready()

    def _read(self) -> Frame:
        f = super()._read()
        if f.kind == _link.STOP:
            self._stop(f.a, f.body.decode("utf-8", "replace"))
        elif f.kind not in _LATER:
            self.tell(f.kind, f.a, f.b, f.c, f.body)
        return f

    def _stopped(self, f: Frame) -> StarError:
        self._stop(f.a, f.body.decode("utf-8", "replace"))
        return super()._stopped(f)

    def done(self, step: int, loss: float, load: int, compute: int) -> None:
        usages = [self._used(load, compute)]
        losses = [loss]
        for f in self.collect(_link.DONE, step, "step %d" % step):
            usages.append(list(struct.unpack("<%dq" % (len(f.body) // 8), f.body)))
            losses.append(_link.float_of(f.b))
        times = [u[0] + u[1] for u in usages]
        # The worker is as fast as its slowest process.
        slow = max(range(len(usages)), key=times.__getitem__)
        self.known = None
        self._done(step, sum(losses) / len(losses), usages[slow] + (times if self.peers else []))

    def evaluated(self, step: int, loss_sum: float, correct: int, count: int) -> None:
        for f in self.collect(_link.EVALUATED, step, "an evaluation"):
            loss_sum += struct.unpack("<d", f.body)[0]
            correct, count = correct + f.b, count + f.c
        super().evaluated(step, loss_sum, correct, count)

    def updated(self, step: int) -> None:
        self.collect(_link.UPDATED, step, "an update")
        super().updated(step)

    # The end.

    def fail(self, text: str, code: int = 1) -> None:
        if os.getpid() == self._pid and not self._closed:
            time.sleep(0.1)  # where this process fails because another one has, the listener knows by now
            if self._loss is not None:
                text, code = self._loss
        super().fail(text, code)
        self._stop(code, text)

    def forked(self) -> None:
        super().forked()
        for p in self.peers:
            p.sock.close()


class Spoke(Link):
    """The link of another process of the worker to the leader, which is its agent."""

    leader = 0

    def follow(self, leader: int) -> None:
        """leader is its process number."""
        self.leader = leader
        threading.Thread(target=self._watch, name="star_train leader of the worker", daemon=True).start()

    def _watch(self) -> None:
        """Ends this process where the leader is gone, also while it waits for another one."""
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLRDHUP)
        poll.poll()
        time.sleep(1)  # it may know by itself
        if not self._closed:
            sys.stderr.write("star_train: %s\n" % self._lost())
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_link.EXIT_LOST)

    def _lost(self) -> str:
        return "process 0 of this worker (pid %d), which speaks with its agent, is gone; this process ends, too" % self.leader

    def _gone(self, e: Optional[OSError]) -> StarError:
        self._closed = True
        return _link.AgentLost(self._lost())

    def interrupt(self, number: int) -> None:
        try:
            os.kill(self.leader, number)
        except OSError:
            pass


def _compare(own: "dict[str, Any]", other: "dict[str, Any]", rank: int) -> None:
    """The processes of a worker train the same."""
    for key, mine in own.items():
        if key in ("pid", "client", "stack") or other.get(key) == mine:
            continue
        theirs = other.get(key)
        if key in ("layout", "buffers"):
            pairs = [(a, b) for a, b in zip(mine, theirs or []) if a != b]
            mine, theirs = pairs[0] if pairs else ("%d tensors" % len(mine), "%d" % len(theirs or []))
        raise StarError("the processes of this worker differ in %s: process 0 has %s, process %d has %s" % (key, mine, rank, theirs), _link.EXIT_DISAGREE)


# How the processes of a worker find each other: through a key-value store of torch.distributed.


class Meeting:
    """The processes of a worker, at star.attach. A store has set, get and add (torch.distributed.Store)."""

    def __init__(self, store: Any, key: str, rank: int, size: int, patience: float) -> None:
        self.store, self.key, self.rank, self.size, self.patience = store, "star_train/" + key + "/", rank, size, patience

    def _count(self, name: str, by: int = 0) -> int:
        return int(self.store.add(self.key + name, by))

    def _missing(self, members: Sequence[int], of: Sequence[int]) -> StarError:
        return StarError(
            "%s of the group of star.attach did not call it within %.0f s: all processes of the group call star.attach(model, optimizer, group=…)"
            % (", ".join("process %d (rank %d)" % (i, of[i]) for i in members), self.patience),
            _link.EXIT_LOST,
        )

    def lead(self, ranks: Sequence[int]) -> List[_Peer]:
        """Waits for the other processes; ranks are those of the whole world."""
        name = "star-train-" + os.urandom(16).hex()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("\0" + name)
            listener.listen(self.size)
            listener.settimeout(0.25)
            self.store.set(self.key + "leader", json.dumps([name, _here(), socket.gethostname(), os.getpid()]))
            self._count("here/0", 1)
            end = time.monotonic() + self.patience
            peers: Dict[int, _Peer] = {}
            while len(peers) < self.size - 1:
                try:
                    s, _ = listener.accept()
                except socket.timeout:
                    far = [i for i in range(1, self.size) if i not in peers and self._count("far/%d" % i)]
                    if far:
                        raise _hosts(far[0]) from None
                    if time.monotonic() > end:
                        raise self._missing([i for i in range(1, self.size) if i not in peers], ranks) from None
                    continue
                pid, uid, _ = _CRED.unpack(s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CRED.size))
                s.settimeout(10)
                try:
                    rank, _ = _HELLO.unpack(s.recv(_HELLO.size, socket.MSG_WAITALL))
                except (OSError, struct.error):
                    s.close()
                    continue
                if uid != os.getuid() or not 0 < rank < self.size or rank in peers:
                    s.close()
                    continue
                s.settimeout(None)
                peers[rank] = _Peer(s, rank, pid)
            return [peers[i] for i in sorted(peers)]

    def follow(self, ranks: Sequence[int]) -> Tuple[socket.socket, int]:
        """The socket to the leader, and its process."""
        self._count("here/%d" % self.rank, 1)
        end = time.monotonic() + self.patience
        while not self._count("here/0"):
            if time.monotonic() > end:
                raise self._missing([0], ranks)
            time.sleep(0.02)
        name, where, host, pid = json.loads(self.store.get(self.key + "leader"))
        s = socket.socket(socket.AF_UNIX)
        if where != _here():
            self._count("far/%d" % self.rank, 1)
            raise _hosts(self.rank, " (%s, and process 0 on %s)" % (socket.gethostname(), host))
        try:
            s.connect("\0" + name)
            s.sendall(_HELLO.pack(self.rank, 0))
        except OSError as e:
            raise StarError("process 0 of the group of star.attach cannot be reached: %s: it has ended, or has given up" % e.strerror, _link.EXIT_LOST) from None
        return s, pid


def _hosts(rank: int, where: str = "") -> StarError:
    return StarError(
        "process %d of the group is on another host%s: the processes of one worker share memory. Give star.attach a group for each host, which is a worker" % (rank, where),
        _link.EXIT_USAGE,
    )
