"""Whole jobs with real processes: star ps, star worker and Python."""

import ast
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional

import pytest
import zygote

ROOT = pathlib.Path(__file__).resolve().parents[2]
if not os.environ.get("STAR_TEST_INSTALLED"):
    sys.path.insert(0, str(ROOT / "python"))

# A job that takes longer hangs.
PATIENCE = float(os.environ.get("STAR_TEST_PATIENCE", "240"))


@pytest.fixture(autouse=True)
def ends() -> Any:
    """Fails a test that waits where nothing else ends the wait."""

    def fail(*_: Any) -> None:
        pytest.fail("not done after %.0f s" % (3 * PATIENCE))

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, 3 * PATIENCE)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def star(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program star: STAR_BINARY, the one of the installed wheel, or built now."""
    given = os.environ.get("STAR_BINARY")
    if given:
        return given
    if os.environ.get("STAR_TEST_INSTALLED"):
        from star_train import _link

        assert ROOT not in pathlib.Path(_link.__file__).parents, "%s is tested, not the wheel" % _link.__file__
        return _link.PROGRAM
    out = str(tmp_path_factory.mktemp("bin") / "star")
    subprocess.run(["go", "build", "-o", out, "./cmd/star"], cwd=ROOT, check=True)
    return out


def as_installed(folder: pathlib.Path) -> str:
    """A PYTHONPATH with which PyTorch finds the backend star by itself, as it does when the wheel is installed."""
    if os.environ.get("STAR_TEST_INSTALLED"):
        return ""
    sys.path.insert(0, str(ROOT / "python" / "tools"))
    import star_wheel

    info = folder / "star_train-0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: star-train\nVersion: 0\n")
    (info / "entry_points.txt").write_text(star_wheel.ENTRY_POINTS)
    return os.pathsep.join([str(folder), str(ROOT / "python")])


_zygote: List[zygote.Zygote] = []


def python() -> str:
    """A program that runs scripts as Python does, but has PyTorch already: what tests start that are not about starting Python."""
    if not _zygote:
        env = {k: v for k, v in os.environ.items() if not k.startswith("STAR_")}
        env.update(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
        if not os.environ.get("STAR_TEST_INSTALLED"):
            env["PYTHONPATH"] = str(ROOT / "python")
        _zygote.append(zygote.Zygote(pathlib.Path(tempfile.mkdtemp()), ("torch", "torch._dynamo", "torch.distributed.fsdp"), env))
    return _zygote[0].python


def marked(script: pathlib.Path, decorator: str) -> List[str]:
    """The functions of a script that have the decorator."""
    functions = [f for f in ast.parse(script.read_text()).body if isinstance(f, ast.FunctionDef)]
    return [f.name for f in functions if any(isinstance(d, ast.Name) and d.id == decorator for d in f.decorator_list)]


def said_by(program: str, script: pathlib.Path, star: str, *args: str) -> Dict[str, Any]:
    """The JSON objects that a script over the backend star prints, by name, and "": what it said, such as where a rank was that a signal has ended."""
    env = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", STAR_AGENT=star, PYTHONFAULTHANDLER="1")
    if not os.environ.get("STAR_TEST_INSTALLED"):
        env["PYTHONPATH"] = str(ROOT / "python")
    done = subprocess.run([program, str(script), *args], env=env, capture_output=True, timeout=2 * PATIENCE, text=True)
    assert done.returncode == 0, done.stderr
    said: Dict[str, Any] = {r["name"]: r for r in map(json.loads, (line for line in done.stdout.splitlines() if line.startswith("{")))}
    said[""] = done.stderr[-20_000:]
    return said


def pytest_sessionfinish() -> None:
    for z in _zygote:
        z.close()


class Process:
    def __init__(self, args: List[str], env: Dict[str, str], log: pathlib.Path, cwd: pathlib.Path) -> None:
        self.path = log
        with open(log, "wb") as f:
            self.p = subprocess.Popen(args, env=env, stdout=f, stderr=subprocess.STDOUT, cwd=cwd, start_new_session=True)

    @property
    def log(self) -> str:
        return self.path.read_text(errors="replace")

    def wait(self) -> int:
        return self.p.wait(PATIENCE)

    def kill(self) -> None:
        try:
            os.killpg(self.p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.p.wait(10)

    def until(self, text: str) -> None:
        """Waits until the log has a text."""
        end = time.monotonic() + PATIENCE
        while text not in self.log:
            if self.p.poll() is not None and text not in self.log:
                raise AssertionError("it ended with %d without %r:\n%s" % (self.p.returncode, text, self.log))
            assert time.monotonic() < end, "no %r in\n%s" % (text, self.log)
            time.sleep(0.02)


class Job:
    """One job: star ps, and workers that run a script."""

    def __init__(self, star: str, folder: pathlib.Path) -> None:
        self.star, self.folder = star, folder
        self.out = folder / "out"
        self.all: List[Process] = []
        self.addr = ""
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("STAR_")}
        self.env.update(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
        if not os.environ.get("STAR_TEST_INSTALLED"):
            self.env["PYTHONPATH"] = str(ROOT / "python")

    def script(self, text: str, name: str = "train.py") -> pathlib.Path:
        p = self.folder / name
        p.write_text(text)
        return p

    def start(self, *flags: str, workers: int = 2) -> Process:
        ps = self._run(
            [self.star, "ps", "--listen", "127.0.0.1:0", "--http", "off", "--workers", str(workers), "--join-timeout", "4m", "--out", str(self.out), *flags], "ps.log", {}
        )
        ps.until('"msg":"listening"')
        for line in ps.log.splitlines():
            if '"msg":"listening"' in line:
                self.addr = json.loads(line)["addr"]
        return ps

    def worker(
        self, script: pathlib.Path, *args: str, flags: Any = (), env: Optional[Dict[str, str]] = None, attach: bool = False, starts: bool = False, processes: int = 1
    ) -> Process:
        """A worker: star worker -- python script, or, with attach, a Python that starts its agent, or several processes of it. starts: the Python is a new one."""
        command = [sys.executable if starts else python(), str(script), *args]
        more = dict(env or {})
        name = "worker-%d.log" % len(self.all)
        if processes > 1:
            command = [self.star, "processes", str(processes), "--", *command]
        elif not attach:
            return self._run([self.star, "worker", "--coordinator", self.addr, "--http", "off", *flags, "--", *command], name, more)
        more.update(STAR_AGENT=self.star, STAR_COORDINATOR=self.addr, STAR_HTTP="off")
        for f, v in zip(flags[::2], flags[1::2]):
            more["STAR_" + f.lstrip("-").upper().replace("-", "_")] = v
        return self._run(command, name, more)

    def _run(self, args: List[str], log: str, more: Dict[str, str]) -> Process:
        p = Process(args, {**self.env, **more}, self.folder / log, self.folder)
        self.all.append(p)
        return p

    def finish(self, *processes: Process) -> None:
        """All of them end well."""
        for p in processes or tuple(self.all):
            assert p.wait() == 0, "%s\n%s" % (p.log, "\n".join(q.log for q in self.all if q is not p))

    def lines(self, kind: str) -> List[Dict[str, Any]]:
        """Lines of one type of the run log."""
        return [d for d in map(json.loads, (self.out / "run.jsonl").read_text().splitlines()) if d["type"] == kind]

    def checkpoint(self) -> pathlib.Path:
        return sorted((self.out / "checkpoints").iterdir())[-1]

    def parameters(self) -> Dict[str, Any]:
        """The tensors of the last checkpoint, by PyTorch's names."""
        out = self.folder / "model.safetensors"
        subprocess.run([self.star, "checkpoint", "convert", str(self.checkpoint()), str(out)], check=True, capture_output=True)
        return load(out)

    def close(self) -> None:
        for p in self.all:
            if p.p.poll() is None:
                p.kill()


def load(path: pathlib.Path) -> Dict[str, Any]:
    """A safetensors file, in ten lines."""
    import torch

    types = {"F32": torch.float32, "F64": torch.float64, "F16": torch.float16, "BF16": torch.bfloat16, "C64": torch.complex64, "I64": torch.int64, "I32": torch.int32}
    types.update(BOOL=torch.bool, U8=torch.uint8)
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    out = {}
    for name, t in json.loads(data[8 : 8 + n]).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            kind = types[t["dtype"]]
            flat = torch.frombuffer(bytearray(data[8 + n + a : 8 + n + b]), dtype=kind) if b > a else torch.empty(0, dtype=kind)
            out[name] = flat.view(t["shape"])
    return out


@pytest.fixture
def job(star: str, tmp_path: pathlib.Path) -> Any:
    j = Job(star, tmp_path)
    yield j
    j.close()
