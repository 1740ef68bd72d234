"""Low-rank adapters (LoRA) of a small language model, for slow links: the job has the adapters only, so nothing else travels.

star run --workers 4 --mode 'ssgd local=32 outer=nesterov(0.5,0.7)' -- python lora.py --text FILE

--base FOLDER, from save_pretrained, is a model with its tokenizer; without it, a model is made from a config and reads bytes.
"""

import argparse
import pathlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from chars import Text
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import star_train.torch as star


class Adapter(nn.Module):
    """What is added to the output of a layer that is not trained (Hu et al., LoRA, ICLR 2022, equation 3)."""

    def __init__(self, layer, rank):
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.scale = 16 / rank  # alpha = 16
        layer.register_forward_hook(self.add)

    def add(self, layer, inputs, output):
        return output + self.scale * F.linear(F.linear(inputs[0], self.down), self.up)


def adapt(model, rank):
    """Freezes a model. The adapters of its linear layers, except the head, are a module of their own."""
    model.requires_grad_(False)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and m is not model.get_output_embeddings()}
    return nn.ModuleDict({n.replace(".", "_"): Adapter(m, rank) for n, m in layers.items()})


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--text", nargs="+", default=sorted(pathlib.Path(__file__).parent.glob("*.py")), help="files to learn (default: these examples)")
    args.add_argument("--base")
    args.add_argument("--rank", type=int, default=4, help="of the adapters; 0: train the whole model, for comparison")
    args.add_argument("--width", type=int, default=128)
    args.add_argument("--layers", type=int, default=2)
    args.add_argument("--length", type=int, default=64)
    args.add_argument("--epochs", type=int, default=10)
    args.add_argument("--batch-size", type=int, default=4)
    args = args.parse_args()
    text = "".join(pathlib.Path(t).read_text() for t in args.text)
    torch.manual_seed(1)  # each worker makes the same model
    if args.base:
        model = AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float32)
        tokens = AutoTokenizer.from_pretrained(args.base)(text).input_ids
    else:
        size = {"hidden_size": args.width, "intermediate_size": 3 * args.width, "num_hidden_layers": args.layers, "num_attention_heads": 4}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=args.length, initializer_range=0.1, **size))
        tokens = list(text.encode())
    trained = adapt(model, args.rank) if args.rank else model
    opt = star.attach(trained, torch.optim.AdamW(trained.parameters(), lr=3e-3))
    tokens = torch.tensor(tokens)
    cut = len(tokens) * 9 // 10

    def test(batch):
        out, y = model(batch[0]).logits, batch[1]
        return F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum").item(), (out.argmax(2) == y).sum().item(), y.numel()

    star.evaluate(test, Text(tokens[cut:], args.length))
    loader = star.loader(Text(tokens[:cut], args.length), args.batch_size, epochs=args.epochs)
    for epoch in range(args.epochs):
        loss = None
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x).logits.flatten(0, 1), y.flatten())
            loss.backward()
            opt.step()
        if loss is not None:  # a resumed job has no batches in the epochs before
            print("epoch %d, loss %.4f" % (epoch, loss.item()), flush=True)


if __name__ == "__main__":
    main()
