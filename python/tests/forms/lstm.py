"""A recurrent network as PyTorch's word_language_model: columns of one text, a hidden state that goes on from batch to batch, and lr /= 4 when the validation loss does not fall."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from lines import BATCH, attach, end, evaluate, rank, steps

COLUMNS, BPTT, STEPS, LETTERS, EPOCHS, BETTER = int(os.environ["BATCH"]), 5, 8, 7, 10, float(os.environ.get("BETTER", "0.8"))
lr = float(os.environ.get("LR", "3"))
text = torch.tensor([(i * i + i // 5) % LETTERS for i in range(COLUMNS * (BPTT * STEPS + 1))])
text = text.view(COLUMNS, -1).t().contiguous()


class RNN(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.letter, self.lstm, self.out = nn.Embedding(LETTERS, width), nn.LSTM(width, width), nn.Linear(width, LETTERS)

    def forward(self, x, hidden):
        out, hidden = self.lstm(self.letter(x), hidden)
        return self.out(out).flatten(0, 1), hidden


def test(batch):
    out, _ = model(batch[0].t(), None)
    y = batch[1].t().flatten()
    return float(F.cross_entropy(out, y, reduction="sum")), int((out.argmax(1) == y).sum()), len(y)


torch.manual_seed(5)
model = RNN()
testset = torch.utils.data.TensorDataset(text[:-1].t(), text[1:].t())
evaluate(test, testset)
net, optimizer = attach(model, torch.optim.SGD(model.parameters(), lr), STEPS * COLUMNS)
best, rates = None, []
for _ in range(EPOCHS):
    hidden = None
    for i, n in enumerate(steps(STEPS * COLUMNS)):
        j = i % STEPS  # a worker makes more steps than its share where another one is slow
        columns = text[BPTT * j : BPTT * (j + 1) + 1, rank() * BATCH : rank() * BATCH + n]
        optimizer.zero_grad()
        out, hidden = net(columns[:-1], hidden)
        hidden = tuple(h.detach() for h in hidden)
        F.cross_entropy(out, columns[1:].flatten()).backward()
        optimizer.step()
    with torch.no_grad():
        val_loss = test([testset.tensors[0], testset.tensors[1]])[0]
    if best is None or val_loss < BETTER * best:
        best = val_loss
    else:
        lr /= 4
        for g in optimizer.param_groups:
            g["lr"] = lr
    rates.append(lr)
end(model, rates)
