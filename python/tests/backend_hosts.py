"""Hosts for tests of the backend star: network namespaces with a cable between them, which a process can enter."""

import ctypes
import os
import subprocess
from typing import Dict

_CLONE_NEWNET = 0x40000000


class Hosts:
    """Two hosts, a and b, until close. An OSError says why this machine cannot have them."""

    def __init__(self) -> None:
        tag = "star%d" % (os.getpid() % 100000)
        self._names = {h: tag + h for h in "ab"}
        self.address = {"a": "10.81.0.1", "b": "10.81.0.2"}
        if os.getuid() != 0:
            raise OSError("network namespaces need root")
        a, b = self._names["a"], self._names["b"]
        try:
            self._ip("netns add " + a)
            self._ip("netns add " + b)
            self._ip("link add cable netns %s type veth peer name cable netns %s" % (a, b))
            for host, name in self._names.items():
                self._ip("-n %s addr add %s/24 dev cable" % (name, self.address[host]))
                self._ip("-n %s link set cable up" % name)
                self._ip("-n %s link set lo up" % name)
        except OSError:
            self.close()
            raise

    def _ip(self, line: str) -> None:
        try:
            subprocess.run(["ip", *line.split()], check=True, capture_output=True, text=True)
        except FileNotFoundError:
            raise OSError("there is no ip (Debian: iproute2)") from None
        except subprocess.CalledProcessError as e:
            raise OSError("ip %s: %s" % (line, e.stderr.strip())) from None

    def enter(self, host: str) -> None:
        """Moves the calling thread to a host, with those that it starts later."""
        with open("/run/netns/" + self._names[host]) as f:
            if ctypes.CDLL(None, use_errno=True).setns(f.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns to host " + host)

    def env(self) -> Dict[str, str]:
        """What a rank needs: the store's host is a."""
        return {"GLOO_SOCKET_IFNAME": "cable", "MASTER_ADDR": self.address["a"], "MASTER_PORT": "29500"}

    def cable(self, state: str) -> None:
        """up or down."""
        self._ip("-n %s link set cable %s" % (self._names["b"], state))

    def close(self) -> None:
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
