"""ResNet-20 (He et al. 2015, section 4.2) on images in CIFAR's format, with batch normalisation and optional bf16:

star run --workers 4 -- python resnet.py --data FOLDER    # cifar-10-batches-bin
"""

import argparse
import pathlib

import torch
import torch.nn as nn
import torch.nn.functional as F

import star_train.torch as star


class Block(nn.Module):
    def __init__(self, into, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(into, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.stride, self.more = stride, width - into

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more)))


def resnet(blocks, width):
    layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    into = width
    for stage in range(3):
        for k in range(blocks):
            layers.append(Block(into, width << stage, 2 if stage and k == 0 else 1))
            into = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 10))


class Pictures(torch.utils.data.Dataset):
    """CIFAR-10's binary files, or noisy patterns of their form; mirrored now and then when it trains."""

    def __init__(self, folder, train, count):
        if folder:
            names = ["data_batch_%d.bin" % i for i in range(1, 6)] if train else ["test_batch.bin"]
            raw = torch.cat([torch.frombuffer(bytearray((pathlib.Path(folder) / n).read_bytes()), dtype=torch.uint8).view(-1, 3073) for n in names])[:count]
            self.x, self.y = raw[:, 1:].view(-1, 3, 32, 32).float() / 127.5 - 1, raw[:, 0].long()
        else:
            patterns = F.interpolate(torch.randn(10, 3, 8, 8, generator=torch.Generator().manual_seed(1)), size=32)
            g = torch.Generator().manual_seed(2 + train)
            self.y = torch.randint(0, 10, (count,), generator=g)
            self.x = patterns[self.y] + torch.randn(count, 3, 32, 32, generator=g)
        self.train = train

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i]
        return (x.flip(2) if self.train and torch.rand(()) < 0.5 else x), self.y[i]


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--data", help="folder of data_batch_1.bin…")
    args.add_argument("--epochs", type=int, default=10)
    args.add_argument("--count", type=int, default=50000)
    args.add_argument("--blocks", type=int, default=3, help="a stage; 3 is ResNet-20")
    args.add_argument("--width", type=int, default=16)
    args.add_argument("--batch-size", type=int, default=32)
    args.add_argument("--accumulate", type=int, default=1)
    args.add_argument("--num-workers", type=int, default=0)
    args.add_argument("--bf16", action="store_true")
    args = args.parse_args()
    torch.manual_seed(1)
    model = resnet(args.blocks, args.width)
    opt = star.attach(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4))
    star.schedule(torch.optim.lr_scheduler.MultiStepLR(opt, [args.epochs // 2, args.epochs * 3 // 4], 0.1))
    testset = Pictures(args.data, False, args.count // 5)

    def test(batch):
        out = model(batch[0])
        return F.cross_entropy(out, batch[1], reduction="sum").item(), (out.argmax(1) == batch[1]).sum().item(), len(out)

    star.evaluate(test, testset)
    loader = star.loader(Pictures(args.data, True, args.count), args.batch_size, accumulate=args.accumulate, num_workers=args.num_workers, epochs=args.epochs)
    parts = 0
    for epoch in range(args.epochs):
        loss = None
        for x, y in loader:
            if parts % args.accumulate == 0:
                opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.bf16):
                out = model(x)
            loss = F.cross_entropy(out.float(), y)
            (loss / args.accumulate).backward()
            parts += 1
            if parts % args.accumulate == 0:
                opt.step()
        if loss is not None:  # a resumed job has no batches in the epochs before
            print("epoch %d, loss %.4f" % (epoch, loss.item()))


if __name__ == "__main__":
    main()
