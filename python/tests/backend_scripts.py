"""Trainings as users write them for torch.distributed: test_backend_scripts.py runs them over Gloo and over star.

usage: backend_scripts.py BACKEND[,BACKEND] [NAME...]    prints a JSON object for each training: its name and, for each backend and rank, numbers or an error"""

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from typing import Any, Callable, Dict, List

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, WORLD = 4, 2
SCRIPTS: Dict[str, Callable[[], "List[float]"]] = {}


def script(f: Callable[[], "List[float]"]) -> Callable[[], "List[float]"]:
    SCRIPTS[f.__name__] = f
    return f


def model(seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 33), nn.ReLU(), nn.Linear(33, 4))


def batches(n: int = STEPS, rank: Any = None) -> "List[tuple[torch.Tensor, torch.Tensor]]":
    g = torch.Generator().manual_seed(100 + (dist.get_rank() if rank is None else rank))
    return [(torch.randn(8, 16, generator=g), torch.randint(0, 4, (8,), generator=g)) for _ in range(n)]


def loss(m: Any, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(m(batch[0]), batch[1])


def train(m: Any, optimizer: Any = None, data: Any = None) -> None:
    o = optimizer or torch.optim.AdamW(m.parameters(), lr=0.01)
    for b in data or batches():
        loss(m, b).backward()
        o.step()
        o.zero_grad()


def full(m: nn.Module) -> "List[float]":
    """Sums of all parameters."""
    return [float(getattr(p, "full_tensor", lambda p=p: p)().detach().double().abs().sum()) for p in m.parameters()]


@script
def ddp() -> "List[float]":
    m = DDP(model())
    train(m)
    return full(m)


@script
def ddp_no_sync() -> "List[float]":
    m = DDP(model())
    o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    for i, b in enumerate(batches(6)):
        with contextlib.nullcontext() if i % 3 == 2 else m.no_sync():
            loss(m, b).backward()
        if i % 3 == 2:
            o.step()
            o.zero_grad()
    return full(m)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.left, self.right = model(), nn.Linear(4, 4), nn.Linear(4, 4)
        self.left_is_used = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.left if self.left_is_used else self.right)(self.base(x))


@script
def ddp_unused_parameters() -> "List[float]":
    torch.manual_seed(5)
    inner = Branches()
    m = DDP(inner, find_unused_parameters=True)
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    for i, b in enumerate(batches()):
        inner.left_is_used = (i + dist.get_rank()) % 2 == 0
        loss(m, b).backward()
        o.step()
        o.zero_grad()
    return full(m)


@script
def ddp_static_graph() -> "List[float]":
    m = DDP(model(), static_graph=True, gradient_as_bucket_view=True)
    train(m)
    return full(m)


@script
def ddp_uneven_inputs() -> "List[float]":
    m = DDP(model())
    with m.join():
        train(m, torch.optim.SGD(m.parameters(), lr=0.1), batches(3 + 2 * dist.get_rank()))
    return full(m)


@script
def ddp_hook_fp16() -> "List[float]":
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook

    both = []
    for hook in (fp16_compress_hook, bf16_compress_hook):
        m = DDP(model())
        m.register_comm_hook(None, hook)
        train(m)
        both += full(m)
    return both


@script
def ddp_hook_powersgd() -> "List[float]":
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as p

    m = DDP(model())
    m.register_comm_hook(p.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2), p.powerSGD_hook)
    train(m)
    return full(m)


@script
def ddp_batchnorm_buffers() -> "List[float]":
    torch.manual_seed(4)
    m = DDP(nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)))
    train(m)
    return full(m) + [float(b.double().sum()) for b in m.buffers()]


@script
def ddp_compile() -> "List[float]":
    m = DDP(model())
    train(torch.compile(m, backend="aot_eager"), torch.optim.SGD(m.parameters(), lr=0.1))
    return full(m)


@script
def zero_redundancy() -> "List[float]":
    from torch.distributed.optim import ZeroRedundancyOptimizer

    m = DDP(model())
    train(m, ZeroRedundancyOptimizer(m.parameters(), torch.optim.AdamW, lr=0.01))
    return full(m)


@script
def local_sgd() -> "List[float]":
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    m = model()
    o, averager = torch.optim.SGD(m.parameters(), lr=0.1), PeriodicModelAverager(period=2, warmup_steps=0)
    for b in batches():
        loss(m, b).backward()
        o.step()
        averager.average_parameters(list(m.parameters()))
        o.zero_grad()
    return full(m)


def sharded(**options: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    m, mesh = model(), init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in m:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    fully_shard(m, mesh=mesh, **options)
    return m


@script
def fsdp2() -> "List[float]":
    m = sharded()
    train(m)
    return full(m)


@script
def fsdp2_mixed_precision() -> "List[float]":
    from torch.distributed.fsdp import MixedPrecisionPolicy

    m = sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32))
    train(m)
    return full(m)


@script
def fsdp2_offload() -> "List[float]":
    from torch.distributed.fsdp import CPUOffloadPolicy

    m = sharded(offload_policy=CPUOffloadPolicy(pin_memory=False))
    train(m)
    return full(m)


@script
def fsdp2_clip() -> "List[float]":
    m = sharded()
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    norms = []
    for b in batches():
        loss(m, b).backward()
        norm: Any = nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        norms.append(float(norm.full_tensor()))
        o.step()
        o.zero_grad()
    return full(m) + norms


@script
def fsdp1() -> "List[float]":
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    m = FSDP(model(), device_id=torch.device("cpu"), use_orig_params=True)
    train(m)
    with FSDP.summon_full_params(m):
        return full(m)


@script
def checkpoint() -> "List[float]":
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    m = sharded()
    o = torch.optim.AdamW(m.parameters(), lr=0.01)
    train(m, o)
    weights, state = get_state_dict(m, o)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
    after = sharded()
    other = torch.optim.AdamW(after.parameters(), lr=0.01)
    weights, state = get_state_dict(after, other)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
    set_state_dict(after, other, model_state_dict=weights, optim_state_dict=state)
    assert full(after) == full(m)
    train(after, other)
    return full(after)


@script
def tensor_parallel() -> "List[float]":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(3)
    m = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(m, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(m, torch.optim.SGD(m.parameters(), lr=0.1), batches(rank=0))
    return full(m)


@script
def pipeline() -> "List[float]":
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, world = dist.get_rank(), dist.get_world_size()
    layers = list(model())
    cut = [0, 2] + [len(layers)] * (world - 1)
    part = nn.Sequential(*layers[cut[rank] : cut[rank + 1]])
    stage = PipelineStage(part, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.cross_entropy)
    o = torch.optim.SGD(part.parameters(), lr=0.1)
    for x, y in batches(rank=0):
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=[])
        o.step()
        o.zero_grad()
    return full(part)


@script
def objects() -> "List[float]":
    rank, world = dist.get_rank(), dist.get_world_size()
    got: List[Any] = [None] * world
    dist.all_gather_object(got, {"rank": rank, "text": "x" * (rank * 1000)})
    said: List[Any] = [list(range(100)) if rank == 0 else None]
    dist.broadcast_object_list(said, src=0)
    mine: List[Any] = [None]
    dist.scatter_object_list(mine, [[r] for r in range(world)] if rank == 0 else None, src=0)
    return [float(g["rank"] + len(g["text"])) for g in got] + [float(sum(said[0])), float(mine[0][0])]


def rank(name: str, backend: str, number: int, folder: str) -> None:
    """One process of a training. It leaves its result in the folder."""
    said: Any
    try:
        dist.init_process_group(backend, init_method="file://%s/store" % folder, rank=number, world_size=WORLD)
        said = SCRIPTS[name]()
        dist.destroy_process_group()
    except Exception:
        said = traceback.format_exc()
    with open("%s/%d" % (folder, number), "w") as f:
        json.dump(said, f)


def run(name: str, backend: str) -> "List[Any]":
    """What each rank says: numbers, or an error. The ranks are forked, so PyTorch is imported once."""
    folder = tempfile.mkdtemp()
    pids = []
    for number in range(WORLD):
        pid = os.fork()
        if pid == 0:
            signal.alarm(180)  # a training that hangs; on a busy machine the one with torch.compile takes long
            try:
                rank(name, backend, number, folder)
            finally:
                os._exit(0)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    results = []
    for number, code in enumerate(codes):
        try:
            with open("%s/%d" % (folder, number)) as f:
                results.append(json.load(f))
        except FileNotFoundError:
            results.append("rank %d ended with %d" % (number, code))
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "star" in sys.argv[1]:
        importlib.import_module("star_train.backend")  # the wheel does this when PyTorch is imported
    for module in ("_dynamo", "distributed.fsdp", "distributed.checkpoint", "distributed.tensor.parallel", "distributed.pipelining"):
        importlib.import_module("torch." + module)  # once, and not in each fork
    for name in sys.argv[2:] or list(SCRIPTS):
        print(json.dumps({"name": name, "ranks": {backend: run(name, backend) for backend in sys.argv[1].split(",")}}), flush=True)
