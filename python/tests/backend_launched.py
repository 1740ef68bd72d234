"""Trainings as a launcher starts them, over torch.distributed's backend BACKEND: test_backend_launched.py compares the losses of Gloo and of star.

usage: backend_launched.py plain|accelerated|lightning|trainer    rank 0 prints a line: losses, then the losses of all steps, in JSON
"""

import json
import os
import sys
import tempfile
from typing import Any, List

import torch
import torch.distributed as dist
from torch import nn

BACKEND, STEPS = os.environ["BACKEND"], 6
losses: List[float] = []


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Inputs that decide their labels."""

    def __init__(self) -> None:
        self.x = torch.randn(8 * STEPS, 6, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return {"x": self.x[i], "labels": self.x[i, :3].argmax()}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        out = self.net(x)
        return {"loss": nn.functional.cross_entropy(out, labels), "logits": out}


def averaged(loss: torch.Tensor) -> None:
    """Keeps the average of a loss over all ranks."""
    total = loss.detach().clone()
    dist.all_reduce(total, dist.ReduceOp.AVG if BACKEND == "star" else dist.ReduceOp.SUM)
    losses.append(float(total) / (1 if BACKEND == "star" else dist.get_world_size()))


def loader(rank: int, world: int) -> Any:
    sampler: Any = torch.utils.data.DistributedSampler(Data(), world, rank, shuffle=False)
    return torch.utils.data.DataLoader(Data(), batch_size=4, sampler=sampler)


def plain() -> None:
    dist.init_process_group(BACKEND)
    model: Any = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for batch in loader(dist.get_rank(), dist.get_world_size()):
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged(loss)


def accelerated() -> None:
    from accelerate import Accelerator

    dist.init_process_group(BACKEND)  # otherwise accelerate takes Gloo on processors
    accelerator = Accelerator()
    net = Net()
    model, optimizer, data = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.5), torch.utils.data.DataLoader(Data(), batch_size=4))
    assert accelerator.num_processes == 2 and isinstance(model, nn.parallel.DistributedDataParallel)
    for batch in data:
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        averaged(loss)


def lightning() -> None:
    import lightning as L
    from lightning.pytorch.strategies import DDPStrategy

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Net()

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.model(**batch)["loss"]
            averaged(loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend=BACKEND), max_epochs=1, **quiet)
    trainer.fit(Module(), torch.utils.data.DataLoader(Data(), batch_size=4))


def trainer() -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    class Tokens(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 8 * STEPS

        def __getitem__(self, i: int) -> Any:
            tokens = torch.randint(0, 50, (8,), generator=torch.Generator().manual_seed(i))
            return {"input_ids": tokens, "labels": tokens[0] % 3}

    dist.init_process_group(BACKEND)  # otherwise accelerate takes Gloo on processors
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(vocab_size=50, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **size))
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, use_cpu=True, per_device_train_batch_size=4, num_train_epochs=1, logging_steps=1, learning_rate=1e-2, report_to=[], save_strategy="no", disable_tqdm=True
        )
        t = Trainer(model=model, args=args, train_dataset=Tokens())
        t.train()
    losses.extend(entry["loss"] for entry in t.state.log_history if "loss" in entry)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(5)
    kind = sys.argv[1]
    {"plain": plain, "accelerated": accelerated, "lightning": lightning, "trainer": trainer}[kind]()
    assert dist.get_backend() == BACKEND, dist.get_backend()
    if dist.get_rank() == 0:
        print("losses " + json.dumps(losses), flush=True)
    dist.destroy_process_group()
