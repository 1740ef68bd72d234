#!/usr/bin/env python3
"""What it takes in each step to see whether a script has changed tensors of the job.

    bench/torch_checks.py [TENSORS]

Prints processor time of a step's checks in µs for a model of 100 parameters: the smallest and the median of 60 blocks of 300 steps.
Needs PyTorch in the Python that runs this.
"""

import pathlib
import statistics
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from star_train import _tensors  # noqa: E402

count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
torch.set_num_threads(1)
model = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(count // 2)])
tensors = _tensors.Tensors(model, list(model.parameters()), [], True)
_tensors.watch(tensors)
tensors.watching = True
blocks = []
for _ in range(60):
    begin = time.process_time_ns()
    for _ in range(300):
        assert tensors.changes() is None
        tensors.settle()
    blocks.append((time.process_time_ns() - begin) / 300e3)
print("PyTorch %s, %d parameters: %.1f µs a step at best, %.1f in the median" % (torch.__version__, 2 * (count // 2), min(blocks), statistics.median(blocks)))
