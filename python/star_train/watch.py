"""Marks for ``star watch`` in loops that it does not know. Outside ``star watch`` they do nothing.

>>> from star_train import watch
>>> with watch.step(samples=32):
...     grads = compute(batch)
...     with watch.exchange():
...         all_reduce(grads)
"""

try:
    from star_watch import exchange, step  # type: ignore[import-not-found]  # star watch puts it into the program's path
except ImportError:
    import contextlib
    from typing import ContextManager

    def step(samples: int = 0) -> ContextManager[object]:
        """One training step with that number of samples of this rank."""
        return contextlib.nullcontext()

    def exchange() -> ContextManager[object]:
        """The part of a step in which this rank waits for others."""
        return contextlib.nullcontext()


__all__ = ["exchange", "step"]
