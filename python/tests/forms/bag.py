"""A classifier of texts of several lengths, by EmbeddingBag, with ReduceLROnPlateau."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from lines import attach, end, evaluate, loader

WORDS, EPOCHS = 40, 25
g = torch.Generator().manual_seed(3)
texts = [torch.randint(0, WORDS, (int(torch.randint(2, 9, (), generator=g)),), generator=g) for _ in range(int(os.environ["BATCH"]))]
data = [(t, int(t.float().mean() > WORDS / 2)) for t in texts]


def collate(batch):
    offsets = torch.tensor([0] + [len(t) for t, _ in batch[:-1]]).cumsum(0)
    return torch.cat([t for t, _ in batch]), offsets, torch.tensor([y for _, y in batch])


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(WORDS, 8), nn.Linear(8, 2)

    def forward(self, words, offsets):
        return self.out(self.bag(words, offsets))


class Whole(torch.utils.data.Dataset):
    """The data as one batch."""

    def __len__(self):
        return 1

    def __getitem__(self, i):
        return [t.unsqueeze(0) for t in collate(data)]


def test(batch):
    words, offsets, y = (t.flatten() for t in batch)
    out = model(words, offsets)
    return float(F.cross_entropy(out, y, reduction="sum")), int((out.argmax(1) == y).sum()), len(y)


torch.manual_seed(5)
model = Bag()
evaluate(test, Whole())
net, optimizer = attach(model, torch.optim.SGD(model.parameters(), 6.0), len(data))
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.25, patience=0)
train_loader, rates = loader(data, collate_fn=collate), []
for _ in range(EPOCHS):
    for words, offsets, y in train_loader:
        optimizer.zero_grad()
        F.cross_entropy(net(words, offsets), y).backward()
        optimizer.step()
    with torch.no_grad():
        scheduler.step(test(collate(data))[0])
    rates.append(optimizer.param_groups[0]["lr"])
end(model, rates)
