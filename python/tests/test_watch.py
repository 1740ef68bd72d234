"""star watch in scripts that shard their parameters: it finds the slow rank, though all wait for each other in the middle of their passes."""

import json
import os
import pathlib
import statistics
import subprocess
import sys

import pytest
from conftest import PATIENCE, ROOT
from test_ddp import ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if tuple(int(x) for x in torch.__version__.split(".")[:2]) < (2, 6):
    pytest.skip("FSDP on processors needs PyTorch 2.6", allow_module_level=True)

SCRIPT = """
import sys, time, torch
from torch import nn
from torch.distributed import fsdp
from torch.distributed.fsdp import fully_shard  # by name: the agent of the backend star comes later
torch.set_num_threads(1)
if sys.argv[2] == "star": import star_train.backend
torch.distributed.init_process_group(sys.argv[2])
rank = torch.distributed.get_rank()
class Block(nn.Linear):
    def forward(self, x):
        if rank == 1: time.sleep(0.03)
        return torch.relu(super().forward(x))
net = nn.Sequential(Block(32, 32), Block(32, 32), nn.Linear(32, 10))
if sys.argv[1] == "FSDP2":
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for part in net:
        fully_shard(part, mesh=mesh)
    fully_shard(net, mesh=mesh)
else:
    net = fsdp.FullyShardedDataParallel(net, auto_wrap_policy=fsdp.wrap.ModuleWrapPolicy({Block}), device_id=torch.device("cpu"))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
time.sleep(2)  # before the first step
for _ in range(40):
    opt.zero_grad()
    nn.functional.cross_entropy(net(torch.randn(8, 32)), torch.arange(8)).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0) if sys.argv[1] == "FSDP2" else net.clip_grad_norm_(1.0)
    opt.step()
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("kind, backend", [("FSDP", "gloo"), ("FSDP2", "gloo"), ("FSDP2", "star")])
def test_sharded(star: str, tmp_path: pathlib.Path, kind: str, backend: str) -> None:
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(SCRIPT)
    each = ranks(2)
    run = f"RANK=0 {sys.executable} {script} {kind} {backend} & RANK=1 {sys.executable} {script} {kind} {backend}; code=$?; wait $! && exit $code"
    env = {**os.environ, **each[0]}
    watch = [star, "watch", "--out", str(out), "--"]
    if backend == "star":  # it is measured without star watch
        watch = []
        env.update(STAR_AGENT=star, STAR_WATCH_OUT=str(out))
        if not os.environ.get("STAR_TEST_INSTALLED"):
            env["PYTHONPATH"] = str(ROOT / "python")
    done = subprocess.run([*watch, "sh", "-c", run], env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "of train.py on 1 host, %s over %s" % (kind, backend) in done.stderr and "not measured any more" not in done.stderr, done.stderr
    assert "it says nothing of what it would save" in done.stderr and "STAR would save" not in done.stderr, done.stderr
    before = next(i for i, text in enumerate(SCRIPT.splitlines(), 1) if text.endswith("# before the first step"))
    assert "train.py:%d in" % before not in done.stderr, done.stderr
    lines = [json.loads(x) for x in (out / "run.jsonl").read_text().splitlines()]
    assert {x["params"] for x in lines if x["type"] == "train"} == {2 * 33 * 32 + 33 * 10}
    assert {x["samples"] for x in lines if x["type"] == "record"} == {8}
    own = [statistics.median(x["compute"] for x in lines if x["type"] == "record" and x["worker"] == w) for w in range(2)]
    assert own[0] < own[1], own  # though 0 waits for 1 in its passes


FORK = """
import os
children = []  # modules are imported once for all ranks
for rank in range(3):
    child = os.fork()
    if not child:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        break
    children.append(child)
else:
    os._exit(max(os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) != 0 for c in children))
"""

ZERO = """
import sys, time, torch
from torch import nn
engine, injury = sys.argv[1:]
if engine != "torch": import deepspeed
# FORK
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank, step = torch.distributed.get_rank(), 0
def suffer(what, seconds=0.04):
    if what == injury and rank == 1 and step >= 30: time.sleep(seconds)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8 * 100
    def __getitem__(self, i):
        suffer("data", 0.04 / 8)
        return torch.randn(32), i % 10
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
net[2].register_forward_hook(lambda *_: (time.sleep(0.01), suffer("forward"), None)[2])
net[2].register_full_backward_hook(lambda *_: suffer("backward"))
groups = [{"params": [p for p in net.parameters() if p.dim() == d]} for d in (1, 2)]
if engine == "torch":
    from torch.distributed.optim import ZeroRedundancyOptimizer
    parameters = list(net.parameters())
    net = nn.parallel.DistributedDataParallel(net)
    opt = ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.01, momentum=0.9)
else:
    config = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": int(engine), "stage3_param_persistence_threshold": 0},
              "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    net = deepspeed.initialize(model=net, optimizer=torch.optim.SGD(groups, lr=0.01, momentum=0.9), config=config, dist_init_required=False)[0]
for step, (x, y) in enumerate(torch.utils.data.DataLoader(Data(), batch_size=8)):
    loss = nn.functional.cross_entropy(net(x), y)
    if engine == "torch":
        opt.zero_grad()
        loss.backward()
        opt.step()
    else:
        net.backward(loss)
        net.step()
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("injury", ["forward", "backward", "data"])
@pytest.mark.parametrize("engine", ["torch", "0", "1", "2", "3"])
def test_zero(star: str, tmp_path: pathlib.Path, engine: str, injury: str) -> None:
    if engine != "torch":
        pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    lines, said = watched(star, tmp_path, ZERO, engine, injury)
    how = {"torch": "DDP over gloo", "0": "DeepSpeed over gloo"}.get(engine, f"DeepSpeed ZeRO-{engine} over gloo")
    assert f"3 ranks of train.py on 1 host, {how}" in said and "not measured any more" not in said, said
    assert ("it says nothing of what it would save" in said) == (engine in "123"), said
    slow = [x for x in lines if x["type"] == "verdict" and x["event"] == "slow"]
    assert {x["worker"] for x in slow} == {1} and {x["cause"] for x in slow} == {"data" if injury == "data" else "compute"}, said
    rows = [x for x in lines if x["type"] == "record"]
    assert max(x["step"] for x in rows) in (98, 99) and {x["samples"] for x in rows} == {8}, said
    own = [statistics.median(x["load"] + x["compute"] for x in rows if x["worker"] == w and x["step"] >= 40) for w in range(3)]
    assert own[1] - max(own[0], own[2]) > 0.02, own


def watched(star: str, folder: pathlib.Path, text: str, *args: str) -> tuple[list[dict], str]:
    """The run log of three ranks of a script under star watch, and what it said."""
    script, out = folder / "train.py", folder / "out"
    script.write_text(text.replace("# FORK\n", FORK))
    env = {**os.environ, **ranks(3)[0], "DS_ACCELERATOR": "cpu"}
    del env["RANK"]
    done = subprocess.run([star, "watch", "--out", str(out), "--", sys.executable, str(script), *args], env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return [json.loads(x) for x in (out / "run.jsonl").read_text().splitlines()], done.stderr


DEEPSPEED_PIPELINE = """
import time, torch, deepspeed
from torch import nn
from deepspeed.pipe import PipelineModule
# FORK
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
deepspeed.init_distributed("gloo")
rank, step = torch.distributed.get_rank(), 0
class Block(nn.Linear):
    def forward(self, x):
        time.sleep(0.006 if rank == 0 else 0.003)  # this stage has more work
        if rank == 1 and step >= 40: time.sleep(0.03)
        return torch.relu(super().forward(x))
net = PipelineModule([Block(16, 16) for _ in range(3)], num_stages=3, loss_fn=nn.functional.cross_entropy, partition_method="uniform")
config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
engine = deepspeed.initialize(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.01), config=config)[0]
data = ((torch.randn(4, 16), torch.arange(4)) for _ in range(10000))
for step in range(100):
    engine.train_batch(data_iter=data)
torch.distributed.destroy_process_group()
"""


def test_deepspeed_pipeline(star: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    lines, said = watched(star, tmp_path, DEEPSPEED_PIPELINE)
    assert "pipeline of DeepSpeed over gloo" in said and "STAR would save" not in said and "not measured any more" not in said, said
    slow = [x for x in lines if x["type"] == "verdict" and x["event"] == "slow" and x["slowdown"] > 2]
    assert slow and {x["worker"] for x in slow} == {1}, said


PIPELINE = """
import sys, time, torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank, step = torch.distributed.get_rank(), 0
class Block(nn.Linear):
    def forward(self, x):
        time.sleep(0.006 if rank == 0 else 0.003)  # this stage has more work
        if rank == 1 and step >= 40: time.sleep(0.03)
        return torch.relu(super().forward(x))
net = Block(16, 16)
schedule = ScheduleGPipe(PipelineStage(net, rank, 2, torch.device("cpu")), 2, loss_fn=nn.functional.cross_entropy)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100):
    opt.zero_grad()
    schedule.step(torch.randn(8, 16)) if rank == 0 else schedule.step(target=torch.arange(8))
    opt.step()
torch.distributed.destroy_process_group()
"""


def test_pipeline(star: str, tmp_path: pathlib.Path) -> None:
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(PIPELINE)
    run = f"RANK=0 {sys.executable} {script} & RANK=1 {sys.executable} {script}; code=$?; wait $! && exit $code"
    done = subprocess.run([star, "watch", "--out", str(out), "--", "sh", "-c", run], env={**os.environ, **ranks(2)[0]}, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "pipeline over gloo" in done.stderr and "the stages of a pipeline have different work" in done.stderr, done.stderr
    assert "STAR would save" not in done.stderr and "not measured any more" not in done.stderr, done.stderr
    lines = [json.loads(x) for x in (out / "run.jsonl").read_text().splitlines()]
    slow = [x for x in lines if x["type"] == "verdict" and x["event"] == "slow" and x["slowdown"] > 2]
    assert slow and {x["worker"] for x in slow} == {1}, done.stderr
    rows = [x for x in lines if x["type"] == "record" and x["step"] >= 50]
    waits = [statistics.median(x["push"] for x in rows if x["worker"] == w) for w in range(2)]
    assert waits[0] > waits[1], waits  # 0 waits for 1, and that is not its own time
