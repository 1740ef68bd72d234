"""Scripts that end in many ways over the backend star: no rank ends by a signal, as by an abort of a thread that outlives the interpreter."""

import os
import pathlib
import sys
from typing import Any, Dict

import pytest
from conftest import marked, said_by

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if not hasattr(torch.distributed, "shrink_group"):
    pytest.skip("PyTorch %s: a backend is a whole object since 2.10" % torch.__version__, allow_module_level=True)

ENDS = pathlib.Path(__file__).with_name("backend_ends.py")
ROUNDS = os.environ.get("STAR_TEST_ROUNDS", "1")


@pytest.fixture(scope="module")
def codes(star: str) -> Dict[str, Any]:
    return said_by(sys.executable, ENDS, star, "star", ROUNDS)


@pytest.mark.parametrize("name", marked(ENDS, "end"))
def test_no_signal(codes: Dict[str, Any], name: str) -> None:
    want = 3 if name == "exception" else 0
    assert all(code == want for both in codes[name]["codes"] for code in both), "%s\n%s" % (codes[name], codes[""])
