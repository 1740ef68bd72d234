"""Trainings that were written for torch.distributed, over the backend star: each ends with what it ends with over Gloo."""

import pathlib
from typing import Any, Dict

import pytest
from conftest import marked, python, said_by

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if not hasattr(torch._C._distributed_c10d, "Backend") or not hasattr(torch.distributed, "device_mesh"):
    pytest.skip("PyTorch %s has no backends in Python: 2.5 has" % torch.__version__, allow_module_level=True)

SCRIPTS = pathlib.Path(__file__).with_name("backend_scripts.py")


@pytest.fixture(scope="module")
def results(star: str) -> Dict[str, Any]:
    return said_by(python(), SCRIPTS, star, "gloo,star")


@pytest.mark.parametrize("name", marked(SCRIPTS, "script"))
def test_like_gloo(results: Dict[str, Any], name: str) -> None:
    gloo, star = results[name]["ranks"]["gloo"], results[name]["ranks"]["star"]
    for rank, (want, got) in enumerate(zip(gloo, star)):
        assert not isinstance(want, str), "rank %d over Gloo: %s" % (rank, want)
        assert not isinstance(got, str), "rank %d over star: %s\n%s" % (rank, got, results[""])
        assert got == pytest.approx(want, rel=1e-6), "rank %d" % rank
