"""Schedulers of PyTorch: the job follows their rates."""

from __future__ import annotations

import copy
import math
import os
import warnings
from typing import TYPE_CHECKING, Any, List

import torch

from . import _job, _link, _rule
from ._link import StarError

if TYPE_CHECKING:
    from ._data import Loader

# The rates are followed beyond the epochs that the script says for at least this many steps of the scheduler: the job may be longer (star ps --epochs).
_BEYOND = 512

# More changes of the rate than this are put together: a job's table of them travels with every process that joins.
_CHANGES = 4096


class Schedule:
    """The rates of a scheduler, found out by a run ahead, over samples of the job."""

    def __init__(self, scheduler: Any, every: int) -> None:
        self.scheduler, self.every = scheduler, every
        self.rates: List[List[float]] = []  # of each group, from step to step of the scheduler
        self.table = ""

    def run(self, ld: "Loader", own: bool) -> List[float]:
        """Makes the table; the rates of the groups at the height of the first one."""
        n = ld.samples
        self.every = self.every or n
        told = _told(n, ld.batch_size * ld.accumulate * (1 if _job.session is None else _job.session.processes))
        if not ld.epochs and not told and self.every < n:
            raise StarError(
                "star.schedule(every=%d) needs to know how long the job is: give star.loader(epochs=…), or star run --epochs, --steps or --samples" % self.every, _link.EXIT_USAGE
            )
        total = ld.epochs * n or told or 10_000.0 * n
        groups = self.scheduler.optimizer.param_groups
        dummy = torch.optim.SGD([dict(g, params=[torch.zeros(1, requires_grad=True)]) for g in groups], lr=0.1)
        before = _rule.settings(dummy, True)
        ahead = copy.deepcopy(self.scheduler, {id(self.scheduler.optimizer): dummy})
        steps = min(int(total / self.every) + 2, 1_000_000)
        own_end = steps
        if ld.epochs or told:
            steps = min(max(steps, int(told / self.every) + 2, _BEYOND), 1_000_000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for k in range(steps):
                rates = [float(g["lr"]) for g in dummy.param_groups]
                if k >= own_end and not all(0 <= r < math.inf for r in rates):
                    break
                self.rates.append(rates)
                try:
                    super(Followed, ahead).step()  # type: ignore[misc]
                except Exception as e:
                    if k >= own_end - 1 or isinstance(e, ValueError):  # OneCycleLR, or a function of the script's, beyond its end
                        break
                    raise
        if _rule.settings(dummy, True) != before:
            raise StarError(
                "%s changes more than the rate: the job keeps momentum and decay as star.attach has found them (cycle_momentum=False)" % type(ahead).__name__, _link.EXIT_USAGE
            )
        peak = max(self.rates[:own_end], key=lambda r: r[0])
        if not peak[0] > 0:
            raise StarError("%s: the rate of the first group is never above 0" % type(ahead).__name__, _link.EXIT_USAGE)
        for k, r in [] if own else list(enumerate(self.rates)):
            if any(abs(x - r[0] / peak[0] * y) > 1e-6 * max(abs(y), peak[0]) for x, y in zip(r, peak)):
                if k >= own_end:
                    del self.rates[k:]
                    break
                raise StarError(
                    "%s: the rates of the groups have another course each: the job has one for all, times a factor for each group" % type(ahead).__name__, _link.EXIT_USAGE
                )
        changes = [(k, r[0] / peak[0]) for k, r in enumerate(self.rates) if k == 0 or r[0] != self.rates[k - 1][0]]
        if len(changes) > _CHANGES:
            changes = [changes[len(changes) * i // _CHANGES] for i in range(_CHANGES)]
        self.table = "table=" + ",".join("%d:%r" % (k * self.every, f) for k, f in changes)
        return peak

    def show(self, position: int) -> None:
        """Has the groups and the scheduler show the rate of a batch."""
        rates = self.rates[min(position // self.every, len(self.rates) - 1)]
        for g, r in zip(self.scheduler.optimizer.param_groups, rates):
            g["lr"] = r
        self.scheduler._last_lr = list(rates)


def _told(n: int, batch: int) -> float:
    """How many samples the job has at most, with n in an epoch and batch in a step of one worker, as far as star run has said it; 0: it has not."""

    def of(name: str) -> float:
        return float(os.environ.get("STAR_" + name) or 0)

    try:
        ends = (of("EPOCHS") * n, of("SAMPLES"), of("STEPS") * batch * max(of("WORKERS"), 1))
    except ValueError:
        return 0
    return min((e for e in ends if e > 0), default=0.0)


def schedule(scheduler: Any, *, every: int = 0) -> Any:
    """Has the job's learning rate follow a scheduler of the attached optimizer, which is given back: it makes a step whenever the job, all workers together, has
    used ``every`` samples (0: an epoch). ``scheduler.step()`` in the loop does nothing any more.

    So the rate is the same for all workers, whatever the mode, and right for workers that join later. Call it before the first batch of the loader. A scheduler that
    makes a step for each batch has ``every=batch_size``, and star.loader(epochs=…) says how far it is to be followed.
    """
    s = _job.current()
    if s is None:
        return scheduler
    optimizer = getattr(scheduler, "optimizer", None)
    if optimizer is None or not any(o is optimizer for o in s.optimizers()):
        raise StarError("star.schedule needs a scheduler of the optimizer that star.attach was given, and comes after it", _link.EXIT_USAGE)
    if s.link is not None or s.follows(optimizer):
        raise StarError("star.schedule comes once, and before the first batch of star.loader: the job must know the rates when it begins", _link.EXIT_USAGE)
    if type(scheduler).__name__ == "ReduceLROnPlateau" or every < 0:
        raise StarError(
            "star.schedule(%s, every=%d): want a scheduler with rates that depend only on the number of steps, and a number of samples" % (type(scheduler).__name__, every),
            _link.EXIT_USAGE,
        )
    s.follow(Schedule(scheduler, every))
    scheduler.__class__ = type(type(scheduler).__name__, (Followed, type(scheduler)), {"__module__": __name__})
    return scheduler


class Followed:
    """What changes of a scheduler that the job follows."""

    def step(self, *args: Any, **kwargs: Any) -> None:
        pass
