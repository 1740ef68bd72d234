"""Trainings that were written for torch.distributed, over the backend star: each ends with what it ends with over Gloo."""

import ast
import json
import os
import pathlib
import subprocess
from typing import Any, Dict, List

import pytest
from conftest import PATIENCE, ROOT, python

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if not hasattr(torch._C._distributed_c10d, "Backend") or not hasattr(torch.distributed, "device_mesh"):
    pytest.skip("PyTorch %s has no backends in Python: 2.5 has" % torch.__version__, allow_module_level=True)

SCRIPTS = pathlib.Path(__file__).with_name("backend_scripts.py")


def names() -> List[str]:
    """The functions of backend_scripts.py that are trainings."""
    functions = [f for f in ast.parse(SCRIPTS.read_text()).body if isinstance(f, ast.FunctionDef)]
    return [f.name for f in functions if any(isinstance(d, ast.Name) and d.id == "script" for d in f.decorator_list)]


@pytest.fixture(scope="module")
def results(star: str) -> Dict[str, Any]:
    env = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", STAR_AGENT=star, PYTHONFAULTHANDLER="1")
    if not os.environ.get("STAR_TEST_INSTALLED"):
        env["PYTHONPATH"] = str(ROOT / "python")
    done = subprocess.run([python(), str(SCRIPTS), "gloo,star"], env=env, capture_output=True, timeout=2 * PATIENCE, text=True)
    assert done.returncode == 0, done.stderr
    said: Dict[str, Any] = {r["name"]: r["ranks"] for r in map(json.loads, (line for line in done.stdout.splitlines() if line.startswith("{")))}
    said[""] = done.stderr[-20_000:]  # where a rank was that a signal has ended
    return said


@pytest.mark.parametrize("name", names())
def test_like_gloo(results: Dict[str, Any], name: str) -> None:
    gloo, star = results[name]["gloo"], results[name]["star"]
    for rank, (want, got) in enumerate(zip(gloo, star)):
        assert not isinstance(want, str), "rank %d over Gloo: %s" % (rank, want)
        assert not isinstance(got, str), "rank %d over star: %s\n%s" % (rank, got, results[""])
        assert got == pytest.approx(want, rel=1e-6), "rank %d" % rank
