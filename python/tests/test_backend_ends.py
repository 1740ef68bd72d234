"""Scripts that end in many ways over the backend star: no rank ends by a signal, as by an abort of a thread that outlives the interpreter."""

import ast
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Dict, List

import pytest
from conftest import PATIENCE, ROOT

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if not hasattr(torch.distributed, "shrink_group"):
    pytest.skip("PyTorch %s: a backend is a whole object since 2.10" % torch.__version__, allow_module_level=True)

ENDS = pathlib.Path(__file__).with_name("backend_ends.py")
ROUNDS = os.environ.get("STAR_TEST_ROUNDS", "1")


def names() -> List[str]:
    functions = [f for f in ast.parse(ENDS.read_text()).body if isinstance(f, ast.FunctionDef)]
    return [f.name for f in functions if any(isinstance(d, ast.Name) and d.id == "end" for d in f.decorator_list)]


@pytest.fixture(scope="module")
def codes(star: str) -> Dict[str, Any]:
    env = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", STAR_AGENT=star, PYTHONFAULTHANDLER="1")
    if not os.environ.get("STAR_TEST_INSTALLED"):
        env["PYTHONPATH"] = str(ROOT / "python")
    done = subprocess.run([sys.executable, str(ENDS), "star", ROUNDS], env=env, capture_output=True, timeout=2 * PATIENCE, text=True)
    said: Dict[str, Any] = {r["name"]: r["codes"] for r in map(json.loads, (line for line in done.stdout.splitlines() if line.startswith("{")))}
    said[""] = done.stderr[-20_000:]
    return said


@pytest.mark.parametrize("name", names())
def test_no_signal(codes: Dict[str, Any], name: str) -> None:
    want = 3 if name == "exception" else 0
    assert all(code == want for both in codes[name] for code in both), "%s\n%s" % (codes[name], codes[""])
