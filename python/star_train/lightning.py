"""STAR for Lightning: a strategy, with which a module and its data stay as they are::

    trainer = lightning.Trainer(strategy=StarStrategy(), accelerator="cpu", max_epochs=10)

The module has one optimizer and automatic optimization. ``accumulate_grad_batches``, schedulers and precisions of docs/python.md are followed; validation is each worker's own.
``star_train.torch.evaluate`` before ``fit`` has the job evaluate.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import torch.utils.data as tud
from lightning.pytorch.loops.fetchers import _DataFetcher, _PrefetchDataFetcher
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_only

from . import _data, _job, _link
from . import torch as star

__all__ = ["StarStrategy"]

# What a DataLoader has been given that one of ours takes too.
_KEPT = ("num_workers", "collate_fn", "timeout", "worker_init_fn", "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers", "pin_memory", "drop_last")


class StarStrategy(SingleDeviceStrategy):
    """own and overlap are those of ``star_train.torch.attach``, divisible and loss those of ``star_train.torch.loader``. every is how many samples of the job lie between two steps of a scheduler with the interval *step*."""

    strategy_name = "star"

    def __init__(self, *, own: bool = False, overlap: bool = True, every: int = 0, divisible: bool = False, loss: str = "mean", **kwargs: Any) -> None:
        super().__init__("cpu", **kwargs)
        self._own, self._overlap, self._every = own, overlap, every
        self._batch: Dict[str, Any] = {"divisible": divisible, "loss": loss}
        self._batches: Optional[_data.Batches] = None

    def setup_optimizers(self, trainer: Any) -> None:
        super().setup_optimizers(trainer)
        if _job.current() is None:
            return
        module = self.lightning_module
        if trainer.ckpt_path and trainer.training:
            raise star.StarError("fit(ckpt_path=%r): a job goes on from its own checkpoint: star run --resume FOLDER" % trainer.ckpt_path, _link.EXIT_USAGE)
        if len(self.optimizers) != 1 or not module.automatic_optimization:
            raise star.StarError(
                "%s has %d optimizers, or optimizes by hand: StarStrategy needs one, and automatic optimization" % (type(module).__name__, len(self.optimizers)), _link.EXIT_USAGE
            )
        star.attach(module, self.optimizers[0], overlap=self._overlap, own=self._own)
        for config in self.lr_scheduler_configs:
            steps = config.interval == "step"
            if config.frequency != 1 or (steps and not self._every):
                raise star.StarError(
                    "a scheduler that makes a step with each %d. %s: give StarStrategy(every=…), how many samples of the job lie between two steps, and frequency 1"
                    % (config.frequency, config.interval),
                    _link.EXIT_USAGE,
                )
            star.schedule(config.scheduler, every=self._every if steps else 0)

    def process_dataloader(self, dataloader: Any) -> Any:
        trainer = self.lightning_module.trainer
        if _job.current() is None or not trainer.training or self._batches is not None:
            return dataloader
        if not isinstance(dataloader, tud.DataLoader) or dataloader.batch_size is None:
            raise star.StarError("StarStrategy needs a DataLoader with a batch_size for training, and no batch_sampler: it is %s" % type(dataloader).__name__, _link.EXIT_USAGE)
        kwargs = {k: getattr(dataloader, k) for k in _KEPT if getattr(dataloader, k, None) is not None}
        kwargs.update(self._batch)
        if type(dataloader.sampler) not in (tud.RandomSampler, tud.SequentialSampler, tud.dataloader._InfiniteConstantSampler):
            kwargs["sampler"] = dataloader.sampler
        self._batches = _data.Batches(
            star.loader(dataloader.dataset, dataloader.batch_size, accumulate=trainer.accumulate_grad_batches, epochs=max(trainer.max_epochs or 0, 0), **kwargs)
        )
        self._batches.loader.begin()
        self.global_rank = rank_zero_only.rank = star.rank()
        return self._batches

    def on_train_start(self) -> None:
        if self._batches is None:
            return
        fit = self.lightning_module.trainer.fit_loop
        if len(fit._combined_loader.flattened) != 1:
            raise star.StarError("StarStrategy needs one DataLoader for training, there are %d" % len(fit._combined_loader.flattened), _link.EXIT_USAGE)
        fit._data_fetcher.__class__ = _OneByOne

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        out = super().optimizer_step(optimizer, closure, model, **kwargs)
        if self._batches is not None and self._batches.loader.ended():
            trainer = self.lightning_module.trainer
            trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True
            trainer.should_stop = trainer.should_stop or self._batches.loader.over()
        return out

    def optimizer_state(self, optimizer: Any) -> Dict[str, Any]:
        """Only worker 0 saves it, and when the job is over only that one can have it."""
        return super().optimizer_state(optimizer) if self.is_global_zero else {}

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0


class _OneByOne(_PrefetchDataFetcher):
    """Fetches a batch on demand, except for the first one, which is available: the next one arrives with the parameters that answer this one."""

    def __next__(self) -> Any:
        return self.batches.pop() if self.batches else _DataFetcher.__next__(self)
