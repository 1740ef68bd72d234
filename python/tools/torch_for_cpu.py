#!/usr/bin/env python3
"""Installs PyTorch from PyPI without the libraries of CUDA, for tests on processors: 0.6 GB are downloaded instead of 3 GB.

usage: torch_for_cpu.py REQUIREMENT...    the first one is of torch, such as "torch>=2.5"; the others are installed as they are

PyPI's wheel for Linux on amd64 is linked with CUDA. Of CUDA's libraries only the small one that looks for GPUs (cudart) is installed. Another small
library takes the place of the others: PyTorch calls them on GPUs only, and each function in it returns an error.
It runs with the Python of the environment that PyTorch is for, and needs cc, nm and readelf.
"""

import importlib
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any, Dict, List, Set

ERROR = 100  # cudaErrorNoDevice; none of the other libraries has it as success
CUDA = re.compile(r"(nvidia|cuda|triton)\b|(nvidia|cuda)[-_]", re.I)  # packages that only GPUs need
FUNCTION = re.compile("_*(cu|nccl|nv)")  # what a name without a version begins with if it is of a library of CUDA


def pip(*args: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-compile", *args], check=True)


def output(*args: str) -> str:
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout


def without_cuda(metadata: pathlib.Path) -> None:
    """Takes what only GPUs need out of the requirements of the installed torch, so that pip does not install it with packages that need torch."""
    parse: Any = importlib.import_module("pip._vendor.packaging.requirements").Requirement
    lines = []
    for line in metadata.read_text().splitlines(keepends=True):
        key, _, text = line.partition(": ")
        if key == "Requires-Dist" and CUDA.match(text) and not text.startswith("nvidia-cuda-runtime"):
            r = parse(text.strip())
            if "cudart" not in r.extras:
                continue
            line = "%s: %s[cudart]%s%s\n" % (key, r.name, r.specifier, "; %s" % r.marker if r.marker else "")
        lines.append(line)
    metadata.write_text("".join(lines))


def stand_in(lib: pathlib.Path) -> List[str]:
    """Makes the library that takes the place of those that PyTorch's own need and do not find. Returns their names."""
    own = sorted(lib.glob("*.so*"))
    needed: Set[str] = set()
    for f in own:
        needed.update(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", str(f))))
    system = output("/sbin/ldconfig", "-p")
    found = {f.name for f in own} | {f.name for f in lib.parents[1].glob("nvidia/**/*.so*")}
    missing = sorted(n for n in needed - found if n not in system and not n.startswith("ld-linux"))
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
            if kind == "U" and name not in defined and (version in versions if version else FUNCTION.match(name)):
                versions.setdefault(version, set()).add(name)
    with tempfile.TemporaryDirectory() as folder:
        source, script = pathlib.Path(folder, "none.c"), pathlib.Path(folder, "none.map")
        source.write_text("".join("long %s(void) { return %d; }\n" % (n, ERROR) for n in sorted(set().union(*versions.values()))))
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
    site = pathlib.Path(sysconfig.get_paths()["platlib"])
    pip("--no-deps", sys.argv[1])
    without_cuda(next(site.glob("torch-*.dist-info/METADATA")))
    pip(*sys.argv[1:])
    stand_in(site / "torch" / "lib")
    return 0


if __name__ == "__main__":
    sys.exit(main())
