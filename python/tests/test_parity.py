"""Two workers in SSGD make the same parameters as one process on the batches of both."""

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

MODEL = """
import torch, torch.nn as nn, torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(3, 2)
        self.frozen = nn.Linear(12, 12)
        for p in self.frozen.parameters():
            p.requires_grad = False
        self.hidden = nn.Linear(12, 24)
        self.out = nn.Linear(24, 4)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(self.frozen(x))))

def data():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(640, 12, generator=g)
    return x, (x[:, :4] + 0.3 * torch.randn(640, 4, generator=g)).argmax(1)

def groups(model):
    return [{"params": [model.hidden.weight, model.out.weight, model.unused.weight]},
            {"params": [model.hidden.bias, model.out.bias, model.unused.bias], "lr": 0.02, "weight_decay": 0.0}]

OPTIMIZERS = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), 0.1, weight_decay=0.01),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), 0.02, momentum=0.9, weight_decay=0.001),
    "nesterov": lambda m: torch.optim.SGD(m.parameters(), 0.02, momentum=0.8, nesterov=True),
    "adam": lambda m: torch.optim.Adam(m.parameters(), 0.003, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.01),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), 0.003, weight_decay=0.05),
    "sgd groups": lambda m: torch.optim.SGD(groups(m), 0.05, momentum=0.9, weight_decay=0.01),
    "adamw groups": lambda m: torch.optim.AdamW(groups(m), 0.003, weight_decay=0.05),
}
"""

TRAIN = (
    MODEL
    + """
import json, sys
import star_train.torch as star

class Numbered(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.y = data()
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return i, self.x[i], self.y[i]

torch.manual_seed(5)
model = Net()
opt = star.attach(model, OPTIMIZERS[sys.argv[1]](model))
loader = star.loader(Numbered(), batch_size=16)
for epoch in range(100):
    for i, x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        print("batch", json.dumps(i.tolist()))
"""
)


def batches_of(worker: Any) -> Any:
    return [json.loads(line[6:]) for line in worker.log.splitlines() if line.startswith("batch ")]


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam", "adamw", "sgd groups", "adamw groups"])
def test_like_one_process(job: Any, name: str) -> None:
    script = job.script(TRAIN)
    job.start("--mode", "ssgd", "--steps", "200", "--shards", "2")
    ws = [job.worker(script, name) for _ in range(2)]
    job.finish()
    own = {}  # type: Any
    exec(MODEL, own)
    x, y = own["data"]()
    torch.manual_seed(5)
    model = own["Net"]()
    start = {k: v.clone() for k, v in model.state_dict().items()}
    opt = own["OPTIMIZERS"][name](model)
    batches = list(zip(*map(batches_of, ws)))
    assert len(batches) == 200
    for a, b in batches:
        opt.zero_grad()
        # The job adds up the mean gradients of both halves.
        (own["F"].cross_entropy(model(x[a]), y[a]) / 2 + own["F"].cross_entropy(model(x[b]), y[b]) / 2).backward()
        for p in model.parameters():  # PyTorch leaves out what has no gradient, the job takes it for zero
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)
        opt.step()
    got = job.parameters()
    moved = 0.0
    for k, want in model.state_dict().items():
        assert k in got, "the checkpoint lacks %s" % k
        scale = max(float(want.abs().max()), 1e-3)
        error = float((got[k] - want).abs().max()) / scale
        assert error < 1e-5, "%s is off by %.2g of its largest element" % (k, error)
        moved = max(moved, float((want - start[k]).abs().max()))
    assert moved > 0.01
    own["Net"]().load_state_dict(got)
    # Every sample came once in each epoch: 20 batches of 32.
    seen = [i for a, b in batches for i in a + b]
    for e in range(10):
        assert sorted(seen[640 * e : 640 * (e + 1)]) == list(range(640))
