"""Marks for ``star watch`` in loops that it does not know. Outside ``star watch`` they do nothing.

>>> from star_train import watch
>>> with watch.step(samples=32):
...     grads = compute(batch)
...     with watch.exchange():
...         all_reduce(grads)
>>> with watch.phase("evaluation"):
...     evaluate()
"""

try:
    from star_watch import exchange, phase, step  # type: ignore[import-not-found]  # star watch puts it into the program's path
except ImportError:
    import contextlib
    from typing import ContextManager

    def step(samples: int = 0) -> ContextManager[object]:
        """One training step with that number of samples of this rank."""
        return contextlib.nullcontext()

    def exchange() -> ContextManager[object]:
        """The part of a step in which this rank waits for others."""
        return contextlib.nullcontext()

    def phase(name: str) -> ContextManager[object]:
        """Long work of this rank that is no hang, though other ranks wait for it."""
        return contextlib.nullcontext()


__all__ = ["exchange", "phase", "step"]
