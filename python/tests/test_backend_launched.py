"""Trainings that torchrun, accelerate or Lightning start: over the backend star they have the losses that they have over Gloo."""

import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
from typing import Any, Dict, Iterator, List

import pytest
from conftest import PATIENCE, as_installed
from zygote import Zygote

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
    pytest.skip("PyTorch %s: these trainings need the backend of 2.10" % torch.__version__, allow_module_level=True)

SCRIPT = str(pathlib.Path(__file__).with_name("backend_launched.py"))


def port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


class Launcher:
    """An environment for launchers, and the program `python`, which has the libraries loaded."""

    def __init__(self, star: str, folder: pathlib.Path) -> None:
        self.env: Dict[str, str] = {k: v for k, v in os.environ.items() if not k.startswith("STAR_")}
        self.env.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", STAR_AGENT=star, STAR_WATCH="false", HF_HUB_OFFLINE="1", PYTHONPATH=as_installed(folder))
        libraries = [
            m for m in ("lightning", "accelerate.commands.launch", "transformers.trainer", "transformers.models.bert.modeling_bert") if importlib.util.find_spec(m.split(".")[0])
        ]
        self.zygote = Zygote(folder, ["torch", "torch._dynamo", *libraries], self.env)


@pytest.fixture(scope="module")
def launcher(star: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    made = Launcher(star, tmp_path_factory.mktemp("launched"))
    yield made
    made.zygote.close()


def launched(kind: str, backend: str, launcher: Launcher, python: str = "") -> "List[float]":
    """The losses of a training with two processes."""
    python, env = python or launcher.zygote.python, dict(launcher.env, BACKEND=backend)
    script = [SCRIPT, kind]
    run = [python, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", port(), *script]
    if kind == "accelerated":  # --cpu would start one process, and without ACCELERATE_USE_CPU each would train alone
        env["ACCELERATE_USE_CPU"] = "true"
        once = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        run = [python, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", port(), *once, *script]
    if kind == "lightning":  # it starts the second process itself
        run = [python, *script]
        env["MASTER_PORT"] = port()
    done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, "%s over %s:\n%s\n%s" % (kind, backend, done.stdout[-4000:], done.stderr[-4000:])
    said: Any = next(line for line in done.stdout.splitlines() if line.startswith("losses "))
    got: List[float] = json.loads(said.split(" ", 1)[1])
    return got


@pytest.mark.parametrize("kind, needed", [("plain", "torch"), ("accelerated", "accelerate"), ("lightning", "lightning"), ("trainer", "transformers")])
def test_losses_like_gloo(kind: str, needed: str, launcher: Launcher) -> None:
    """All is forked from a Python that has the libraries, but the plain one over star: that is torchrun as users start it."""
    pytest.importorskip(needed, reason="%s is not installed" % needed)
    want = launched(kind, "gloo", launcher)
    assert len(want) == 6 and want[0] != want[-1]
    assert launched(kind, "star", launcher, sys.executable if kind == "plain" else "") == pytest.approx(want, rel=1e-5)
