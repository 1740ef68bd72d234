"""Lightning, and the Trainer of Hugging Face's transformers, with the real libraries: two workers make what the library alone makes."""

import importlib
import subprocess
from typing import Any

import pytest
from conftest import PATIENCE, python
from test_examples import run

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

COMMON = """
import sys
import torch, torch.nn as nn, torch.nn.functional as F

kind, batch, accumulate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
N, EPOCHS = 97 if kind in ("rest", "drop") else 96, 6

class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(N, 6, generator=torch.Generator().manual_seed(3))
    def __len__(self):
        return N
    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.x[i, :3].argmax()}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16) if N == 97 else nn.Tanh(), nn.Linear(16, 3))
    def forward(self, x, labels):
        out = self.net(x)
        return {"loss": F.cross_entropy(out, labels), "logits": out}

torch.manual_seed(5)
model = Net()
"""

LIGHTNING = (
    COMMON
    + """
import lightning
from star_train.lightning import StarStrategy

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
        self.validated, self.epochs = 0, []
        self.automatic_optimization = kind != "manual"
    def training_step(self, batch, index):
        return self.model(**batch)["loss"]
    def validation_step(self, batch, index):
        self.validated += 1
        self.log("loss", self.model(**batch)["loss"])
    def on_train_epoch_end(self):
        self.epochs.append(self.trainer.current_epoch)
    def configure_optimizers(self):
        opt = torch.optim.AdamW([{"params": self.model.net[0].parameters(), "lr": 0.02}, {"params": self.model.net[2].parameters(), "weight_decay": 0.0}], 0.03)
        return [opt], [{"scheduler": torch.optim.lr_scheduler.StepLR(opt, 1 if kind == "step" else 2, 0.6), "interval": "step" if kind == "step" else "epoch"}]

m = Module()
early = [lightning.pytorch.callbacks.EarlyStopping("loss", min_delta=10.0, patience=1)] if kind == "early" else []
quiet = dict(accelerator="cpu", accumulate_grad_batches=accumulate, num_sanity_val_steps=0, logger=False, enable_checkpointing=kind == "save", enable_progress_bar=False, enable_model_summary=False)
trainer = lightning.Trainer(strategy=StarStrategy(), max_epochs=EPOCHS, callbacks=early, **quiet)
load = lambda shuffle: torch.utils.data.DataLoader(Data(), batch_size=batch, shuffle=shuffle, drop_last=kind == "drop")
if kind == "checkpoint":
    alone = lightning.Trainer(max_epochs=1, **quiet)
    alone.fit(Module(), load(True))
    alone.save_checkpoint("alone.ckpt")
trainer.fit(m, load(True), torch.utils.data.DataLoader(Data(), batch_size=N), ckpt_path="alone.ckpt" if kind == "checkpoint" else None)
print("ended", m.validated, m.epochs, trainer.global_step, trainer.is_global_zero, flush=True)
if len(sys.argv) > 4:
    torch.save({k: v.clone() for k, v in m.state_dict().items()}, sys.argv[4])
"""
)

TRAINER = (
    COMMON
    + """
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments
from star_train.huggingface import Trainer

args = TrainingArguments("hf", num_train_epochs=EPOCHS, per_device_train_batch_size=batch, gradient_accumulation_steps=accumulate, learning_rate=0.03, weight_decay=0.01,
                         max_grad_norm=0, max_steps=-1 if kind != "steps" else EPOCHS * N // batch // accumulate, eval_strategy="epoch", save_strategy="epoch", save_total_limit=1, metric_for_best_model="eval_loss",
                         logging_steps=1, use_cpu=True, report_to=[], disable_tqdm=True, dataloader_num_workers=1 if kind == "loaders" else 0, dataloader_drop_last=kind == "drop")
seen = []
class Watch(TrainerCallback):
    def on_evaluate(self, args, state, control, **kwargs):
        seen.append(round(state.epoch, 3))
early = [EarlyStoppingCallback(1, 10.0)] if kind == "early" else []
trainer = Trainer(model=model, args=args, train_dataset=Data(), eval_dataset=Data(), callbacks=[Watch(), *early])
trainer.train(resume_from_checkpoint="hf/checkpoint-1" if kind == "checkpoint" else None)
print("ended", seen, trainer.state.global_step, trainer.is_world_process_zero(), flush=True)
if len(sys.argv) > 4:
    torch.save({k: v.cpu() for k, v in model.state_dict().items()}, sys.argv[4])
"""
)


def libraries(*names: str) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as e:
            pytest.skip("there is no %s (make torch2 installs it): %s" % (name, e))


def both(job: Any, text: str, kind: str, accumulate: int) -> Any:
    """A step of the job has all samples, half of them by each worker: so has one of the library alone. The workers."""
    script = job.script(text)
    ps = job.start("--mode", "ssgd")
    ws = [job.worker(script, kind, str(48 // accumulate), str(accumulate)) for _ in range(2)]
    alone = job.folder / "alone"  # a Trainer has a folder of checkpoints and keeps the newest
    alone.mkdir()
    plain = subprocess.run(
        [python(), str(script), kind, str(96 // accumulate), str(accumulate), "plain.pt"], cwd=alone, env=job.env, capture_output=True, text=True, timeout=PATIENCE
    )
    assert plain.returncode == 0, plain.stdout + plain.stderr
    job.finish(ps, *ws)
    want, got = torch.load(alone / "plain.pt"), job.parameters()
    assert set(want) == set(got)
    for k, v in want.items():
        assert torch.allclose(v, got[k], rtol=1e-4, atol=1e-5), (k, v, got[k])
    assert job.lines("summary")[-1]["samples"] == 96 * 6
    return ws


@pytest.mark.parametrize("accumulate", [1, 2])
def test_lightning(job: Any, accumulate: int) -> None:
    libraries("lightning")
    ws = both(job, LIGHTNING, "", accumulate)
    for w in ws:
        assert "ended 6 [0, 1, 2, 3, 4, 5] 6 " in w.log, w.log
    assert sorted(w.log.split("ended")[1].split()[-1] for w in ws) == ["False", "True"]


@pytest.mark.parametrize("kind, says", [("manual", "optimizes by hand: StarStrategy needs"), ("step", "give StarStrategy(every=…)")])
def test_lightning_refuses(job: Any, kind: str, says: str) -> None:
    libraries("lightning")
    job.start("--mode", "ssgd", workers=1)
    w = job.worker(job.script(LIGHTNING), kind, "48", "1")
    assert w.wait() != 0 and says in w.log, w.log


def test_lightning_saves(job: Any) -> None:
    """Worker 0 saves Lightning's checkpoint, the last one when the job is over, and the others end well beside it."""
    libraries("lightning")
    ps = job.start("--mode", "ssgd")
    job.finish(ps, *(job.worker(job.script(LIGHTNING), "save", "48", "1") for _ in range(2)))
    (saved,) = (job.folder / "checkpoints").glob("*.ckpt")
    assert torch.load(saved, weights_only=False)["optimizer_states"][0]["state"], saved


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here"))])
@pytest.mark.parametrize("kind, accumulate", [("loaders", 1), ("steps", 2)])
def test_trainer(job: Any, kind: str, accumulate: int, device: str) -> None:
    libraries("transformers", "accelerate")
    ws = both(job, TRAINER.replace("use_cpu=True", "use_cpu=%r" % (device == "cpu")), kind, accumulate)
    for w in ws:
        assert "ended [1.0, 2.0, 3.0, 4.0, 5.0, 6.0] 6 " in w.log and "is copied in every step" not in w.log, w.log
    assert sorted(w.log.split("ended")[1].split()[-1] for w in ws) == ["False", "True"]
    assert (job.folder / "hf" / "checkpoint-6").is_dir()


FRAMEWORKS = pytest.mark.parametrize("text, names", [(LIGHTNING, ["lightning"]), (TRAINER, ["transformers", "accelerate"])], ids=["lightning", "trainer"])


@FRAMEWORKS
def test_early_stopping(job: Any, text: str, names: Any) -> None:
    """All workers stop after their second evaluation, which does not get better: the job is saved, and a success."""
    libraries(*names)
    ps = job.start("--mode", "ssgd")
    ws = [job.worker(job.script(text), "early", "48", "1") for _ in range(2)]
    job.finish(ps, *ws)
    r = job.lines("summary")[-1]
    assert "left; the last one is worker" in r["ended"] and r["samples"] == 96 * 2 and job.checkpoint(), r


@FRAMEWORKS
def test_resume(job: Any, text: str, names: Any) -> None:
    """Three epochs, and three more from the job's checkpoint, make the parameters of six."""
    libraries(*names)
    script, ends = job.script(text), []
    for flags in (["--epochs", "3"], ["--epochs", "6", "--resume", str(job.out)], ["--epochs", "6"]):
        ps = job.start("--mode", "ssgd", *flags)
        ws = [job.worker(script, "", "48", "1") for _ in range(2)]
        job.finish(ps, *ws)
        ends.append(job.parameters())
    half, halves, whole = ends
    for k, v in whole.items():
        assert torch.allclose(v, halves[k], rtol=1e-4, atol=1e-5) and not torch.allclose(v, half[k], rtol=1e-4, atol=1e-5), k


@FRAMEWORKS
def test_epochs_without_batches(job: Any, text: str, names: Any) -> None:
    """An epoch has two batches, and a third worker gets none: it continues with the next epoch."""
    libraries(*names)
    ps = job.start("--mode", "ssgd", workers=3)
    ws = [job.worker(job.script(text), "", "48", "1") for _ in range(3)]
    job.finish(ps, *ws)
    r = job.lines("summary")[-1]
    assert r["samples"] == 96 * 6 and r["steps"] == 12 and "a worker is gone" not in ps.log, (r, ps.log)


@FRAMEWORKS
@pytest.mark.parametrize("kind, samples, updates", [("drop", 96, 6), ("rest", 97, 6)])
def test_drop_last(job: Any, text: str, names: Any, kind: str, samples: int, updates: int) -> None:
    """97 samples in batches of 8: drop_last leaves out the last one, with which BatchNorm could do nothing; else it is part of another batch."""
    libraries(*names)
    ps = job.start("--mode", "ssgd", "--epochs", "1")
    ws = [job.worker(job.script(text), kind, "8", "1") for _ in range(2)]
    job.finish(ps, *ws)
    r = job.lines("summary")[-1]
    assert (r["samples"], r["updates"]) == (samples, updates) and "a worker is gone" not in ps.log and job.checkpoint(), (r, ps.log)


@FRAMEWORKS
def test_resume_by_the_framework(job: Any, text: str, names: Any) -> None:
    """It is refused before the first batch, with the way to go on."""
    libraries(*names)
    job.start("--mode", "ssgd", workers=1)
    w = job.worker(job.script(text), "checkpoint", "48", "1")
    assert w.wait() == 2 and "a job goes on from its own checkpoint: star run --resume FOLDER" in w.log and "joined" not in w.log, w.log


@pytest.mark.parametrize(
    "script, args, samples",
    [("lightning_digits.py", ["--count", "640"], 3200), ("trainer.py", ["--count", "640", "--epochs", "2", "--out", "model"], 1280), ("finetune.py", ["--count", "320"], 1600)],
)
def test_examples(star: str, tmp_path: Any, script: str, args: Any, samples: int) -> None:
    libraries(*(("lightning",) if "lightning" in script else ("transformers", "accelerate")))
    r = run(star, tmp_path, ["--mode", "ssgd"], script, *args)
    assert r["samples"] == samples and r["train_loss"] < 1.2, r


def test_lora(job: Any, tmp_path: Any) -> None:
    """Adapters of a model that is not trained: nothing else travels, and nothing else is in the checkpoint, from which a second run continues."""
    libraries("transformers")
    mode = ["--mode", "ssgd local=8 outer=nesterov(0.5,0.7)"]
    first = run(job.star, tmp_path, mode, "lora.py", "--epochs", "1")
    whole = run(job.star, tmp_path, [*mode, "--out", "whole"], "lora.py", "--epochs", "1", "--rank", "0")
    assert first["test_loss"] < 4.5, first  # of 5.5 for bytes by chance
    job.out = tmp_path / "star-out"
    (trained,) = job.lines("train")
    adapters = job.parameters()
    assert {name.rsplit(".", 1)[1] for name in adapters} == {"down", "up"}
    assert sum(p.numel() for p in adapters.values()) == trained["params"]
    vectors = first["bytes_sent"] / (4 * trained["params"])
    # Each of two workers sends and gets them in each outer step; one has those of the beginning.
    assert vectors == pytest.approx(4 * first["updates"] - 1, rel=0.02), first
    assert whole["updates"] == first["updates"] and first["bytes_sent"] < whole["bytes_sent"] / 20, (first, whole)
    again = run(job.star, tmp_path, [*mode, "--out", "again", "--resume", "star-out"], "lora.py", "--epochs", "3")
    assert again["samples"] == 2 * first["samples"] and again["test_loss"] < first["test_loss"] - 0.1, (first, again)
