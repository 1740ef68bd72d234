"""The classic network for MNIST, in plain PyTorch. mnist.py is the same script with STAR: diff mnist_plain.py mnist.py"""

import argparse
import gzip
import os

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2)).flatten(1)
        return self.fc2(self.dropout2(F.relu(self.fc1(x))))


def digits(folder, part, count):
    """The images and labels of MNIST's files, or, without a folder, blurred strokes that are as large and easier."""
    if folder:
        parts = []
        for name, head in (("images-idx3", 16), ("labels-idx1", 8)):
            path = os.path.join(folder, "%s-%s-ubyte" % (part, name))
            f = gzip.open(path + ".gz") if os.path.exists(path + ".gz") else open(path, "rb")
            with f:
                parts.append(torch.frombuffer(bytearray(f.read()[head:]), dtype=torch.uint8))
        return torch.utils.data.TensorDataset((parts[0].view(-1, 1, 28, 28)[:count].float() / 255 - 0.1307) / 0.3081, parts[1][:count].long())
    strokes = F.interpolate(torch.randn(10, 1, 7, 7, generator=torch.Generator().manual_seed(1)), size=28, mode="bilinear", align_corners=False)
    g = torch.Generator().manual_seed(2 if part == "train" else 3)
    y = torch.randint(0, 10, (count,), generator=g)
    return torch.utils.data.TensorDataset(strokes[y] + 0.5 * torch.randn(count, 1, 28, 28, generator=g), y)


def test(model, batch):
    x, y = batch
    out = model(x)
    return F.cross_entropy(out, y, reduction="sum").item(), (out.argmax(1) == y).sum().item(), len(y)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--data", help="folder of MNIST's files (train-images-idx3-ubyte…)")
    args.add_argument("--epochs", type=int, default=3)
    args.add_argument("--count", type=int, default=60000, help="samples to train with, at most")
    args.add_argument("--batch-size", type=int, default=64)
    args.add_argument("--lr", type=float, default=0.5)
    args = args.parse_args()
    torch.manual_seed(1)
    trainset, testset = digits(args.data, "train", args.count), digits(args.data, "t10k", args.count // 6)
    model = Net()
    opt = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.7)
    loader = torch.utils.data.DataLoader(trainset, args.batch_size, shuffle=True)
    for epoch in range(args.epochs):
        model.train()
        loss = None
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        sched.step()
        if loss is not None:  # a resumed job has no batches in the epochs before
            print("epoch %d, loss %.4f" % (epoch, loss.item()))
    model.eval()
    with torch.no_grad():
        results = [test(model, batch) for batch in torch.utils.data.DataLoader(testset, 1000)]
    print("accuracy %.4f" % (sum(r[1] for r in results) / len(testset)))


if __name__ == "__main__":
    main()
