"""The wheel: what is in it, and that it is the same twice."""

import base64
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go, which builds the program star")


def build(out: pathlib.Path, machine: str = "x86_64") -> pathlib.Path:
    env = {k: v for k, v in os.environ.items() if k != "SOURCE_DATE_EPOCH"}
    subprocess.run([sys.executable, str(ROOT / "python" / "tools" / "star_wheel.py"), "--machine", machine, "--out", str(out)], check=True, env=env)
    (path,) = out.iterdir()
    return path


def test_same_twice(tmp_path: pathlib.Path) -> None:
    a, b = build(tmp_path / "a"), build(tmp_path / "b")
    assert a.name == b.name == "star_train-0.1.0-py3-none-manylinux_2_17_x86_64.whl"
    assert hashlib.sha256(a.read_bytes()).hexdigest() == hashlib.sha256(b.read_bytes()).hexdigest()
    assert a.stat().st_size <= 21_000_000
    with zipfile.ZipFile(a) as z:
        names = z.namelist()
        assert z.getinfo("star_train/bin/star").external_attr >> 16 & 0o111, "pip keeps the mode of the program: it must be executable"
        # RECORD names all files, with what pip checks of them.
        rows = dict(line.split(",", 1) for line in z.read("star_train-0.1.0.dist-info/RECORD").decode().splitlines())
        assert sorted(rows) == sorted(names)
        for name in names:
            if not name.endswith("RECORD"):
                data = z.read(name)
                assert rows[name] == "sha256=%s,%d" % (base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), len(data))
        sources = {p.relative_to(ROOT / "python").as_posix() for p in (ROOT / "python" / "star_train").rglob("*.py")}
        assert sources <= set(names) and "star_train/py.typed" in names
        assert "Requires-Dist" not in z.read("star_train-0.1.0.dist-info/METADATA").decode()


@pytest.mark.skipif(not os.environ.get("STAR_TEST_INSTALLED"), reason="only where a wheel is installed: make python")
def test_installed_command() -> None:
    out = subprocess.run([os.path.join(os.path.dirname(sys.executable), "star"), "version"], check=True, capture_output=True, text=True).stdout
    assert out.startswith("star 0.1.0")
