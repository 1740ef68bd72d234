"""Builds a release into dist: programs, wheels, the image, lists of what they are made of (SPDX), licences and checksums.

    python3 python/tools/star_release.py [--out dist] [--programs]

It needs Go, git and a checkout without changes. The folder is emptied first. The same commit, Go, Python and zlib make the same bytes: entries are sorted, belong
to root, and have the time of the commit.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

import star_wheel
from star_wheel import ROOT

PLATFORMS = ("linux-amd64", "linux-arm64", "darwin-arm64")
PROGRAMS = ("star", "star-ps", "star-worker", "star-chaos", "star-bucket")
LICENCES = ("LICENSE", "NOTICE", "docs/third-party-licences.txt")


def pack(folder: pathlib.Path, name: str, epoch: int) -> bytes:
    """A tar of what is in a folder, below name."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            entry = tarfile.TarInfo(name + path.relative_to(folder).as_posix())
            data = path.read_bytes()
            entry.size, entry.mtime, entry.mode = len(data), epoch, 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def go(*args: str, **env: str) -> None:
    """Runs go; what it says is on standard error."""
    code = subprocess.run(["go", *args], cwd=ROOT, env={**os.environ, "CGO_ENABLED": "0", **env}, stdout=2).returncode
    if code:
        sys.exit("star_release: go %s failed with exit code %d" % (" ".join(args), code))


def archive(platform: str, base: str, out: pathlib.Path, epoch: int) -> None:
    """Writes the archive of all programs for a platform, and the list of what they are made of."""
    system, arch = platform.split("-")
    with tempfile.TemporaryDirectory() as d:
        folder = pathlib.Path(d)
        for program in PROGRAMS:
            module, package = ("cmd/star-bucket", ".") if program == "star-bucket" else (".", "./cmd/" + program)
            go("-C", module, "build", *star_wheel.flags(), "-o", str(folder / program), package, GOOS=system, GOARCH=arch, GOAMD64="v1", GOARM64="v8.0")
        go("-C", "deploy/image", "run", ".", "--sbom", str(out / (base + ".spdx.json")), *[str(folder / p) for p in PROGRAMS])
        for name in LICENCES:
            shutil.copyfile(ROOT / name, folder / name.split("/")[-1])
        (out / (base + ".tar.gz")).write_bytes(gzip.compress(pack(folder, base + "/", epoch), 6, mtime=0))


def image(base: str, out: pathlib.Path, epoch: int) -> None:
    """Writes the OCI layout of the image as a tar, and beside it its lists and how it was built."""
    with tempfile.TemporaryDirectory() as d:
        folder = pathlib.Path(d)
        go("-C", "deploy/image", "run", ".", "--output", d)
        (out / (base + "-image.tar")).write_bytes(pack(folder / "oci", "", epoch))
        for path in folder.glob("*.json"):
            shutil.copyfile(path, out / ("%s-image-%s" % (base, path.name)))


def main() -> None:
    p = argparse.ArgumentParser(description="Builds a release.")
    p.add_argument("--out", type=pathlib.Path, default=ROOT / "dist", help="folder, which is emptied first (default: dist)")
    p.add_argument("--programs", action="store_true", help="only the archives of programs")
    args = p.parse_args()
    if not star_wheel.git("rev-parse", "HEAD"):
        sys.exit("star_release: %s is not a git checkout, and a release names its commit" % ROOT)
    changes = star_wheel.git("status", "--porcelain")
    if changes:
        sys.exit("star_release: the checkout has changes; commit or remove them:\n" + changes)
    os.environ["SOURCE_DATE_EPOCH"] = star_wheel.git("show", "-s", "--format=%ct")
    os.environ["GOFLAGS"] = "-mod=readonly"
    epoch, version, out = int(os.environ["SOURCE_DATE_EPOCH"]), star_wheel.version(), args.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for platform in PLATFORMS:
        archive(platform, "star-%s-%s" % (version, platform), out, epoch)
    if not args.programs:
        for machine in sorted(star_wheel.MACHINES):
            star_wheel.build(machine, out)
        image("star-" + version, out, epoch)
    for name in LICENCES:
        shutil.copyfile(ROOT / name, out / name.split("/")[-1])
    sums = "".join("%s  %s\n" % (hashlib.sha256(path.read_bytes()).hexdigest(), path.name) for path in sorted(out.iterdir()))
    (out / "SHA256SUMS").write_text(sums)
    print(sums, end="")


if __name__ == "__main__":
    main()
