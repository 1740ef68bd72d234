"""Fine-tuning of a model of Hugging Face's transformers in your own loop: all layers but the last one and the head are frozen.

star run --workers 4 -- python finetune.py --base FOLDER    # from save_pretrained; without it, a small model from a config
"""

import argparse

import torch
from trainer import Sentences
from transformers import AutoModelForSequenceClassification, DistilBertConfig, DistilBertForSequenceClassification

import star_train.torch as star


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--base")
    p.add_argument("--count", type=int, default=4000)
    p.add_argument("--epochs", type=int, default=5)
    args = p.parse_args()
    torch.manual_seed(1)
    if args.base:
        model = AutoModelForSequenceClassification.from_pretrained(args.base, num_labels=2)
    else:
        model = DistilBertForSequenceClassification(DistilBertConfig(vocab_size=30, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=16, dropout=0.0))
    model.base_model.requires_grad_(False)
    model.base_model.transformer.layer[-1].requires_grad_(True)
    opt = star.attach(model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3))
    star.schedule(torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs))

    def judge(batch):
        out = model(**batch)
        n = len(batch["labels"])
        return out.loss.item() * n, int((out.logits.argmax(1) == batch["labels"]).sum()), n

    star.evaluate(judge, Sentences(200, 2))
    loader = star.loader(Sentences(args.count, 1), batch_size=16, epochs=args.epochs)
    for epoch in range(args.epochs):
        loss = None
        for batch in loader:
            opt.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            opt.step()
        if loss is not None:  # a resumed job has no batches in the epochs before
            print("epoch %d, loss %.4f" % (epoch, loss.item()), flush=True)


if __name__ == "__main__":
    main()
