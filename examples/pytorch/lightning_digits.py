"""A module of Lightning, with STAR: a strategy for the trainer.

star run --workers 4 -- python lightning_digits.py
"""

import argparse

import lightning
import torch
import torch.nn.functional as F

from star_train.lightning import StarStrategy


class Module(lightning.LightningModule):
    def __init__(self, rate=1e-2):
        super().__init__()
        self.rate = rate
        self.net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), self.rate)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)]


def data(count, seed):
    x = torch.randn(count, 20, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.TensorDataset(x, x[:, :4].argmax(1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--count", type=int, default=4000)
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--accumulate", type=int, default=1)
    args = p.parse_args()
    lightning.seed_everything(1)
    trainer = lightning.Trainer(
        strategy=StarStrategy(), accelerator="cpu", max_epochs=args.epochs, accumulate_grad_batches=args.accumulate,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    train = torch.utils.data.DataLoader(data(args.count, 1), batch_size=32 // args.accumulate, shuffle=True)
    trainer.fit(Module(), train, torch.utils.data.DataLoader(data(400, 2), batch_size=100))
    print("accuracy %.3f after %d steps" % (float(trainer.callback_metrics["accuracy"]), trainer.global_step), flush=True)


if __name__ == "__main__":
    main()
