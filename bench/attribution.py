"""A worker in PyTorch for bench/attribution.sh: LeNet on noise, which sleeps FLOOR seconds in each step as one that waits for its accelerator.

HURT=data has __getitem__ sleep, 60 ms a batch; HURT=add has forward use 60 ms more of the processor.
"""

import os
import time

import torch
import torch.nn as nn

import star_train.torch as star

FLOOR, HURT, BATCH, MORE = float(os.environ["FLOOR"]), os.environ.get("HURT", ""), 32, 0.06


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, i):
        if HURT == "data":
            time.sleep(MORE / BATCH)
        return torch.randn(1, 28, 28, generator=torch.Generator().manual_seed(i)), i % 10


class Work(nn.Module):
    def forward(self, x):
        time.sleep(FLOOR)
        end = time.thread_time() + (MORE if HURT == "add" else 0)
        while time.thread_time() < end:
            x @ x.transpose(2, 3)
        return x


torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Sequential(
    Work(), nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
)
opt = star.attach(model, torch.optim.SGD(model.parameters(), 1e-3))
loader = star.loader(Noise(), batch_size=BATCH)
while True:  # until the job is over
    steps = 0
    for x, y in loader:
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
        steps += 1
    if not steps:
        break
