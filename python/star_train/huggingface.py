"""STAR for the Trainer of Hugging Face's transformers: one in its place, of the same arguments::

    from star_train.huggingface import Trainer

    trainer = Trainer(model=model, args=args, train_dataset=data)

A trainer that is derived from theirs takes part by ``class MyTrainer(Star, Seq2SeqTrainer)``. The optimizer is AdamW as ``args`` says, or that of ``optimizers=``; with ``own = True`` in
the class it may be of any kind (docs/python.md). A step of ``max_steps``, ``warmup_steps`` and the learning rate's schedule is a batch of one worker: all workers together make that number.
What a worker evaluates is its own; worker 0 saves.
"""

from __future__ import annotations

import math
from typing import Any, Iterator, Optional

import transformers

from . import _data, _job, _link
from . import torch as star

__all__ = ["Star", "Trainer"]


class _Batches(_data.Batches):
    """The Trainer stops at an epoch without batches: it does not see epochs without a batch for this worker, as in a job that continues from a checkpoint."""

    def __iter__(self) -> Iterator[Any]:
        self.loader.epoch = max(self.loader.epoch, int(self.loader.progress()) - 1)
        return super().__iter__()


class Star:
    """What is different in a Trainer that is a worker of a job. Without a job nothing is."""

    own = False
    overlap = True
    divisible = False
    _star: Optional[_Batches] = None

    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint and _job.current() is not None:
            raise star.StarError("train(resume_from_checkpoint=%r): a job goes on from its own checkpoint: star run --resume FOLDER" % (resume_from_checkpoint,), _link.EXIT_USAGE)
        return super().train(None, *args, **kwargs) if _job.current() is not None else super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def get_train_dataloader(self: Any) -> Any:
        if _job.current() is None:
            return super().get_train_dataloader()  # type: ignore[misc]
        if self._star is not None:
            raise star.StarError("train() was called before in this process: a process is one worker, and trains once", _link.EXIT_USAGE)
        args, data = self.args, self.train_dataset
        if args.world_size > 1:
            raise star.StarError("the Trainer is part of a process group of %d already: start it by star run or star worker, not by torchrun" % args.world_size, _link.EXIT_USAGE)
        if data is None:
            raise star.StarError("Trainer.train needs a train_dataset", _link.EXIT_USAGE)
        self.create_optimizer()
        star.attach(self.model, self.optimizer, own=self.own, overlap=self.overlap)
        self.model.zero_grad = lambda set_to_none=True: self.optimizer.zero_grad()  # gradients stay in the job's memory
        collate = self.data_collator
        if transformers.utils.is_datasets_available() and type(data).__module__.startswith("datasets."):
            data = self._remove_unused_columns(data, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        kwargs = {"prefetch_factor": args.dataloader_prefetch_factor} if args.dataloader_num_workers else {}
        if not hasattr(data, "__len__"):
            raise star.StarError("the Trainer needs a train_dataset with len(): it is %s" % type(data).__name__, _link.EXIT_USAGE)
        parts, size = args.gradient_accumulation_steps, args.per_device_train_batch_size
        steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * len(data) / (size * parts))
        epochs = steps * size * parts / len(data) if args.max_steps > 0 else args.num_train_epochs
        loader = star.loader(
            data,
            size,
            accumulate=parts,
            epochs=epochs,
            collate_fn=collate,
            num_workers=args.dataloader_num_workers,
            drop_last=args.dataloader_drop_last,
            divisible=self.divisible,
            **kwargs,
        )
        if self.lr_scheduler is None:
            self.create_scheduler(steps, self.optimizer)
            self._created_lr_scheduler = False  # or it would be made once more
        star.schedule(self.lr_scheduler, every=size * parts)
        loader.weights = []
        loader.begin()
        self._star = _Batches(loader)
        self.add_callback(_Callback(loader))
        args.max_steps = max(1, math.ceil(steps / star.workers()))  # for what it shows: the job says when it is over
        return self._star

    def training_step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        if self._star is not None:
            # Where the loss is a mean over what all parts of a batch have, they have their weights.
            scaled = getattr(self, "loss_is_scaled_for_ga", None)
            if scaled is None:
                scaled = (self.model_accepts_loss_kwargs and num_items_in_batch is not None) or self.compute_loss_func is not None
            first, weight = self._star.loader.weights.pop(0)
            self._star.loader.weigh(first, float(weight > 0) if scaled else weight)
        return super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]

    def is_world_process_zero(self: Any) -> bool:
        return star.rank() <= 0 and super().is_world_process_zero()  # type: ignore[misc]

    def _save_checkpoint(self: Any, *args: Any, **kwargs: Any) -> None:
        if star.rank() <= 0:
            super()._save_checkpoint(*args, **kwargs)  # type: ignore[misc]

    def save_model(self: Any, *args: Any, **kwargs: Any) -> None:
        if star.rank() <= 0:
            super().save_model(*args, **kwargs)  # type: ignore[misc]


class Trainer(Star, transformers.Trainer):
    """transformers.Trainer as a worker of a job."""


class _Callback(transformers.TrainerCallback):
    """Ends epochs and the training when the job does, and not when this worker has made as many steps as others would have."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.epoch = min(self.loader.progress(), self.loader.epoch + 1.0)
        control.should_epoch_stop = control.should_epoch_stop or self.loader.ended()
        control.should_training_stop = self.loader.over()
