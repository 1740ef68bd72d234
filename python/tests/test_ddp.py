"""Scripts of DistributedDataParallel that exchange gradients in the job's ring."""

import ast
import atexit
import json
import os
import pathlib
import socket
import subprocess
import time
from typing import Any, Dict, List

import pytest
from conftest import PATIENCE, ROOT, python

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no Gloo", allow_module_level=True)

SCRIPT = ROOT / "examples" / "pytorch" / "ddp.py"
SCENARIOS = pathlib.Path(__file__).with_name("ddp_scenarios.py")


def ranks(n: int) -> List[Dict[str, str]]:
    """The environment of each rank. The port stays taken until the end of the tests: the listener sets SO_REUSEADDR, too, and no other process gets it."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 0))
    atexit.register(s.close)
    port = s.getsockname()[1]
    return [dict(RANK=str(r), WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo") for r in range(n)]


def test_like_gloo(job: Any) -> None:
    """The same parameters as DistributedDataParallel alone makes."""
    args = ("--count", "400", "--epochs", "3")
    plain = [subprocess.Popen([python(), str(SCRIPT), "--plain", *args, "--save", str(job.folder / "plain.pt")], env={**job.env, **e}) for e in ranks(2)]
    assert [p.wait(PATIENCE) for p in plain] == [0, 0]
    ps = job.start("--arch", "allreduce", "--mode", "ssgd", "--epochs", "3")
    ws = [job.worker(SCRIPT, *args, "--save", str(job.folder / ("own%s.pt" % e["RANK"])), flags=("--arch", "allreduce", "--out", str(job.out)), env=e) for e in ranks(2)]
    job.finish(ps, *ws)
    want, a, b = (torch.load(job.folder / n) for n in ("plain.pt", "own0.pt", "own1.pt"))
    for k, v in want.items():
        assert torch.allclose(v, a[k], rtol=1e-4, atol=1e-6) and torch.equal(a[k], b[k]), k
    assert job.lines("summary")[-1]["samples"] == 1200
    saved = job.parameters()
    assert sorted(saved) == sorted(a) and all(torch.equal(saved[k], a[k]) for k in a)


def scenarios() -> List[str]:
    """Names of the functions that ddp_scenarios.py has for this PyTorch."""
    names = []
    for node in ast.parse(SCENARIOS.read_text()).body:
        inner = [node] if not isinstance(node, ast.If) or torch.__version__.startswith("1.") else node.body
        names += [f.name for f in inner if isinstance(f, ast.FunctionDef) and any(isinstance(d, ast.Name) and d.id == "scenario" for d in f.decorator_list)]
    return names


@pytest.fixture(scope="module")
def outcomes(star: str, tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Dict[str, Any]]:
    """All scenarios, in one process that has PyTorch loaded."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("STAR_")}
    env.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    if not os.environ.get("STAR_TEST_INSTALLED"):
        env["PYTHONPATH"] = str(ROOT / "python")
    folder = tmp_path_factory.mktemp("ddp")
    args = [python(), str(SCENARIOS), star, str(folder)]
    out = subprocess.run(args, env=env, stdout=subprocess.PIPE, text=True, timeout=8 * PATIENCE)
    assert out.returncode == 0
    return {d["name"]: d for d in map(json.loads, out.stdout.splitlines())}


@pytest.mark.parametrize("name", scenarios())
def test_scenario(outcomes: Dict[str, Dict[str, Any]], name: str) -> None:
    """The parameters that DistributedDataParallel makes over Gloo, and all of the script is run."""
    assert outcomes[name]["codes"] == [0, 0] and outcomes[name]["job"] == 0, outcomes[name]["why"]


def test_goes_on_without_the_dead(job: Any) -> None:
    """A rank that is killed is left out, where Gloo would end the others. The script says when it is over, whatever the job was told."""
    args = ("--count", "1200", "--epochs", "4")
    ps = job.start("--arch", "allreduce", "--mode", "ssgd", "--steps", "20", workers=3)
    flags = ("--arch", "allreduce", "--out", str(job.out))
    ws = [job.worker(SCRIPT, *args, *(("--die", "10") if i == 2 else ()), flags=flags, env=e) for i, e in enumerate(ranks(3))]
    assert ws[2].wait() != 0
    for w in ws[:2]:
        assert w.wait() == 0 and "epoch 3," in w.log, w.log
    assert ps.wait() == 0
    assert job.lines("summary")[-1]["updates"] == 4 * 1200 // 3 // 20


LOOP = """
import hashlib, os, sys, time
import torch, torch.distributed as dist, torch.nn as nn
import star_train.torch as star

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024)), broadcast_buffers=False)
opt = star.ddp_hook(model, torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9), samples=6400, batch_size=4)
g = torch.Generator().manual_seed(rank)
for step in range(int(sys.argv[1])):
    opt.zero_grad()
    model(torch.randn(4, 64, generator=g)).square().mean().backward()
    opt.step()
    print("step %d" % step, flush=True)
data = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print("made %d %s" % (step + 1, hashlib.sha256(data).hexdigest()), flush=True)
"""


@pytest.mark.parametrize("behind", [0.0, 0.003, 0.007])
def test_killed_in_an_exchange(job: Any, behind: float) -> None:
    """Whatever a rank is doing when it is killed, the others make the same steps, of the same means."""
    script = job.script(LOOP)
    ps = job.start("--arch", "allreduce", workers=3)
    ws = [job.worker(script, "60", flags=("--arch", "allreduce", "--out", str(job.out)), env=e) for e in ranks(3)]
    ws[2].until("step 20")
    time.sleep(behind)
    ws[2].kill()
    for w in ws[:2]:
        assert w.wait() == 0, w.log
    made = [w.log.split("made ")[-1].split()[:2] for w in ws[:2]]
    assert made[0][0] == "60" and made[0] == made[1], made
    assert ps.wait() == 0


SAMPLES = """
import sys, torch, torch.distributed as dist, torch.nn as nn
import star_train.torch as star

samples, left = int(sys.argv[1]), sys.argv[2] == "1"
dist.init_process_group("gloo")
data = torch.utils.data.TensorDataset(torch.randn(samples, 8, generator=torch.Generator().manual_seed(1)))
sampler = torch.utils.data.distributed.DistributedSampler(data, 2, dist.get_rank())
loader = torch.utils.data.DataLoader(data, 20, sampler=sampler, drop_last=left)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 3), broadcast_buffers=False)
opt = star.ddp_hook(model, torch.optim.SGD(model.parameters(), 0.1), samples=samples, batch_size=20, epochs=3)
steps = 0
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
        steps += 1
print("did all %d of %d" % (steps, 3 * len(loader)), flush=True)
"""


@pytest.mark.parametrize("samples,left", [(201, 0), (239, 1), (210, 1)])
def test_samples_are_for_progress(job: Any, samples: int, left: int) -> None:
    """A data set that is no multiple of ranks and batches: the script ends where it ends, and the code after its loop is run."""
    script = job.script(SAMPLES)
    ps = job.start("--arch", "allreduce", "--epochs", "1")
    ws = [job.worker(script, str(samples), str(left), flags=("--arch", "allreduce", "--out", str(job.out)), env=e) for e in ranks(2)]
    for w in ws:
        assert w.wait() == 0, w.log
        did, of = w.log.split("did all ")[-1].split()[0::2][:2]
        assert did == of
    assert ps.wait() == 0 and job.checkpoint().exists()


def test_refused(job: Any) -> None:
    """What is no mean over all workers, what float32 does not hold, and a second call."""
    script = job.script(LOOP)
    ps = job.start("--arch", "allreduce", "--mode", "x=1 micro=4 cap=1s")
    ws = [job.worker(script, "5", flags=("--arch", "allreduce", "--out", str(job.out)), env=e) for e in ranks(2)]
    assert ps.wait() == 78 and "use --mode ssgd or auto" in ps.log
    for w in ws:
        assert w.wait() != 0
    double = job.script(LOOP.replace("rank = dist", "torch.set_default_dtype(torch.float64); rank = dist"), "double.py")
    twice = job.script(LOOP.replace("g = torch", "star.ddp_hook(model, opt, samples=1); g = torch"), "twice.py")
    for script, why in ((double, "the job exchanges float32, which does not hold it"), (twice, "was called before in this process")):
        ps = job.start("--arch", "allreduce", workers=1)
        w = job.worker(script, "5", flags=("--arch", "allreduce", "--out", str(job.out)), env=ranks(1)[0])
        assert w.wait() != 0 and why in w.log, w.log
        ps.kill()
