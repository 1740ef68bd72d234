"""The command ``star`` of the wheel: the program that lies in it."""

from __future__ import annotations

import os
import sys

from ._link import PROGRAM


def main() -> None:
    try:
        os.execv(PROGRAM, [PROGRAM, *sys.argv[1:]])
    except OSError as e:
        sys.stderr.write("star: %s cannot be started: %s: install the star-train wheel of this machine\n" % (PROGRAM, e.strerror))
        sys.exit(66)
