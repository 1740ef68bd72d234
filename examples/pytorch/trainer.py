"""The Trainer of Hugging Face's transformers, with STAR: a small BERT, made from a config, learns which of two words is more frequent in a sentence.

star run --workers 4 -- python trainer.py
"""

import argparse
import os
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from star_train.huggingface import Trainer


class Sentences(torch.utils.data.Dataset):
    """Sentences of 16 words out of 30, and whether word 5 comes more often than word 6."""

    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.words = torch.randint(5, 30, (count, 16), generator=g)
        self.words[torch.rand(count, 16, generator=g) < 0.4] = 5
        self.words[torch.rand(count, 16, generator=g) < 0.3] = 6
        self.labels = ((self.words == 5).sum(1) > (self.words == 6).sum(1)).long()

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return {"input_ids": self.words[i], "attention_mask": torch.ones(16, dtype=torch.long), "labels": self.labels[i]}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--count", type=int, default=4000)
    p.add_argument("--epochs", type=float, default=3)
    p.add_argument("--accumulate", type=int, default=1)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "star-trainer"), help="folder for the model")
    args = p.parse_args()
    torch.manual_seed(1)
    config = BertConfig(vocab_size=30, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=16)
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(
            args.out, num_train_epochs=args.epochs, per_device_train_batch_size=16 // args.accumulate, gradient_accumulation_steps=args.accumulate, learning_rate=2e-3,
            warmup_steps=10, eval_strategy="epoch", save_strategy="no", logging_steps=20, use_cpu=True, report_to=[], disable_tqdm=True,
        ),  # fmt: skip
        train_dataset=Sentences(args.count, 1),
        eval_dataset=Sentences(200, 2),
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(1) == p.label_ids).mean())},
    )
    trainer.train()
    trainer.save_model()
    print("accuracy %.3f after %.2f epochs" % (trainer.evaluate()["eval_accuracy"], trainer.state.epoch), flush=True)


if __name__ == "__main__":
    main()
