"""Other trainers load checkpoints of STAR with torch.distributed.checkpoint, sharded or not, and STAR resumes from theirs."""

import json
import os
import shutil
import subprocess

import conftest
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
    pytest.skip("fully_shard is public since PyTorch 2.6", allow_module_level=True)

from star_train import _link, dcp  # noqa: E402

MODEL = """
import torch, torch.nn as nn, torch.nn.functional as F
def build(width=7):
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 3))
def data():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(480, 6, generator=g)
    return x, x[:, :3].argmax(1)
OPTIMIZERS = {
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), 0.01, weight_decay=0.05),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), 0.02, momentum=0.9),
}
"""

TRAIN = (
    MODEL
    + """
import sys
import star_train.torch as star
model = build()
opt = star.attach(model, OPTIMIZERS[sys.argv[1]](model))
for xs, ys in star.loader(torch.utils.data.TensorDataset(*data()), batch_size=12):
    opt.zero_grad()
    F.cross_entropy(model(xs), ys).backward()
    opt.step()
"""
)

# Loads a checkpoint on some ranks, makes a step on each, and saves it with DCP; rank 0 writes what it had before the step.
SHARDED = (
    MODEL
    + """
import os, sys
import torch.distributed as dist, torch.distributed.checkpoint as pt
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import fully_shard
from star_train import dcp
place, kind, saved, before = sys.argv[1:]
dist.init_process_group("gloo")
model = build()
for layer in (model[0], model[3]):
    fully_shard(layer)
fully_shard(model)
opt = OPTIMIZERS[kind](model)
dcp.load(place, model, opt)
full = get_state_dict(model, opt, options=StateDictOptions(full_state_dict=True, cpu_offload=True, flatten_optimizer_state_dict=True))
if dist.get_rank() == 0:
    torch.save(full, before)
x, y = data()
F.cross_entropy(model(x), y).backward()
opt.step()
models, optims = get_state_dict(model, opt)
pt.save({"model": models, "optim": optims}, checkpoint_id=saved)
full = get_state_dict(model, opt, options=StateDictOptions(full_state_dict=True, cpu_offload=True, flatten_optimizer_state_dict=True))
if dist.get_rank() == 0:
    torch.save(full, before + ".after")
dist.barrier()
dist.destroy_process_group()
"""
)


@pytest.fixture(scope="module", params=["adamw", "momentum"])
def trained(request, star, tmp_path_factory):
    """The folder of a job with some steps, two shards."""
    job = conftest.Job(star, tmp_path_factory.mktemp(request.param))
    script = job.script(TRAIN)
    ps = job.start("--epochs", "2", "--mode", "ssgd", "--shards", "2")
    workers = [job.worker(script, request.param) for _ in range(2)]
    job.finish(ps, *workers)
    yield job, request.param
    job.close()


def build(kind, width=7):
    names = {}
    exec(MODEL, names)
    model = names["build"](width)
    return model, names["OPTIMIZERS"][kind](model)


def same(got, want):
    assert got.keys() == want.keys()
    for k, v in want.items():
        if isinstance(v, torch.Tensor):
            assert torch.equal(got[k], v), k


@pytest.fixture
def program(star, monkeypatch):
    monkeypatch.setenv("STAR_AGENT", star)


def test_load(trained):
    job, kind = trained
    model, opt = build(kind)
    manifest = dcp.load(job.out, model, opt)
    steps = manifest["version"]
    assert steps == job.lines("fire")[-1]["version"] > 10
    same({k: v for k, v in model.state_dict().items()}, job.parameters())
    for p in model.parameters():
        state = opt.state[p]
        if kind == "adamw":
            assert state["step"] == steps and state["exp_avg"].abs().sum() > 0 and state["exp_avg_sq"].min() >= 0
        else:
            assert state["momentum_buffer"].abs().sum() > 0
    assert opt.param_groups[0]["lr"] == (0.01 if kind == "adamw" else 0.02)


@pytest.mark.parametrize("ranks", [2, 3])
def test_sharded_there_and_back(trained, ranks, tmp_path, star, program):
    job, kind = trained
    script = tmp_path / "sharded.py"
    script.write_text(SHARDED)
    before, saved = tmp_path / "before.pt", tmp_path / "saved"
    env = {**job.env, "GLOO_SOCKET_IFNAME": "lo"}
    command = [conftest.python(), "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--master_port", "0", "--standalone", str(script)]
    subprocess.run([*command, str(job.out), kind, str(saved), str(before)], check=True, env=env, timeout=conftest.PATIENCE)
    model, opt = build(kind)
    dcp.load(job.out, model, opt)
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(flatten_optimizer_state_dict=True)
    for got, want in zip(torch.load(before), get_state_dict(model, opt, options=options)):
        same(got, want)

    # Back: the same numbers, and a job goes on with them.
    back = dcp.convert(str(saved), str(tmp_path / "back"), like=str(job.out))
    assert subprocess.run([star, "checkpoint", "verify", back]).returncode == 0
    dcp.load(back, model, opt)
    after = torch.load(str(before) + ".after")
    for got, want in zip(get_state_dict(model, opt, options=options), after):
        same(got, want)
    if ranks == 2:
        again = conftest.Job(star, tmp_path)
        ps = again.start("--epochs", "3", "--mode", "ssgd", "--resume", str(tmp_path / "back"))
        try:
            again.finish(ps, *[again.worker(again.script(TRAIN), kind) for _ in range(2)])
            end = again.checkpoint()
        finally:
            again.close()
        manifest = json.loads((end / "manifest.json").read_text())["manifest"]
        made = manifest["version"] - 1  # a converted checkpoint has version 1
        assert made == again.lines("fire")[-1]["version"] - 1 > 10
        if kind == "adamw":
            assert manifest["steps"] == dcp.StarReader(back).manifest["steps"] + made


def test_safetensors_of_dcp(trained, tmp_path, program):
    pytest.importorskip("safetensors")
    hf = pytest.importorskip("torch.distributed.checkpoint.hf_storage")
    job, kind = trained
    model, _ = build(kind)
    dcp.load(job.out, model)
    import torch.distributed.checkpoint as pt

    pt.save(model.state_dict(), storage_writer=hf.HuggingFaceStorageWriter(str(tmp_path / "hf")), no_dist=True)
    with pytest.raises(_link.StarError, match="its names are .*; give model= and optim="):
        dcp.convert(str(tmp_path / "hf"), str(tmp_path / "back"), like=str(job.out))
    dcp.convert(str(tmp_path / "hf"), str(tmp_path / "back"), like=str(job.out), model="")
    other, opt = build(kind)
    dcp.load(tmp_path / "back", other, opt)
    same(other.state_dict(), model.state_dict())
    assert all(not v.any() for s in opt.state.values() for v in s.values())


def test_reader_with_any_names(trained):
    """As a trainer with states of its own uses it."""
    import torch.distributed.checkpoint as pt

    job, kind = trained
    model, _ = build(kind)
    state = model.state_dict()
    pt.load(state, storage_reader=dcp.StarReader(job.out, model=""), no_dist=True)
    same(state, job.parameters())
    column = {"0.weight": torch.zeros(7, 6)}
    pt.load(column, storage_reader=dcp.StarReader(job.out, model=""), no_dist=True)
    part = dcp.StarReader(job.out, model="")._read("0.weight", (2, 3), (4, 2))
    assert torch.equal(part, column["0.weight"][2:6, 3:5])


def test_errors(trained, tmp_path, program):
    job, kind = trained
    model, opt = build(kind)
    with pytest.raises(_link.StarError, match="has no checkpoint of STAR") as e:
        dcp.load(tmp_path, model)
    assert e.value.code == 66
    with pytest.raises(_link.StarError, match=r"model.0.weight in the shape \[7, 6\], this model in \[8, 6\]") as e:
        dcp.load(job.out, build(kind, 8)[0])
    assert e.value.code == 78
    with pytest.raises(_link.StarError, match="has no model.9.weight: it is of another model"):
        dcp.load(
            job.out, torch.nn.Sequential(*model, torch.nn.Identity(), torch.nn.Identity(), torch.nn.Identity(), torch.nn.Identity(), torch.nn.Identity(), torch.nn.Linear(3, 3))
        )
    with pytest.raises(_link.StarError, match="which this model and optimizer have not"):
        dcp.load(job.out, model[:2])
    other = "momentum" if kind == "adamw" else "adamw"
    with pytest.raises(_link.StarError, match="has no optim.state.0.weight.*its optimizer is"):
        dcp.load(job.out, *build(other))
    with pytest.raises(_link.StarError, match="neither .metadata nor"):
        dcp.convert(str(tmp_path), str(tmp_path / "back"), like=str(job.out))

    damaged = tmp_path / "damaged"
    shutil.copytree(job.checkpoint(), damaged)
    os.truncate(damaged / "shard-00001.safetensors", os.path.getsize(damaged / "shard-00001.safetensors") // 2)
    with pytest.raises(_link.StarError, match="bytes of .* are missing") as e:
        dcp.load(damaged, model, opt)
    assert e.value.code == 65
    os.remove(damaged / "shard-00001.safetensors")
    with pytest.raises(_link.StarError, match="shard-00001.safetensors is missing") as e:
        dcp.load(damaged, model, opt)
    assert e.value.code == 66
