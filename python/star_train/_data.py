"""The third line of a script: the batches that the job wants of this worker, and its test set."""

from __future__ import annotations

import difflib
import errno
import inspect
import operator
import time
import warnings
from typing import Any, Callable, Dict, Generator, Iterator, List, NamedTuple, Optional, Tuple, cast

import torch
import torch.utils.data as tud

from . import _job, _link
from ._link import StarError

Evaluation = Callable[[Any], Tuple[float, int, int]]

_OVER = "the job is over, and star.loader has no more batches: end the loop here, or give the job as many epochs or steps as the script wants (--epochs, --steps)"


class Loader:
    """Batches of the job, epoch by epoch: each sample of the data set once, over all workers together."""

    def __init__(self, plain: "tud.DataLoader[Any]", batch_size: int, accumulate: int, epochs: float, samples: int, kwargs: "Dict[str, Any]") -> None:
        """plain is the DataLoader that the script would have alone; kwargs are its arguments but for data set and size."""
        self.plain, self.dataset = plain, cast(Any, plain.dataset)
        self.batch_size, self.accumulate, self.epochs, self.samples = batch_size, accumulate, epochs, samples
        self.kwargs = kwargs
        self.prefetch = plain.num_workers * int(plain.prefetch_factor or 2)
        self.collate: Callable[[List[Any]], Any] = plain.collate_fn if plain.batch_size is not None else _Single(plain.collate_fn)
        self.divisible = False  # batches may be cut and resized
        self.sums = False  # the loss is a sum over the batch
        self.epoch = -1
        self._computed = -1  # gradients when the last iterator began
        self._given = 0  # batches of this epoch
        self._progress = 0.0
        self.stream: Optional[_Stream] = None  # the order is the script's own
        self.weights: Optional[List[Tuple[bool, float]]] = None  # for weigh, of parts that are taken before they are computed
        self._ahead: Optional[_Ahead] = None
        self._empty = 0  # iterations that had no batch, because the job is over
        self._empty_since = 0.0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "plain":
            raise AttributeError(name)
        return getattr(self.plain, name)

    def __len__(self) -> int:
        """Batches of an epoch if all workers take as many. With batches that the job cuts: those that were taken, and those that are left if they stay of this size."""
        s = _job.session
        n = max(s.workers, 1) * s.processes if s is not None else 1
        if self.divisible and s is not None and s.pending is not None:
            left = self.samples - (s.pending.c & ~_link.WANTS_PARTS) % self.samples
            return self._given - (s.step != 0) + -(-left // (max(s.count, 1) * n))
        return -(-self.samples // (self.batch_size * n))

    def __iter__(self) -> Generator[Any, None, Optional[str]]:
        """Gives the batches of the next epoch. What it returns is the text of the StopIteration that next() raises."""
        s = _job.session
        assert s is not None
        s.begin()
        s.advance()
        if s.over and s.computed == 0:  # star eval, or it came when the job was over: what follows the loop has nothing to work with
            raise SystemExit(0)
        if s.over:
            self._idle()
        if self._given == 0 or s.computed != self._computed:  # else the script has only looked at a batch, which comes again
            self.epoch += 1
        self._given, self._computed = 0, s.computed
        n = self.samples
        while not s.over:
            position, indices = s.give()
            if position // n > self.epoch:
                return None  # it is the first of the next epoch
            before = s.step
            self._given += 1
            for k, (part, weight) in enumerate(self.parts(indices)):
                batch = self._fetch(position, k, part)
                if self.weights is None:
                    self.weigh(k == 0, weight)
                else:
                    self.weights.append((k == 0, weight))
                s.loaded = time.perf_counter_ns() if s.loaded < s.asked else s.loaded
                yield batch
            s.advance()
            if s.pending is not None and s.step == before:
                raise StarError(
                    "a batch was taken from star.loader before opt.step() of the one before: each batch makes one step (star.loader(accumulate=N) makes one of N)", _link.EXIT_USAGE
                )
        return _OVER

    def _idle(self) -> None:
        """Ends a script that asks for batches without end (``while n < steps: for batch in loader``), but not a loop over many epochs that the job does not have."""
        self._empty += 1
        now = time.monotonic()
        if self._empty == 1:
            self._empty_since = now
        if self._empty > 10000 and now > self._empty_since + 10:
            raise StarError(
                "the job is over, and this script waits for more batches: it has iterated star.loader %d times since. End its loop when the loader gives no batch, or give the job"
                " as many epochs or steps as the script wants (--epochs, --steps)" % self._empty,
                _link.EXIT_USAGE,
            )

    def begin(self) -> None:
        """Joins the job."""
        assert _job.session is not None
        _job.session.begin()

    def weigh(self, first: bool, weight: float) -> None:
        """The part of a batch that is computed next counts so much; first: of its batch."""
        assert _job.session is not None
        _job.session.weigh(weight, first)

    def over(self) -> bool:
        """Whether the job is. The step before it is done with."""
        s = _job.session
        if s is not None and s.link is not None:
            s.advance()
        return s is not None and s.over

    def progress(self) -> float:
        """Epochs of the job at the batch that comes next; those that it has at its end. The step before it is done with."""
        over, s = self.over(), _job.session
        if s is not None and s.pending is not None:
            self._progress = (s.pending.c & ~_link.WANTS_PARTS) / self.samples
        return float(max(self._progress, self.epochs)) if over else self._progress

    def ended(self) -> bool:
        """Whether the next batch belongs to a later epoch."""
        return self.over() or int(self.progress()) > self.epoch

    def parts(self, indices: List[int]) -> List[Tuple[List[int], float]]:
        """As many as ``accumulate`` says, and the weight of each in the gradient. If there are fewer samples, the first ones come again, with a weight of 0."""
        n, k = len(indices), self.accumulate
        if k == 1:
            return [(indices, 1.0)]
        out = [(indices[:1], 0.0)] * (k - n)
        k = min(k, n)
        cuts = [n * i // k for i in range(k + 1)]
        return out + [(indices[a:b], 1.0 if self.sums else (b - a) * self.accumulate / n) for a, b in zip(cuts, cuts[1:])]

    def _fetch(self, position: int, part: int, indices: List[int]) -> Any:
        if self.stream is not None:
            return self.collate(self.stream.take(len(indices)))
        if self.plain.num_workers == 0:
            return self._load(indices)
        if self._ahead is None:
            self._ahead = _Ahead(self)
        s = _job.session
        assert s is not None
        return self._ahead.fetch((position, part), indices, s.leases)

    def _load(self, indices: List[int]) -> Any:
        get = getattr(self.dataset, "__getitems__", None)
        batch = self.collate(get(indices) if get is not None else [self.dataset[i] for i in indices])
        if self.plain.pin_memory and torch.cuda.is_available():
            return cast(Any, tud)._utils.pin_memory.pin_memory(batch)
        return batch


class _Single:
    """Collates batches of one sample, which is a batch already (batch_size=None)."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self.convert = convert

    def __call__(self, samples: List[Any]) -> Any:
        return self.convert(samples[0])


_Place = Tuple[int, int]  # position of a batch, and number of a part of it


class Batches:
    """Batches of a loader, without a number for frameworks: how many of an epoch are this worker's shows when it is over."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class _Ahead:
    """Loads batches that are likely to come in processes of their own, by a DataLoader. What comes otherwise is loaded here.

    It is the batch sampler of that DataLoader: a sampler that has nothing now, and may have later.
    """

    def __init__(self, owner: Loader) -> None:
        self.owner = owner
        self.given: List[Tuple[_Place, List[int]]] = []  # what the DataLoader works on, in order
        self.wanted: Dict[_Place, List[int]] = {}  # leases in parts
        self.it: Any = None

    def __iter__(self) -> "_Ahead":
        return self

    def __next__(self) -> List[int]:
        last = self.given[-1][0] if self.given else (-1, 0)
        at = min((p for p in self.wanted if p > last), default=None)
        if at is None:
            raise StopIteration
        self.given.append((at, self.wanted.pop(at)))
        return self.given[-1][1]

    def fetch(self, place: _Place, indices: List[int], leases: "Dict[int, List[int]]") -> Any:
        for position in list(leases):
            for k, (part, _) in enumerate(self.owner.parts(leases.pop(position))):
                self.wanted[position, k] = part
        for p in [p for p in self.wanted if p <= place]:
            del self.wanted[p]
        batch = None
        while self.given and self.given[0][0] <= place:
            at, samples = self.given.pop(0)
            got = next(self.it)
            if at == place and samples == indices:
                batch = got
        self._fill()
        return self.owner._load(indices) if batch is None else batch

    def _fill(self) -> None:
        """Has the DataLoader as busy as it may be."""
        if self.it is None:
            if not self.wanted:
                return
            kwargs = dict(self.owner.kwargs, collate_fn=self.owner.collate)
            for name in ("shuffle", "drop_last"):
                kwargs.pop(name, None)
            try:
                self.it = iter(tud.DataLoader(self.owner.dataset, batch_sampler=cast(Any, self), **kwargs))
            except OSError as e:
                if e.errno != errno.ENOSPC:
                    raise
                raise StarError(
                    "the processes of num_workers cannot be started: /dev/shm is full: make room there (docker: --shm-size), or give num_workers=0", _link.EXIT_LOST
                ) from e
        while self.wanted and len(self.given) < self.owner.prefetch:
            n = len(self.given)
            self.it._try_put_index()
            if len(self.given) == n:
                return


class _Stream:
    """Samples in an order of the script's own: the job says how many, not which."""

    def __init__(self, owner: Loader) -> None:
        self.owner = owner
        self.it: Optional[Iterator[List[Any]]] = None
        self.rest: List[Any] = []

    def take(self, n: int) -> List[Any]:
        while len(self.rest) < n:
            if self.it is None:
                self.it = iter(self._loader())
                self.rest += next(self.it, [])
                if not self.rest:
                    raise StarError("%s gives no samples" % type(self.owner.dataset).__name__, _link.EXIT_USAGE)
                continue
            more = next(self.it, None)
            if more is None:
                self.it = None  # once more from its beginning
            else:
                self.rest += more
        out, self.rest = self.rest[:n], self.rest[n:]
        return out

    def _loader(self) -> Any:
        kwargs = dict(self.owner.kwargs, collate_fn=_items)
        sampler = kwargs.get("sampler")
        if callable(sampler) and not isinstance(sampler, tud.Sampler):
            kwargs["sampler"] = sampler()
        for name in ("shuffle", "drop_last"):
            kwargs.pop(name, None)
        return tud.DataLoader(self.owner.dataset, batch_size=self.owner.batch_size, **kwargs)


def _items(samples: List[Any]) -> List[Any]:
    return samples


def loader(
    dataset: Any,
    batch_size: Optional[int] = 32,
    *args: Any,
    accumulate: int = 1,
    epochs: float = 0,
    samples: int = 0,
    divisible: bool = False,
    loss: str = "mean",
    **kwargs: Any,
) -> Any:
    """This worker's batches of dataset. It replaces a DataLoader and has its other arguments and attributes.

    Over all workers each sample comes once in an epoch. accumulate=N cuts the batch of a step into N parts of batch_size, so that ``opt.step()``
    comes after N of them. epochs is how long the job is where it was not told (``star run --epochs``).

    A batch is whole: all modes give batches of batch_size samples, but for the last one of the job, which drop_last=True leaves out. divisible=True lets the job cut and resize
    them, which makes it faster where a worker is slow: it is right where no module mixes samples (BatchNorm), the loss is a mean of one term for each sample (loss="sum": a sum),
    and the loop does not count its batches.

    An IterableDataset, or a sampler, gives samples in an order of its own: then the job says how many this worker is to compute, and whether each sample comes once
    is the script's affair: each worker needs its own part, by ``star.rank()`` and ``star.workers()``, which are known when the first sample is asked for. sampler may be a
    function that makes one then. samples is how many an epoch of the whole job has, where the data set has no length.
    """
    s = _job.current()
    batch_size = batch_size if batch_size is None else _whole("batch_size", batch_size)
    accumulate = _whole("accumulate", accumulate)
    kwargs = _arguments(dataset, batch_size, args, kwargs)
    if s is None:
        if not isinstance(dataset, tud.IterableDataset) and not {"sampler", "batch_sampler", "shuffle"} & set(kwargs) and batch_size is not None:
            kwargs["shuffle"] = True
        return tud.DataLoader(dataset, batch_size=batch_size, **kwargs)
    if kwargs.get("batch_sampler") is not None:
        raise StarError("star.loader(batch_sampler=…): the job says how large a batch is; leave it away, or give a sampler", _link.EXIT_USAGE)
    own = kwargs.get("sampler") is not None or isinstance(dataset, tud.IterableDataset)
    if kwargs.get("shuffle") is False and not own:
        raise StarError("star.loader(shuffle=False): the job shuffles samples, by its --seed; leave it away, or give a sampler, which sets the order", _link.EXIT_USAGE)
    if not own and not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise StarError(
            "star.loader needs a data set with len() and [i], so that the job can hand out its samples, or an IterableDataset: %s is neither" % type(dataset).__name__,
            _link.EXIT_USAGE,
        )
    if samples and not own:
        raise StarError("star.loader(samples=%d): the data set has %d; leave it away" % (samples, len(dataset)), _link.EXIT_USAGE)
    if not samples:
        try:
            samples = len(dataset)
        except TypeError:
            raise StarError("%s has no len(): give star.loader(samples=…), how many samples an epoch of the job has" % type(dataset).__name__, _link.EXIT_USAGE) from None
    size = batch_size or 1
    if loss not in ("mean", "sum"):
        raise StarError('star.loader(loss=%r): want "mean" or "sum", which says what the loss is over the samples of a batch' % (loss,), _link.EXIT_USAGE)
    if s.loader is not None:
        raise StarError(
            "star.loader was called before in this process: the job has one stream of samples. Evaluate by star.evaluate, or with a DataLoader of PyTorch", _link.EXIT_USAGE
        )
    factory = callable(kwargs.get("sampler")) and not isinstance(kwargs.get("sampler"), tud.Sampler)
    plain = tud.DataLoader(dataset, batch_size=batch_size, **{k: v for k, v in kwargs.items() if not (factory and k == "sampler")})
    s.loader = Loader(plain, size, accumulate, epochs, _whole("samples", samples), kwargs)
    s.loader.divisible, s.loader.sums = bool(divisible), loss == "sum"
    if own:
        s.loader.stream = _Stream(s.loader)
        warnings.warn(
            "star.loader: %s gives samples in an order of its own, so the job does not see to it that each comes once in an epoch: give each worker its own part, by star.rank() and"
            " star.workers()" % type(kwargs.get("sampler") or dataset).__name__,
            stacklevel=2,
        )
    return s.loader


def _arguments(dataset: Any, batch_size: Optional[int], args: Tuple[Any, ...], kwargs: "Dict[str, Any]") -> "Dict[str, Any]":
    """The arguments of a DataLoader by their names, but for data set and size. One that it does not have is an error."""
    known = inspect.signature(tud.DataLoader.__init__)
    ours = [name for name, p in inspect.signature(loader).parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    for name in kwargs:
        if name not in known.parameters:
            like = difflib.get_close_matches(name, [*known.parameters, *ours], 1)
            raise StarError(
                "star.loader has no argument %s%s: it has those of torch.utils.data.DataLoader, and %s" % (name, "; did you mean %s?" % like[0] if like else "", ", ".join(ours)),
                _link.EXIT_USAGE,
            )
    try:
        bound = known.bind(None, dataset, batch_size, *args, **kwargs)
    except TypeError as e:
        raise StarError("star.loader: %s, as of torch.utils.data.DataLoader" % e, _link.EXIT_USAGE) from None
    return {k: v for k, v in bound.arguments.items() if k not in ("self", "dataset", "batch_size")}


def _whole(name: str, value: Any) -> int:
    n = operator.index(value) if hasattr(value, "__index__") else 0
    if n < 1:
        raise StarError("star.loader(%s=%r): want a whole number, at least 1" % (name, value), _link.EXIT_USAGE)
    return n


def steps(batch_size: int = 1, *, samples: int, **kwargs: Any) -> Any:
    """For scripts without a DataLoader: how many samples this worker is to make a batch of, step by step.

    samples is how many an epoch of the whole job has; other arguments are those of :func:`loader`. A batch counts in an update by its samples. Where a batch is always the
    whole data, or an episode of reinforcement learning, it is one sample: ``for _ in star.steps(samples=200)`` is an epoch of 200 steps of all workers together. It may be called
    again, for each epoch.
    """
    s = _job.current()
    if s is not None and s.loader is not None and s.loader.dataset == range(samples):
        return s.loader
    return loader(range(samples), batch_size, collate_fn=len, **kwargs)


# Evaluation.


class Test(NamedTuple):
    f: Evaluation
    dataset: Any
    collate: Callable[[List[Any]], Any]

    def run(self, indices: List[int]) -> Tuple[float, int, int]:
        return self.f(self.collate([self.dataset[i] for i in indices]))


def evaluate(f: Evaluation, testset: Any, *, collate_fn: Optional[Callable[[List[Any]], Any]] = None) -> None:
    """Has the job evaluate, spread over all workers, whenever it does (``star run --eval-every``).

    f takes a batch of testset and gives the sum of the losses, how many predictions are right, and how many there are. It is called without gradients,
    with the model in evaluation mode, and with buffers averaged over all workers. Call evaluate before the first batch of the loader.
    """
    s = _job.current()
    if s is None:
        return
    if s.link is not None:
        raise StarError("star.evaluate comes before the first batch of star.loader: the job must know the test set when it begins", _link.EXIT_USAGE)
    if s.test is not None:
        raise StarError("star.evaluate was called before in this process", _link.EXIT_USAGE)
    s.test = Test(f, testset, collate_fn or tud.default_collate)
