#!/usr/bin/env python3
"""Installs PyTorch from PyPI without the libraries of CUDA, for tests on processors: 0.6 GB are downloaded instead of 3 GB.

usage: torch_for_cpu.py REQUIREMENT...    the first one is of torch, such as "torch>=2.5"; the others are installed as they are

PyPI's wheel for Linux on amd64 is linked with CUDA. A small library takes the place of CUDA's: each function in it returns cudaErrorNoDevice (100),
so PyTorch finds no GPU. It runs with the Python of the environment that PyTorch is for, and needs cc, nm and readelf.
"""

import importlib
import importlib.metadata
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any, Dict, List, Set

NO_DEVICE = 100  # cudaErrorNoDevice
CUDA = re.compile(r"(nvidia|cuda|triton)\b|(nvidia|cuda)[-_]", re.I)  # packages that only GPUs need


def pip(*args: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-compile", *args], check=True)


def output(*args: str) -> str:
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout


def requirements() -> List[str]:
    """What the installed torch needs on a processor."""
    parse: Any = importlib.import_module("pip._vendor.packaging.requirements").Requirement
    all_of = [parse(r) for r in importlib.metadata.requires("torch") or []]
    return ["%s%s" % (r.name, r.specifier) for r in all_of if not CUDA.match(r.name) and (r.marker is None or r.marker.evaluate({"extra": ""}))]


def stand_in(lib: pathlib.Path) -> List[str]:
    """Makes the library that takes the place of those that PyTorch's own need and do not find. Returns their names."""
    own = sorted(lib.glob("*.so*"))
    needed: Set[str] = set()
    for f in own:
        needed.update(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", str(f))))
    system = output("/sbin/ldconfig", "-p")
    missing = sorted(n for n in needed - {f.name for f in own} if n not in system and not n.startswith("ld-linux"))
    if not missing:
        return []
    versions: Dict[str, Set[str]] = {}
    defined: Set[str] = set()
    for f in own:
        library = ""
        for what, name in re.findall(r"(File|Name): (\S+)", output("readelf", "-VW", str(f)).partition("Version needs")[2]):
            library = name if what == "File" else library
            if what == "Name" and library in missing:
                versions.setdefault(name, set())
        defined.update(line.split()[-1].split("@")[0] for line in output("nm", "-D", "--defined-only", str(f)).splitlines())
    for f in own:
        for line in output("nm", "-D", "--undefined-only", str(f)).splitlines():
            kind, full = line.split()[-2:]
            name, _, version = full.partition("@")
            if kind == "U" and name not in defined and not name.startswith("_Z") and (not version or version in versions):
                versions.setdefault(version, set()).add(name)
    with tempfile.TemporaryDirectory() as folder:
        source, script = pathlib.Path(folder, "none.c"), pathlib.Path(folder, "none.map")
        source.write_text("".join("long %s(void) { return %d; }\n" % (n, NO_DEVICE) for n in sorted(set().union(*versions.values()))))
        parts = ["%s { %s };\n" % (v, "global: %s;" % "; ".join(sorted(names)) if names else "") for v, names in sorted(versions.items()) if v]
        script.write_text("".join(parts) or "{ global: *; };\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-w", "-fno-builtin", "-Wl,--version-script=%s" % script, "-o", str(lib / missing[0]), str(source)], check=True)
    for name in missing[1:]:
        (lib / name).symlink_to(missing[0])
    return missing


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print((__doc__ or "").split("\n\n")[1], file=sys.stderr)
        return 64
    pip("--no-deps", sys.argv[1])
    pip(*requirements(), *sys.argv[2:])
    stand_in(pathlib.Path(sysconfig.get_paths()["platlib"], "torch", "lib"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
