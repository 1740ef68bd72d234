"""Trainings that torchrun or Lightning start: over the backend star they have the losses that they have over Gloo."""

import json
import os
import pathlib
import socket
import subprocess
import sys
from typing import Any, Dict, List

import pytest
from conftest import PATIENCE, as_installed

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
    pytest.skip("PyTorch %s: these trainings need the backend of 2.10" % torch.__version__, allow_module_level=True)

SCRIPT = str(pathlib.Path(__file__).with_name("backend_launched.py"))


def port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def launched(kind: str, backend: str, star: str, path: str) -> "List[float]":
    """The losses of a training with two processes."""
    env: Dict[str, str] = {k: v for k, v in os.environ.items() if not k.startswith("STAR_")}
    env.update(BACKEND=backend, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", STAR_AGENT=star, STAR_WATCH="false", HF_HUB_OFFLINE="1", PYTHONPATH=path)
    script = [SCRIPT, kind]
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", port(), *script]
    if kind == "lightning":  # it starts the second process itself
        run = [sys.executable, *script]
        env["MASTER_PORT"] = port()
    done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, "%s over %s:\n%s\n%s" % (kind, backend, done.stdout[-4000:], done.stderr[-4000:])
    said: Any = next(line for line in done.stdout.splitlines() if line.startswith("losses "))
    got: List[float] = json.loads(said.split(" ", 1)[1])
    return got


@pytest.mark.parametrize("kind, needed", [("plain", "torch"), ("lightning", "lightning"), ("trainer", "transformers")])
def test_losses_like_gloo(kind: str, needed: str, star: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip(needed, reason="%s is not installed" % needed)
    want = launched(kind, "gloo", star, as_installed(tmp_path))
    assert len(want) == 6 and want[0] != want[-1]
    assert launched(kind, "star", star, as_installed(tmp_path)) == pytest.approx(want, rel=1e-5)
