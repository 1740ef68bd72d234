"""The Python end of the link beside an agent that says anything: what comes is a StarError, and nothing hangs."""

import array
import contextlib
import mmap
import os
import random
import signal
import socket
import struct
import threading
import types
from typing import Any, Iterator, List, Optional, Tuple

import pytest

_link = pytest.importorskip("star_train._link")

SHAPES = [[3, 5], [7]]
ABOUT = {"layout": [{"name": "p%d" % i, "shape": s} for i, s in enumerate(SHAPES)], "buffers": [{"name": "b", "shape": [4]}]}
SIZE = 4 * 4096


def header(**changes: int) -> List[int]:
    fields = dict(version=1, size=SIZE, params=4096, nparams=22, grad=8192, buffers=12288, nbuffers=4)
    fields.update(changes)
    return list(fields.values())


@contextlib.contextmanager
def agent(says: bytes, fields: Optional[List[int]], magic: bytes = b"STARLINK", size: int = SIZE) -> Iterator[Any]:
    """A link with an agent that gives memory with such a header (None: none), sends these bytes, and is gone."""
    ours, theirs = socket.socketpair()
    ours.settimeout(20)

    def speak() -> None:
        with theirs, contextlib.suppress(OSError):
            if fields is not None:
                fd = os.memfd_create("test")
                try:
                    os.ftruncate(fd, SIZE)
                    os.pwrite(fd, struct.pack("<8s%dQ" % len(fields), magic, *fields), 0)
                    socket.send_fds(theirs, [struct.pack("<IIQQQ", _link.MEMORY, 0, size, 0, 0)], [fd])
                finally:
                    os.close(fd)
            theirs.sendall(says)
            theirs.shutdown(socket.SHUT_WR)
            while theirs.recv(1 << 16):  # until the other end hangs up
                pass

    t = threading.Thread(target=speak, daemon=True)
    t.start()
    link = _link.Link(ours)
    try:
        yield link
    finally:
        link.forked()  # no good-bye at the end of this process
        t.join(20)
        assert not t.is_alive()


@pytest.mark.parametrize(
    "fields, magic, size, says",
    [
        (header(), b"STARLINQ", SIZE, "begins with b'STARLINQ'"),
        (header(version=2), b"STARLINK", SIZE, "version 2"),
        (header(size=1 << 40), b"STARLINK", SIZE, "begins with"),
        (header(nparams=23), b"STARLINK", SIZE, "23 parameters and 4 of buffers"),
        (header(nbuffers=0), b"STARLINK", SIZE, "this process has 22 and 4"),
        (header(grad=SIZE - 8), b"STARLINK", SIZE, "the memory of the agent is for"),
        (header(params=1 << 63), b"STARLINK", SIZE, "the memory of the agent is for"),
        (header(), b"STARLINK", 2 * SIZE, "not that of a link"),
        (header(), b"STARLINK", 1 << 63, "not that of a link"),
    ],
)
def test_memory(fields: List[int], magic: bytes, size: int, says: str) -> None:
    with agent(b"", fields, magic, size) as link, pytest.raises(_link.StarError, match=says) as e:
        link.begin(ABOUT)
    assert e.value.code == _link.EXIT_DISAGREE


def test_agent_says_what_it_is() -> None:
    """Behind the numbers an agent says its version and commit; an earlier one has zeros there."""
    with mmap.mmap(-1, mmap.PAGESIZE) as m:
        assert _link._program_of(m) == ""
        m[72:92] = b"star 0.1.0 194c95e6\0"
        assert _link._program_of(m) == " (star 0.1.0 194c95e6)"


def test_agent_without_types() -> None:
    """An agent of an earlier version would take integers for floating numbers: it is not given them."""
    about = dict(ABOUT, buffers=[{"name": "b", "shape": [4], "dtype": "I32"}])
    with agent(b"", header()) as link, pytest.raises(_link.StarError, match="b is not float32, which this star cannot save") as e:
        link.begin(about)
    assert e.value.code == 78
    with agent(b"", [*header(), 1]) as link:
        assert link.begin(about).nbuffers == 4
    with agent(b"", header()) as link:
        assert link.begin(ABOUT).nbuffers == 4


def spoken(rng: random.Random) -> Tuple[bytes, Optional[List[int]]]:
    """What an agent may say: bytes, or frames that are nearly right."""
    fields = header() if rng.random() < 0.9 else None
    if rng.random() < 0.2:
        return rng.randbytes(rng.choice([0, 1, 31, 32, 33, 500])), fields
    out = b""
    for _ in range(rng.randrange(6)):
        count = rng.choice([0, 1, 3])
        body = array.array("q", [rng.randrange(9) for _ in range(count)]).tobytes()
        if rng.random() < 0.3:
            body = rng.randbytes(rng.randrange(40))
        number = [0, 1, count, len(body), 1 << 63, (1 << 64) - 1]
        size = len(body) if rng.random() < 0.9 else rng.choice([0, len(body) + 1, (1 << 24) + 1, (1 << 32) - 1])
        out += struct.pack("<IIQQQ", rng.choice([*range(19), 1 << 31]), size, rng.choice(number), count, rng.choice(number)) + body
    return out, fields


def test_anything() -> None:
    heard, before = set(), len(os.listdir("/proc/self/fd"))
    for seed in range(600):
        says, fields = spoken(random.Random(seed))
        with agent(says, fields) as link:
            try:
                link.begin(ABOUT)
                link.ready()
                while True:
                    f = link.receive()
                    heard.add(f.kind)
                    if f.kind in (_link.COMPUTE, _link.EVALUATE, _link.LEASE):
                        _link.indices(f)
                    elif f.kind == _link.STATE:
                        link.recalled(f)
                    elif f.kind == _link.STOP:
                        break
            except _link.StarError:
                pass
    assert heard == set(range(_link.ABOUT, _link.HALT + 1))
    assert len(os.listdir("/proc/self/fd")) < before + 100


def test_states() -> None:
    """What another worker's optimizer is said to remember."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")
    from star_train import _state

    p = torch.nn.Parameter(torch.ones(3))
    opt = torch.optim.Adam([p])
    p.grad = torch.ones(3)
    opt.step()
    good = _state.pack(opt.state_dict())
    assert torch.equal(_state.unpack(good, opt.state_dict())["state"][0]["exp_avg"], opt.state[p]["exp_avg"])
    refused = 0
    for seed in range(1000):
        rng = random.Random(seed)
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        if rng.random() < 0.2:
            del bad[rng.randrange(len(bad)) :]
        try:
            _state.unpack(bytes(bad), opt.state_dict())
        except _link.StarError:
            refused += 1
    assert refused > 300


def test_signals_within_a_second_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes again when the agent has gone already does not end the process before its exit code is known; a later one does."""
    told: List[int] = []
    killed: List[int] = []
    link = types.SimpleNamespace(closed=False, _pid=os.getpid(), interrupt=told.append)
    monkeypatch.setattr(_link, "_link", link)
    monkeypatch.setattr(_link, "_signals", {})
    monkeypatch.setattr(_link.os, "kill", lambda pid, number: killed.append(number))
    monkeypatch.setattr(_link.signal, "signal", lambda number, handler: None)
    term = signal.SIGTERM
    _link._on_signal(term, None)
    link.closed = True
    _link._on_signal(term, None)
    assert told == [term] and not killed
    _link._signals[term] -= _link._SAME_SIGNAL
    _link._on_signal(term, None)
    assert told == [term] and killed == [term]
    # without an agent the first one ends the process
    killed.clear()
    _link._signals.clear()
    _link._on_signal(term, None)
    assert killed == [term]
