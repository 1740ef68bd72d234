"""What the forms have in common: the lines of STAR, those of DistributedDataParallel with STAR's hook, or plain PyTorch.

WAY is servers, ring, hook or plain; BATCH the samples of a step of all processes together; SAVE a file for what plain PyTorch makes.
"""

import os
from typing import Any, List

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import star_train.torch as star

WAY = os.environ["WAY"]
HOOK = WAY == "hook"
BATCH = int(os.environ["BATCH"]) // (1 if WAY == "plain" else 2)
_own = os.environ.get("OWN") == "1"
_test: List[Any] = []


def attach(model, optimizer, samples):
    """The model and the optimizer that the loop uses."""
    if not HOOK:
        return model, star.attach(model, optimizer, own=_own)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    return model, star.ddp_hook(model, optimizer, samples=samples, batch_size=BATCH)


def loader(data, **kwargs):
    if not HOOK:
        return star.loader(data, BATCH, **kwargs)
    return DataLoader(data, BATCH, sampler=DistributedSampler(data, seed=1), **kwargs)


def schedule(scheduler):
    return scheduler if HOOK else star.schedule(scheduler)


def steps(samples):
    """How many samples to make a batch of, step by step."""
    return [BATCH] * (samples // BATCH // dist.get_world_size()) if HOOK else star.steps(BATCH, samples=samples)


def rank():
    return dist.get_rank() if HOOK else star.rank()


def evaluate(f, data):
    """The job evaluates at its end, plain PyTorch in end."""
    _test.append((f, data))
    star.evaluate(f, data)


def end(model, *words):
    """Behind the loop."""
    print("END", rank(), *words, flush=True)
    if WAY != "plain":
        return
    model.eval()
    f, data = _test[0]
    with torch.no_grad():
        loss, right, count = f(torch.utils.data.default_collate([data[i] for i in range(len(data))]))
    torch.save({"loss": loss / count, "accuracy": right / count, "state": model.state_dict(), "words": words}, os.environ["SAVE"])
