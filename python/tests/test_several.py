"""Several models and optimizers in one process, which take turns: a GAN, one with a critic that makes several steps, an actor and a critic. In a ring, beside one process."""

import json
import subprocess
from typing import Any

import pytest
from conftest import PATIENCE, Job, python

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

MODEL = """
import torch, torch.nn as nn, torch.nn.functional as F

g = torch.Generator().manual_seed(3)
X, Z = torch.randn(320, 6, generator=g) @ torch.randn(6, 6, generator=g), torch.randn(320, 4, generator=g)

class Clamped:
    def __init__(self, d):
        self.d = d
    def __call__(self):
        for p in self.d.parameters():
            p.data.clamp_(-0.1, 0.1)

def nets(form):
    torch.manual_seed(5)
    if form == "actor":
        trunk = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        return nn.Sequential(trunk, nn.Linear(16, 3)), nn.Sequential(trunk, nn.Linear(16, 1))
    return (nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)),
            nn.Sequential(nn.Linear(4, 16, bias=False), nn.BatchNorm1d(16, momentum=None), nn.ReLU(), nn.Linear(16, 6)))

def optimizers(form, a, b):
    if form == "wgan":
        return torch.optim.RMSprop(a.parameters(), 5e-3), torch.optim.RMSprop(b.parameters(), 5e-3)
    if form == "actor":  # the trunk is the critic's
        return torch.optim.SGD(a[1].parameters(), 0.05, momentum=0.9), torch.optim.Adam(b.parameters(), 5e-3)
    return torch.optim.Adam(a.parameters(), 5e-3, betas=(0.5, 0.999)), torch.optim.Adam(b.parameters(), 2e-3, betas=(0.5, 0.999))

def first(form, a, b, i):  # the loss of what makes the first step of a batch
    x, z = X[i], Z[i]
    if form == "actor":
        values = b(x).squeeze(1)
        gain = x[:, 0] - values.detach()
        return -(torch.log_softmax(a(x), 1)[torch.arange(len(x)), (x[:, 1] > 0).long()] * gain).mean()
    if form == "wgan":
        return a(b(z).detach()).mean() - a(x).mean()
    return F.softplus(-a(x)).mean() + F.softplus(a(b(z).detach())).mean()

def second(form, a, b, i):
    x, z = X[i], Z[i]
    if form == "actor":
        return F.mse_loss(b(x).squeeze(1), x[:, 0])
    if form == "wgan":
        return -a(b(z)).mean()
    return F.softplus(-a(b(z))).mean()
"""

TRAIN = (
    MODEL
    + """
import json, os, sys, time
import star_train.torch as star

form, steps = sys.argv[1], int(sys.argv[2])
do = os.environ.get("DO", "")
a, b = nets(form)
optA, optB = optimizers(form, a, b)
critics = 3 if form == "wgan" else 1
models = {"a": a, "b": b} if form != "gan" else [a, b]
order = [optB, optA] if do == "other order" else [optA] * critics + [optB]
star.attach(models, order, own=do != "not own")
if do.startswith("schedule"):
    for o in (optA, optB)[: 1 if do == "schedule one" else 2]:
        star.schedule(torch.optim.lr_scheduler.StepLR(o, 3, 0.5), every=64)
if do == "schedule one":
    torch.optim.lr_scheduler.StepLR(optB, 3, 0.5)

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return len(X)
    def __getitem__(self, i): return i

loader = star.loader(Numbers(), batch_size=16, accumulate=critics, epochs=6)
made, part = 0, 0
for epoch in range(1000):
    for i in loader:
        if form == "actor" and do != "slow":
            print("loss", first(form, a, b, i).item())
        optA.zero_grad()
        first(form, a, b, i).backward()
        if do == "swapped" and made == 3:
            optB.step()
        optA.step()
        if form == "wgan":
            Clamped(a)()
        print("batch", json.dumps(i.tolist()), flush=True)
        part += 1
        if do == "left out" and made == 3:
            continue
        if do == "leave" and made == 3:
            sys.exit()
        if do == "die" and made == 3:
            print("dies", flush=True)
            os.kill(os.getpid(), 9)
        if do == "slow":
            time.sleep(0.03)
        if part == critics:
            part = 0
            optB.zero_grad()
            second(form, a, b, i).backward()
            optB.step()
            made += 1
            if do == "come" and made == 1:
                open("came", "w").close()
            if do == "wait" and not os.path.exists("came"):
                time.sleep(1)
print("steps", made, flush=True)
"""
)

RING = ("--arch", "allreduce")


def worker(job: Any, form: str, do: str = "", *flags: str, attach: bool = False) -> Any:
    return job.worker(job.script(TRAIN), form, "0", flags=(*RING, "--out", str(job.out), *flags), env={"DO": do}, attach=attach)


def batches(w: Any) -> Any:
    return [json.loads(line[6:]) for line in w.log.splitlines() if line.startswith("batch ")]


def compare(got: Any, form: str, parts: Any, scheduled: bool = False) -> None:
    """Checkpoint and one process on the batches of all workers."""
    own: Any = {}
    exec(MODEL, own)
    a, b = own["nets"](form)
    optA, optB = own["optimizers"](form, a, b)
    critics = 3 if form == "wgan" else 1
    start = [p.detach().clone() for p in [*a.parameters(), *b.parameters()]]
    rates = [[g["lr"] for g in o.param_groups] for o in (optA, optB)]
    used = 0
    for k, batch in enumerate(zip(*parts)):
        if scheduled and k % critics == 0:
            for o, rs in zip((optA, optB), rates):
                for g, r in zip(o.param_groups, rs):
                    g["lr"] = r * 0.5 ** (used // 64 // 3)
        used += sum(map(len, batch))
        n = sum(map(len, batch))
        optA.zero_grad()
        sum(len(i) / n * own["first"](form, a, b, torch.tensor(i)) for i in batch).backward()
        optA.step()
        if form == "wgan":
            own["Clamped"](a)()
        if (k + 1) % critics == 0:
            optB.zero_grad()
            sum(len(i) / n * own["second"](form, a, b, torch.tensor(i)) for i in batch).backward()
            optB.step()
    seen = 0
    names = ("0.", "1.") if form == "gan" else ("a.", "b.")
    for name, model in zip(names, (a, b)):
        for key, want in model.state_dict().items():
            if name + key not in got or "running" in key or "num_batches" in key:  # a shared one has one name; statistics are each worker's
                continue
            seen += 1
            scale = max(float(want.abs().max()), 1e-3)
            error = float((got[name + key] - want).abs().max()) / scale
            assert error < 2e-5, "%s is off by %.2g of its largest element" % (name + key, error)
    for k, model in enumerate((a, b)):
        moved = max(float((p - was).detach().abs().max()) for p, was in zip(model.parameters(), start[k * len(list(a.parameters())) :]))
        assert moved > 0.01, "model %d moved by %.2g" % (k, moved)
    assert seen >= 6


def ends(w: Any) -> int:
    return int(w.log.split("steps ")[-1].split()[0])


@pytest.mark.parametrize("form, do", [("gan", "slow"), ("wgan", ""), ("actor", "schedule")])
def test_like_one_process(job: Any, form: str, do: str) -> None:
    """Two workers, one of them possibly slow, make the parameters of one process; a batch of 16 samples of each counts once, whatever steps it has."""
    job.start("--epochs", "6", *RING, *(["--eval-every", "0.5", "--checkpoint-every", "1s"] if do == "slow" else []))
    ws = [worker(job, form, do if k == 0 or do != "slow" else "") for k in range(2)]
    job.finish()
    assert job.lines("summary")[-1]["samples"] == 6 * 320
    parts = [batches(w) for w in ws]
    assert sum(len(i) for p in parts for i in p) == 6 * 320
    if form != "wgan":
        assert sorted(i for k in range(10) for p in parts for i in p[k]) == list(range(320))  # each sample once in an epoch
    compare(job.parameters(), form, parts, do == "schedule")


def test_torchrun(job: Any) -> None:
    """Python starts its agent, as under torchrun."""
    job.start("--steps", "20", *RING)
    ws = [worker(job, "gan", attach=True) for _ in range(2)]
    job.finish()
    assert [ends(w) for w in ws] == [20, 20]
    compare(job.parameters(), "gan", [batches(w) for w in ws])


def test_dies_within_a_batch(job: Any) -> None:
    """A worker dies between two steps of a batch: the others go on with theirs, all in the same step, and with the same parameters at the end, or the coordinator ends the job."""
    ps = job.start("--epochs", "6", *RING, "--eval-every", "1", workers=3)
    ws = [worker(job, "gan", "die" if k == 1 else "") for k in range(3)]
    job.finish(ps, ws[0], ws[2])
    assert "dies" in ws[1].log
    r = job.lines("summary")[-1]
    assert r["samples"] == 6 * 320
    assert len({ends(ws[0]), ends(ws[2])}) == 1


def test_joiner(job: Any) -> None:
    """A worker that comes in the middle begins with the first step of a batch, and has what the optimizers remember."""
    ps = job.start("--epochs", "40", *RING, "--max-workers", "3", "--eval-every", "20")
    ws = [worker(job, "gan", "wait") for _ in range(2)]
    ws[0].until("joined")
    c = worker(job, "gan", "come")
    job.finish(ps, *ws, c)
    assert ends(c) > 20 and "received the parameters" in c.log
    assert job.lines("summary")[-1]["samples"] == 320 * 40


def test_resume(job: Any, star: str, tmp_path: Any) -> None:
    """10 batches, and 10 more from the checkpoint, make the parameters of 20 batches, to the bit. One that ended within a batch is not gone on from."""
    ends = []
    for name, legs in (("whole", [()]), ("halves", [(), ("--resume",)])):
        (tmp_path / name).mkdir()
        for leg in legs:
            j = Job(star, tmp_path / name)
            try:
                flags = ("--resume", str(j.out)) if leg else ()
                j.start("--steps", "20" if name == "whole" or leg else "10", *RING, *flags)
                for _ in range(2):
                    worker(j, "actor", "", *flags)
                j.finish()
                ends.append(j.parameters())
            finally:
                j.close()
    whole, half, halves = ends
    for k, v in whole.items():
        assert torch.equal(v, halves[k]), k
        assert not torch.equal(v, half[k]), k


def test_leaves_within_a_batch(job: Any) -> None:
    """The loop of the last worker ends between two steps: the job is saved, and its checkpoint says why it cannot be gone on from."""
    ps = job.start("--epochs", "6", *RING, workers=1)
    job.finish(ps, worker(job, "gan", "leave"))
    job.start("--epochs", "6", *RING, "--resume", str(job.out), workers=1)
    w = worker(job, "gan", "", "--resume", str(job.out))
    assert w.wait() == 78 and "or ended within a batch" in w.log, w.log


REFUSED = {
    "not own": ((), 2, "needs own=True, and the job --arch allreduce"),
    "swapped": (RING, 2, "step 1 of a batch is that of optimizer 0 (Adam), and optimizer 1 (Adam) makes it"),
    "left out": (RING, 2, "after 1 of the 2 steps of the one before"),
    "schedule one": (RING, 2, "a scheduler of torch.optim.lr_scheduler was made"),
    "servers": ((), 78, "needs --arch allreduce"),
    "queue": ((*RING, "--mode", "ssgd queue=4"), 78, "use --mode ssgd or auto"),
    "codec": (RING, 2, "remove --compress"),
}


@pytest.mark.parametrize("do", REFUSED)
def test_refused(job: Any, do: str) -> None:
    flags, code, text = REFUSED[do]
    job.start("--epochs", "1", *flags, workers=1)
    more = ("--compress", "int8") if do == "codec" else ()
    w = job.worker(job.script(TRAIN), "gan", "0", flags=(*flags[:2], "--out", str(job.out), *more), env={"DO": do})
    assert w.wait() == code and text in w.log, w.log


def test_other_order(job: Any) -> None:
    """Workers with other turns of their optimizers."""
    job.start("--epochs", "1", *RING)
    a = worker(job, "gan")
    a.until("joined")
    b = worker(job, "gan", "other order")
    assert b.wait() == 78 and "workers disagree on the optimiser" in b.log, b.log


def test_without_a_job(job: Any) -> None:
    """The same script alone is plain PyTorch."""
    script = job.script(TRAIN.replace("range(1000)", "range(2)"))
    p = subprocess.run([python(), str(script), "gan", "0"], env={**job.env, "STAR_OFF": "1"}, cwd=job.folder, capture_output=True, text=True, timeout=PATIENCE)
    assert p.returncode == 0 and "steps 40" in p.stdout, p.stderr


def test_one_step_for_all(job: Any) -> None:
    """What the refusal advises for parameter servers: one module, one optimizer with two groups, and one step of the sum of the losses."""
    script = job.script(
        MODEL
        + """
import star_train.torch as star
a, b = nets("actor")
opt = star.attach({"a": a, "b": b}, torch.optim.Adam([{"params": a[1].parameters(), "lr": 0.02}, {"params": b.parameters()}], 5e-3))
for i in star.loader(torch.utils.data.TensorDataset(torch.arange(320)), 16):
    i = i[0]
    opt.zero_grad()
    (first("actor", a, b, i) + second("actor", a, b, i)).backward()
    opt.step()
"""
    )
    job.start("--epochs", "1", "--mode", "ssgd")
    for _ in range(2):
        job.worker(script)
    job.finish()
    assert {"a.0.0.weight", "a.1.weight", "b.1.weight"} <= set(job.parameters())
