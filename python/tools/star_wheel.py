"""Builds the wheel of star-train: the Python package, and the program star for one machine.

    python3 python/tools/star_wheel.py [--machine x86_64|aarch64]… [--out dist]

It needs Go, and nothing beside Python's standard library. pyproject.toml names it as the build backend, so that ``pip install ./python`` works, too. The same
commit, Go and zlib make the same bytes: files are in order, and have the date of SOURCE_DATE_EPOCH, or 1980.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from typing import Any, Dict, List, Optional, Tuple

PYTHON = pathlib.Path(__file__).resolve().parents[1]
ROOT = PYTHON.parent

# The machines that there are wheels for, and what Go calls them.
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
GO = {go: machine for machine, go in MACHINES.items()}

# The program is static, so the C library does not matter: 2.17 is the oldest one that Pythons of today are built for.
PLATFORM = "manylinux_2_17_%s"

# torch.backends: PyTorch 2.5 and later call it when torch is imported, so that init_process_group("star") needs no import in the script.
# torch.distributed.backends: newer ones call it when the name is used, also where TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns the other off.
ENTRY_POINTS = """[console_scripts]
star = star_train._program:main

[torch.backends]
star = star_train._autoload:register

[torch.distributed.backends]
star = star_train._autoload:register
"""

# Of PyPI's limit of 100 MB a file; what people wait for when they install.
MAX_BYTES = 21_000_000


def version() -> str:
    found = re.search(r'^__version__ = "([^"]+)"$', (PYTHON / "star_train" / "__init__.py").read_text(), re.M)
    assert found, "star_train/__init__.py has no line __version__ = …"
    return found.group(1)


def metadata() -> str:
    return (
        "Metadata-Version: 2.1\nName: star-train\nVersion: %s\n"
        "Summary: Train a PyTorch model on many machines that are not perfectly even\n"
        "License: Apache-2.0\nLicense-File: LICENSE\nLicense-File: NOTICE\nRequires-Python: >=3.9\nDescription-Content-Type: text/markdown\n\n%s"
    ) % (version(), (ROOT / "docs" / "python.md").read_text())


def git(*args: str) -> str:
    """What git says of this checkout; empty outside one, or without git."""
    try:
        return subprocess.run(["git", *args], cwd=ROOT, env=dict(os.environ, TZ="UTC"), check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def flags() -> List[str]:
    """For go build: no symbols or paths, and the commit, with "+changes" where the checkout has others. deploy/image has the same."""
    build = "star/internal/build"
    commit = git("describe", "--always", "--dirty=+changes", "--abbrev=40", "--exclude=*")
    committed = git("show", "-s", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ")
    linked = " -X %s.linkedCommit=%s -X %s.linkedTime=%s" % (build, commit, build, committed) if commit else ""
    return ["-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=" + linked]


def program(machine: str, to: pathlib.Path) -> bytes:
    """The program star, static and without symbols."""
    env = dict(os.environ, CGO_ENABLED="0", GOOS="linux", GOARCH=MACHINES[machine])
    try:
        subprocess.run(["go", "build", *flags(), "-o", str(to), "./cmd/star"], cwd=ROOT, env=env, check=True)
    except FileNotFoundError:
        sys.exit("star_wheel: there is no go in PATH, which builds the program star: install Go, or a wheel that is built")
    except subprocess.CalledProcessError as e:
        sys.exit("star_wheel: go build ./cmd/star for %s failed with exit code %d: what it says is above" % (machine, e.returncode))
    return to.read_bytes()


def contents(machine: str) -> Dict[str, Tuple[bytes, int]]:
    """The files of a wheel, and their modes."""
    info = "star_train-%s.dist-info/" % version()
    files = {p.relative_to(PYTHON).as_posix(): (p.read_bytes(), 0o644) for p in (PYTHON / "star_train").rglob("*") if p.name == "py.typed" or p.suffix == ".py"}
    with tempfile.TemporaryDirectory() as d:
        files["star_train/bin/star"] = program(machine, pathlib.Path(d) / "star"), 0o755
    for name in ("LICENSE", "NOTICE", "docs/third-party-licences.txt"):
        files[info + "licenses/" + name.split("/")[-1]] = (ROOT / name).read_bytes(), 0o644
    files[info + "METADATA"] = metadata().encode(), 0o644
    files[info + "WHEEL"] = ("Wheel-Version: 1.0\nGenerator: star_wheel\nRoot-Is-Purelib: false\nTag: py3-none-%s\n" % (PLATFORM % machine)).encode(), 0o644
    files[info + "entry_points.txt"] = ENTRY_POINTS.encode(), 0o644
    record = "".join(
        "%s,sha256=%s,%d\n" % (name, base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), len(data)) for name, (data, _) in sorted(files.items())
    )
    files[info + "RECORD"] = (record + info + "RECORD,,\n").encode(), 0o644
    return files


def build(machine: str, out: pathlib.Path) -> pathlib.Path:
    """Writes the wheel for a machine into a folder."""
    date = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800))[:6]  # zip begins with 1980
    path = out / ("star_train-%s-py3-none-%s.whl" % (version(), PLATFORM % machine))
    out.mkdir(parents=True, exist_ok=True)
    files = contents(machine)
    part = path.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        for name in sorted(files):
            data, mode = files[name]
            entry = zipfile.ZipInfo(name, date)
            entry.compress_type, entry.create_system, entry.external_attr = zipfile.ZIP_DEFLATED, 3, (0o100000 | mode) << 16
            z.writestr(entry, data)
    size = part.stat().st_size
    if size > MAX_BYTES:
        sys.exit("star_wheel: %s has %d bytes, of at most %d: what has the program star grown by?" % (path.name, size, MAX_BYTES))
    part.replace(path)
    return path


# What pip asks of a build backend (PEP 517).


def build_wheel(wheel_directory: str, config_settings: Optional[Dict[str, Any]] = None, metadata_directory: Optional[str] = None) -> str:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES:
        sys.exit("star_wheel: there is no wheel for %s on %s: its link works on Linux, on %s" % (sys.platform, machine, " and ".join(MACHINES)))
    return build(machine, pathlib.Path(wheel_directory)).name


def build_sdist(sdist_directory: str, config_settings: Optional[Dict[str, Any]] = None) -> str:
    sys.exit("star_wheel: there is no source distribution, since the program star is built of the whole repository: make wheel")


def main(argv: Optional[List[str]] = None) -> None:
    p = argparse.ArgumentParser(description="Builds the wheel of star-train.")
    p.add_argument(
        "--machine", action="append", type=lambda m: GO.get(m, m), choices=sorted(MACHINES), help="for what, as uname -m or Go calls it; more than once for several (default: all)"
    )
    p.add_argument("--out", type=pathlib.Path, default=ROOT / "dist", help="folder (default: dist)")
    args = p.parse_args(argv)
    for machine in args.machine or sorted(MACHINES):
        path = build(machine, args.out)
        print("%s  %s  %.1f MB" % (hashlib.sha256(path.read_bytes()).hexdigest(), path, path.stat().st_size / 1e6))


if __name__ == "__main__":
    main()
