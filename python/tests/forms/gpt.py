"""A Transformer trained as minGPT does: an iterator that the loop begins again, a count of its own, a mask of -inf in a buffer."""

import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from lines import attach, end, evaluate, loader

LENGTH, LETTERS, MAX_ITERS = 16, 11, int(os.environ.get("MAX_ITERS", "60"))
text = torch.tensor([(i * i + i // 7) % LETTERS for i in range(64 * LENGTH + 1)])
data = torch.utils.data.TensorDataset(text[:-1].view(-1, LENGTH), text[1:].view(-1, LENGTH))


class GPT(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.letter, self.place = nn.Embedding(LETTERS, width), nn.Parameter(torch.zeros(LENGTH, width))
        self.block = nn.TransformerEncoderLayer(width, 2, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(width, LETTERS)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -math.inf).triu(1))

    def forward(self, x):
        return self.out(self.block(self.letter(x) + self.place, src_mask=self.mask))


def test(batch):
    out = model(batch[0]).flatten(0, 1)
    return float(F.cross_entropy(out, batch[1].flatten(), reduction="sum")), int((out.argmax(1) == batch[1].flatten()).sum()), len(out)


torch.manual_seed(5)
model = GPT()
evaluate(test, data)
net, optimizer = attach(model, torch.optim.AdamW(model.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.1), len(data))
train_loader = loader(data, shuffle=True) if "hook" != os.environ["WAY"] else loader(data)
iter_num, data_iter = 0, iter(train_loader)
while True:
    try:
        x, y = next(data_iter)
    except StopIteration:
        data_iter = iter(train_loader)
        x, y = next(data_iter)
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
    net.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    iter_num += 1
    if iter_num >= MAX_ITERS:
        break
end(model, iter_num)
