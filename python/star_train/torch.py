"""STAR for PyTorch::

    import star_train.torch as star                                          # 1
    opt = star.attach(model, torch.optim.AdamW(model.parameters(), 3e-4))    # 2
    loader = star.loader(dataset, batch_size=32)                             # 3

and the loops stay as they are. Each ``opt.step()`` hands the gradient of this worker to the job and comes back with the job's parameters,
with which the next batch is to be computed. Without a job (plain ``python train.py``, or ``STAR_OFF=1``) the same lines are stock PyTorch.

On a processor parameters, gradients and buffers are views of memory that this process shares with its agent: nothing is copied. Those on a GPU are copied to it and back.
"""

from __future__ import annotations

from . import _job, _link
from ._data import evaluate, loader, steps
from ._ddp import ddp_hook
from ._link import AgentLost, JobError, StarError
from ._optimizer import attach
from ._schedule import schedule

__all__ = ["AgentLost", "JobError", "StarError", "attach", "ddp_hook", "evaluate", "loader", "rank", "schedule", "steps", "stop", "workers"]


def rank() -> int:
    """Which worker of the job this is, from 0; 0 without a job; -1 before the first batch."""
    s = _job.current()
    return 0 if s is None else s.rank


def workers() -> int:
    """How many workers the job may have; 1 without a job; 0 before the first batch."""
    s = _job.current()
    return 1 if s is None else s.workers


def stop(why: str = "star.stop()") -> None:
    """Has the job end in good order for all workers, as ``star ctl stop`` does: nothing more is handed out, the loops over star.loader end when what is out was
    computed, and the job is evaluated and saved. Without a job it does nothing: leave the loop as well.
    """
    s = _job.current()
    if s is None or s.over:
        return
    if s.link is None:
        raise StarError("star.stop comes after the first batch of star.loader: before it there is no job to end", _link.EXIT_USAGE)
    s.link.halt(why)
