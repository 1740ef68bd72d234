"""Python imports this file when it starts, because star watch has put its folder first in PYTHONPATH.

It imports the sitecustomize that would have been imported without it, and then waits for torch."""

import os
import sys


def _chain(here):
    import importlib.machinery
    import importlib.util

    rest = [p for p in sys.path if os.path.abspath(p or os.getcwd()) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_here = os.path.dirname(os.path.abspath(__file__))
try:
    import star_watch

    star_watch.install()
except Exception:  # the program runs as without us
    pass
_chain(_here)
