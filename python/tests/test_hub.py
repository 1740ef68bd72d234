"""The processes of a worker among themselves, without PyTorch and without a job."""

import json
import os
import socket
import struct
import subprocess
import sys
import textwrap
import threading
from typing import Any, Dict, List

import pytest
from conftest import ROOT

from star_train import _hub, _link
from star_train._link import StarError


class Store:
    """What Meeting needs of a store of torch.distributed."""

    def __init__(self) -> None:
        self.values: Dict[str, Any] = {}
        self.lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> Any:
        return self.values[key]

    def add(self, key: str, by: int) -> int:
        with self.lock:
            self.values[key] = self.values.get(key, 0) + by
            return int(self.values[key])


def test_absent_processes_are_named() -> None:
    store = Store()
    with pytest.raises(StarError, match=r"process 1 \(rank 5\), process 2 \(rank 6\) of the group of star.attach did not call it within 0 s"):
        _hub.Meeting(store, "a", 0, 3, 0.3).lead([4, 5, 6])
    with pytest.raises(StarError, match=r"process 0 \(rank 4\) of the group of star.attach did not call it"):
        _hub.Meeting(store, "b", 2, 3, 0.3).follow([4, 5, 6])


def test_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    errors: List[BaseException] = []

    def lead() -> None:
        try:
            _hub.Meeting(store, "a", 0, 2, 20).lead([0, 1])
        except StarError as e:
            errors.append(e)

    t = threading.Thread(target=lead)
    t.start()
    while "star_train/a/here/0" not in store.values:
        pass
    monkeypatch.setattr(_hub, "_here", lambda: "elsewhere")
    with pytest.raises(StarError, match="process 1 of the group is on another host"):
        _hub.Meeting(store, "a", 1, 2, 20).follow([0, 1])
    t.join()
    assert "process 1 of the group is on another host" in str(errors[0])


# Two processes of a worker; standard input says what process 1 does. The agent is this test.
LEADER = """
    import os, socket, sys, threading
    sys.path.insert(0, sys.argv[1])
    from star_train import _hub, _link
    class Store(dict):
        def set(self, k, v): self[k] = v.encode()
        def get(self, k): return self[k]
        def add(self, k, by): self[k] = self.get_number(k) + by; return self[k]
        def get_number(self, k): return dict.get(self, k, 0)
    what = sys.argv[2]
    store = Store()
    about = {"layout": [{"name": "w", "shape": [2]}], "samples": 4}
    # Process 1 is forked before there are threads; it knows the address by a pipe.
    r, w = os.pipe()
    if os.fork() == 0:
        address = b""
        while not address.endswith(b"]"):
            address += os.read(r, 1000)
        store["star_train/x/leader"], store["star_train/x/here/0"] = address, 1
        sock, pid = _hub.Meeting(store, "x", 1, 2, 20).follow([0, 1])
        link = _hub.Spoke(sock)
        link.follow(pid)
        if what == "differs":
            about = dict(about, samples=5)
        link.begin(about)
        link.ready()
        while True:
            f = link.receive()
            if f.kind == _link.STOP:
                break
            if what == "dies":
                os.kill(os.getpid(), 9)
            if what == "leaves":
                link.leave()
                break
            if what == "raises":
                raise ValueError("no such layer")
            link.done(f.a, 3.0, 10, 2000)
        os._exit(0)
    class Told(Store):
        def set(self, k, v):
            Store.set(self, k, v)
            os.write(w, v.encode())
    peers = _hub.Meeting(Told(), "x", 0, 2, 20).lead([0, 1])
    link = _link.connect(_hub.Hub)
    link.lead(peers)
    link.begin(about)
    link.ready()
    while True:
        f = link.receive()
        if f.kind == _link.STOP:
            break
        if what in ("dies", "raises"):
            threading.Event().wait(30)  # as in a collective of both
        link.done(f.a, 1.0, 10, 1000)
"""


class Agent:
    def __init__(self, what: str) -> None:
        ours, theirs = socket.socketpair()
        env = dict(os.environ, STAR_LINK_FD=str(theirs.fileno()))
        self.p = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(LEADER), str(ROOT / "python"), what], pass_fds=[theirs.fileno()], env=env, stderr=subprocess.PIPE, text=True
        )
        theirs.close()
        self.s = ours
        self.s.settimeout(60)

    def begin(self) -> None:
        kind, about = self.read()[0], self.body
        assert kind == _link.ABOUT
        assert json.loads(about)["processes"] == 2
        fd = os.memfd_create("memory")
        size, page = 4 * 4096, 4096
        os.truncate(fd, size)
        os.write(fd, struct.pack("<8s8Q", b"STARLINK", 1, size, page, 2, 2 * page, 3 * page, 0, 3))
        socket.send_fds(self.s, [_link.header(_link.MEMORY, 0, size, 0, 0)], [fd])
        os.close(fd)
        assert self.read()[0] == _link.READY

    def read(self) -> Any:
        head = self.s.recv(32, socket.MSG_WAITALL)
        assert len(head) == 32, self.p.communicate()[1]
        kind, size, a, b, c = _link.parse(head)
        self.body = self.s.recv(size, socket.MSG_WAITALL) if size else b""
        return kind, a, b, c

    def send(self, kind: int, a: int = 0, b: int = 0, c: int = 0, body: bytes = b"") -> None:
        self.s.sendall(_link.header(kind, len(body), a, b, c) + body)

    def end(self) -> str:
        out: str = self.p.communicate(timeout=60)[1]
        return out


def test_a_step() -> None:
    a = Agent("works")
    a.begin()
    a.send(_link.COMPUTE, 7, 2, 0, struct.pack("<2q", 0, 1))
    kind, step, loss, _ = a.read()
    assert (kind, step, _link.float_of(loss)) == (_link.DONE, 7, 2.0)  # the mean of 1 and 3
    usage = struct.unpack("<8q", a.body)
    assert usage[0] == 10 and usage[1] == 2000 and usage[6:] == (1010, 2010)  # those of the slower process, and both times
    a.send(_link.STOP)
    a.end()
    assert a.p.returncode == 0


@pytest.mark.parametrize(
    "what, code, text",
    [
        ("dies", _link.EXIT_LOST, "process 1 of the 2 of this worker (pid "),
        ("raises", 1, "ValueError: no such layer"),
        ("leaves", 1, "process 1 of this worker ended its loop"),
    ],
)
def test_a_process_that_is_gone(what: str, code: int, text: str) -> None:
    a = Agent(what)
    a.begin()
    a.send(_link.COMPUTE, 1, 2, 0, struct.pack("<2q", 0, 1))
    kind, exit_code, _, _ = a.read()
    assert kind == _link.ERROR and exit_code == code and text in a.body.decode(), (kind, exit_code, a.body)
    a.s.close()
    a.end()
    assert a.p.returncode == code


def test_processes_that_differ() -> None:
    a = Agent("differs")
    kind, code, _, _ = a.read()
    assert kind == _link.ERROR and code == _link.EXIT_DISAGREE
    assert a.body.decode() == "the processes of this worker differ in samples: process 0 has 4, process 1 has 5"
    a.s.close()
    assert a.end() and a.p.returncode == _link.EXIT_DISAGREE
