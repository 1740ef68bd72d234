"""What the hook of star watch says of connections: data that wait for a link are not data that the receiver does not take."""

import importlib.util
import socket
import struct
import sys
import threading
import time
from typing import Any, List

import pytest
from conftest import PATIENCE, ROOT

SO_MAX_PACING_RATE = 47


def links() -> Any:
    spec = importlib.util.spec_from_file_location("star_calls_of_links", ROOT / "observe" / "watch" / "hook" / "star_calls.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Links()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="TCP_INFO is Linux's")
@pytest.mark.parametrize("reads", [True, False])
def test_waits_for_a_link(reads: bool) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    a = socket.create_connection(listener.getsockname())
    b = listener.accept()[0]
    if reads:  # the link is slow: 1 MB/s, by the kernel's pacing
        a.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("I", 1000000))
    else:  # the receiver is
        b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    over = threading.Event()

    def receive() -> None:
        b.settimeout(0.1)
        while reads and not over.is_set():
            try:
                b.recv(1 << 16)
            except OSError:
                pass

    def send() -> None:
        a.settimeout(0.1)
        while not over.is_set():
            try:
                a.send(bytes(1 << 16))
            except OSError:
                pass

    threads = [threading.Thread(target=f, daemon=True) for f in (receive, send)]
    for t in threads:
        t.start()
    looks = links()
    said: List[bool] = []
    end = time.monotonic() + PATIENCE
    try:
        while len(said) < 20 and time.monotonic() < end:
            time.sleep(0.05)
            said.append(looks.wait())
            if not reads and said[-1] and len(said) < 10:  # until the receiver's buffer is full
                said.clear()
    finally:
        over.set()
        for t in threads:
            t.join()
        a.close()
        b.close()
        listener.close()
    assert 2 * sum(said) > len(said) if reads else not any(said), said
