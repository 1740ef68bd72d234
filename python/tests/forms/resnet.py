"""A residual network with batch normalisation, momentum and a cosine schedule."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from lines import attach, end, evaluate, loader, schedule

EPOCHS = 8
g = torch.Generator().manual_seed(3)
patterns = torch.randn(4, 3, 8, 8, generator=g)
y = torch.randint(0, 4, (256,), generator=g)
data = torch.utils.data.TensorDataset(patterns[y] + torch.randn(256, 3, 8, 8, generator=g), y)


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        self.block = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        )
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        h = F.relu(self.first(x))
        return self.out(F.relu(h + self.block(h)).mean((2, 3)))


def test(batch):
    out = model(batch[0])
    return float(F.cross_entropy(out, batch[1], reduction="sum")), int((out.argmax(1) == batch[1]).sum()), len(out)


torch.manual_seed(5)
model = Net()
evaluate(test, data)
net, optimizer = attach(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4), len(data))
scheduler = schedule(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS))
train_loader = loader(data)
for _ in range(EPOCHS):
    for x, t in train_loader:
        optimizer.zero_grad()
        F.cross_entropy(net(x), t).backward()
        optimizer.step()
    scheduler.step()
end(model)
