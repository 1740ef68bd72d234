"""Scripts of DistributedDataParallel, each over Gloo and then with star.ddp_hook in the same processes: parameters are compared.

usage: ddp_scenarios.py STAR FOLDER [NAME...]    prints a line of JSON for each: {"name": …, "codes": […], "why": "…"}
"""

import atexit
import contextlib
import copy
import ctypes
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

import star_train.torch as star

SCENARIOS: Dict[str, Callable[["Rank"], nn.Module]] = {}
OLD = torch.__version__.startswith("1.")
RANKS = 2


def scenario(f: Callable[["Rank"], nn.Module]) -> Callable[["Rank"], nn.Module]:
    SCENARIOS[f.__name__] = f
    return f


def net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


class Rank:
    """One run of a scenario in one process."""

    def __init__(self, rank: int, on: bool, folder: str) -> None:
        self.rank, self.on, self.folder = rank, on, folder

    def wrap(self, model: nn.Module, **kwargs: Any) -> Any:
        kwargs.setdefault("broadcast_buffers", False)
        return DDP(model, **kwargs)

    def hook(self, model: Any, optimizer: Any) -> Any:
        return star.ddp_hook(model, optimizer, samples=320, batch_size=16) if self.on else optimizer

    def batches(self, n: int = 12) -> List[Tuple[torch.Tensor, torch.Tensor]]:
        """Those of this rank, other than the other one's."""
        g = torch.Generator().manual_seed(100 + self.rank)
        xs = [torch.randn(16, 6, generator=g) for _ in range(n)]
        return [(x, x[:, :3].argmax(1)) for x in xs]

    def train(self, model: Any, optimizer: Any, batches: Any = None) -> nn.Module:
        for x, y in self.batches() if batches is None else batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return model

    def scaled(self, make: Callable[[Any], Any], bad: int = -1, clip: bool = False) -> nn.Module:
        model = self.wrap(net())
        optimizer = self.hook(model, make(model.parameters()))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if not OLD else Scaler(1024.0)
        for i, (x, y) in enumerate(self.batches()):
            optimizer.zero_grad()
            loss = scaler.scale(F.cross_entropy(model(x), y))
            (loss * float("inf") if i == bad and self.rank == 1 else loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        return model


class Scaler:
    """What GradScaler does, on a processor, for PyTorch 1.13, which has none there."""

    def __init__(self, scale: float) -> None:
        self.by, self.found = scale, False

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.by

    def unscale_(self, optimizer: Any) -> None:
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        for g in grads:
            g.mul_(1 / self.by)
        self.found, self.done = not all(bool(torch.isfinite(g).all()) for g in grads), True

    done = False

    def step(self, optimizer: Any) -> None:
        if not self.done:
            self.unscale_(optimizer)
        if not self.found:
            optimizer.step()

    def update(self) -> None:
        self.done, self.by = False, self.by / 2 if self.found else self.by


@scenario
def plain_sgd(r: Rank) -> nn.Module:
    model = r.wrap(net())
    return r.train(model, r.hook(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)))


@scenario
def scaler_sgd(r: Rank) -> nn.Module:
    return r.scaled(lambda p: torch.optim.SGD(p, 0.1))


@scenario
def scaler_adamw_overflow(r: Rank) -> nn.Module:
    return r.scaled(lambda p: torch.optim.AdamW(p, 1e-2), bad=3)


@scenario
def scaler_rmsprop_clip(r: Rank) -> nn.Module:
    return r.scaled(lambda p: torch.optim.RMSprop(p, 1e-3), clip=True)


@scenario
def scaler_adadelta(r: Rank) -> nn.Module:
    return r.scaled(lambda p: torch.optim.Adadelta(p, 0.5))


@scenario
def scaler_asgd(r: Rank) -> nn.Module:
    return r.scaled(lambda p: torch.optim.ASGD(p, 0.05))


if not OLD:

    @scenario
    def scaler_fused_sgd(r: Rank) -> nn.Module:
        return r.scaled(lambda p: torch.optim.SGD(p, 0.1, fused=True), bad=5)

    @scenario
    def scaler_fused_adamw(r: Rank) -> nn.Module:
        return r.scaled(lambda p: torch.optim.AdamW(p, 1e-2, fused=True))


@scenario
def bucket_view(r: Rank) -> nn.Module:
    model = r.wrap(net(), gradient_as_bucket_view=True)
    return r.train(model, r.hook(model, torch.optim.SGD(model.parameters(), 0.1)))


@scenario
def many_buckets(r: Rank) -> nn.Module:
    torch.manual_seed(5)
    wide = nn.Sequential(nn.Linear(6, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 3))
    model = r.wrap(wide, bucket_cap_mb=0.01)
    return r.train(model, r.hook(model, torch.optim.SGD(model.parameters(), 0.1)))


class Spare(nn.Module):
    """A layer that is used where the second argument says so."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.a, self.b, self.spare = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, use: bool = False) -> Any:
        h = F.relu(self.a(x))
        return self.spare(h) if use else self.b(h)


@scenario
def unused_adamw(r: Rank) -> nn.Module:
    """What no rank has used does not move, by weight decay neither."""
    model = r.wrap(Spare(), find_unused_parameters=True)
    r.train(model, r.hook(model, torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1)))
    assert model.module.spare.weight.grad is None
    return model


def used(r: Rank, when: Callable[[int], bool]) -> nn.Module:
    model = r.wrap(Spare(), find_unused_parameters=True)
    optimizer = r.hook(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    for i, (x, y) in enumerate(r.batches()):
        optimizer.zero_grad()
        F.cross_entropy(model(x, when(i)), y).backward()
        optimizer.step()
    return model


@scenario
def unused_sometimes(r: Rank) -> nn.Module:
    return used(r, lambda i: i % 3 == 0)


@scenario
def unused_on_one_rank(r: Rank) -> nn.Module:
    return used(r, lambda i: r.rank == 0)


@scenario
def optimizer_of_a_part(r: Rank) -> nn.Module:
    model = r.wrap(net())
    return r.train(model, r.hook(model, torch.optim.SGD(model.module[2].parameters(), 0.1)))


@scenario
def two_optimizers(r: Rank) -> nn.Module:
    model = r.wrap(net())
    pair = [torch.optim.SGD(model.module[2].parameters(), 0.1), torch.optim.Adam(model.module[0].parameters(), 1e-2)]
    assert r.hook(model, pair) is pair
    for x, y in r.batches():
        for o in pair:
            o.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for o in pair:
            o.step()
    return model


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic, self.generator = net(), nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))

    def forward(self, x: Optional[torch.Tensor], z: torch.Tensor) -> torch.Tensor:
        """The loss of the critic, or, without x, that of the generator."""
        fake = self.generator(z)
        if x is None:
            return F.softplus(-self.critic(fake)).mean()
        return F.softplus(-self.critic(x)).mean() + F.softplus(self.critic(fake.detach())).mean()


@scenario
def gan(r: Rank) -> nn.Module:
    model = r.wrap(Gan(), find_unused_parameters=True)
    critic, generator = r.hook(model, [torch.optim.Adam(m.parameters(), 5e-3) for m in (model.module.critic, model.module.generator)])
    g = torch.Generator().manual_seed(7 + r.rank)
    for x, _ in r.batches():
        z = torch.randn(16, 4, generator=g)
        critic.zero_grad()
        model(x, z).backward()
        critic.step()
        generator.zero_grad()
        model(None, z).backward()
        generator.step()
    return model


@scenario
def uneven_inputs(r: Rank) -> nn.Module:
    model = r.wrap(net())
    optimizer = r.hook(model, torch.optim.SGD(model.parameters(), 0.1))
    with model.join():
        r.train(model, optimizer, r.batches(4 + 3 * r.rank))
    return model


@scenario
def uneven_inputs_divided_by_those_left(r: Rank) -> nn.Module:
    model = r.wrap(net())
    optimizer = r.hook(model, torch.optim.SGD(model.parameters(), 0.1))
    with model.join(divide_by_initial_world_size=False):
        r.train(model, optimizer, r.batches(4 + 3 * r.rank))
    return model


def parts(r: Rank, quiet: bool) -> nn.Module:
    model = r.wrap(net())
    optimizer = r.hook(model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9))
    b = r.batches()
    for (x, y), (v, w) in zip(b[::2], b[1::2]):
        optimizer.zero_grad()
        with model.no_sync() if quiet else contextlib.nullcontext():
            (F.cross_entropy(model(x), y) / 2).backward()
        (F.cross_entropy(model(v), w) / 2).backward()
        optimizer.step()
    return model


@scenario
def no_sync(r: Rank) -> nn.Module:
    return parts(r, True)


@scenario
def accumulation_without_no_sync(r: Rank) -> nn.Module:
    return parts(r, False)


@scenario
def skipped_step(r: Rank) -> nn.Module:
    model = r.wrap(net())
    optimizer = r.hook(model, torch.optim.SGD(model.parameters(), 0.1))
    for i, (x, y) in enumerate(r.batches()):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if i % 4 != 2:
            optimizer.step()
    return model


@scenario
def infinite_gradient_once(r: Rank) -> nn.Module:
    model = r.wrap(net())
    optimizer = r.hook(model, torch.optim.SGD(model.parameters(), 0.1))
    for i, (x, y) in enumerate(r.batches()):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        (loss * float("inf") if i == 3 and r.rank == 1 else loss).backward()
        if all(bool(torch.isfinite(p.grad).all()) for p in model.parameters()):
            optimizer.step()
    return model


@scenario
def changed_in_place(r: Rank) -> nn.Module:
    """Clipped weights, a roll-back, and tensors that take the place of parameters."""
    model = r.wrap(net())
    optimizer = r.hook(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    b = r.batches()
    r.train(model, optimizer, b[:3])
    state = copy.deepcopy(model.state_dict())
    r.train(model, optimizer, b[3:6])
    model.load_state_dict(state)
    for p in model.parameters():
        p.data.clamp_(-0.3, 0.3)
        p.data = p.data.clone() * 0.9
    return r.train(model, optimizer, b[6:])


@scenario
def lbfgs(r: Rank) -> nn.Module:
    model = r.wrap(net())
    optimizer = r.hook(model, torch.optim.LBFGS(model.parameters(), 0.1, max_iter=3))
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(9))
    y = x[:, :3].argmax(1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return model


@scenario
def copies(r: Rank) -> nn.Module:
    """The wrapped model can be saved and copied; the copy trains over Gloo."""
    model = r.wrap(net())
    optimizer = r.hook(model, torch.optim.SGD(model.parameters(), 0.1))
    b = r.batches()
    r.train(model, optimizer, b[:6])
    torch.save(model, io.BytesIO())
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        r.train(twin, torch.optim.SGD(twin.parameters(), 0.1), b[6:8])
    return r.train(model, optimizer, b[6:])


@scenario
def channels_last(r: Rank) -> nn.Module:
    torch.manual_seed(5)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4 * 16, 3))
    model = r.wrap(layers.to(memory_format=torch.channels_last))
    g = torch.Generator().manual_seed(7 + r.rank)
    images = [(torch.randn(8, 3, 8, 8, generator=g).to(memory_format=torch.channels_last), torch.randint(0, 3, (8,), generator=g)) for _ in range(8)]
    return r.train(model, r.hook(model, torch.optim.SGD(model.parameters(), 0.05)), images)


@scenario
def broadcast_buffers(r: Rank) -> nn.Module:
    torch.manual_seed(5)
    model = r.wrap(nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)), broadcast_buffers=True)
    return r.train(model, r.hook(model, torch.optim.SGD(model.parameters(), 0.1)))


@scenario
def ignored_parameter(r: Rank) -> nn.Module:
    """Each rank trains it by itself, on the same data here."""
    inner = net()
    DDP._set_params_and_buffers_to_ignore_for_model(inner, ["2.bias"])
    model = r.wrap(inner)
    optimizer = r.hook(model, torch.optim.SGD(model.parameters(), 0.1))
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(9))
    before = inner[2].bias.detach().clone()
    r.train(model, optimizer, [(x, x[:, :3].argmax(1))] * 6)
    assert not torch.equal(inner[2].bias, before)
    return model


OTHER = torch.float64 if OLD else torch.bfloat16  # which Gloo has


class Quantised(nn.Module):
    """Frozen weights of other types."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.q = nn.Parameter(torch.randint(-128, 127, (16, 6), dtype=torch.int8), requires_grad=False)
        self.h = nn.Linear(16, 16).to(OTHER).requires_grad_(False)
        self.last = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(F.relu(self.h(F.relu(x @ self.q.float().t() / 128).to(OTHER)).float()))


@scenario
def frozen_of_other_types(r: Rank) -> nn.Module:
    model = r.wrap(Quantised())
    return r.train(model, r.hook(model, torch.optim.SGD(model.module.last.parameters(), 0.1)))


@scenario
def sparse_embedding(r: Rank) -> nn.Module:
    torch.manual_seed(5)
    model = r.wrap(nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Flatten(), nn.Linear(16, 3)))
    g = torch.Generator().manual_seed(7 + r.rank)
    words = [(torch.randint(0, 50, (8, 2), generator=g), torch.randint(0, 3, (8,), generator=g)) for _ in range(8)]
    return r.train(model, r.hook(model, torch.optim.SGD(model.parameters(), 0.1)), words)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.a, self.b, self.c = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> Any:
        from torch.utils.checkpoint import checkpoint

        h = self.a(x)
        for _ in range(2):
            h = checkpoint(lambda z: F.relu(self.b(F.relu(z))), h, use_reentrant=True)
        return self.c(h)


@scenario
def static_graph(r: Rank) -> nn.Module:
    """A layer that is used twice, in reentrant checkpoints."""
    model = r.wrap(Checkpointed(), static_graph=True)
    return r.train(model, r.hook(model, torch.optim.SGD(model.parameters(), 0.1)))


# Running them.


def die_with_parent() -> None:
    ctypes.CDLL("libc.so.6").prctl(1, signal.SIGKILL)


def rank(name: str, r: int, star_program: str, addr: str, folder: str) -> None:
    """The life of one process. It ends as a script does."""
    os.environ["STAR_OFF"] = "1"
    dist.init_process_group("gloo", init_method="file://%s/store" % folder, rank=r, world_size=RANKS)
    want = {k: v.clone() for k, v in SCENARIOS[name](Rank(r, False, folder)).module.state_dict().items()}
    dist.barrier()
    del os.environ["STAR_OFF"]
    os.environ.update(STAR_COORDINATOR=addr, STAR_AGENT=star_program, STAR_HTTP="off", STAR_ARCH="allreduce", STAR_OUT=folder + "/out")
    got = SCENARIOS[name](Rank(r, True, folder)).module.state_dict()
    for k, v in want.items():
        assert torch.allclose(got[k].float(), v.float(), rtol=1e-4, atol=1e-6), "%s differs by %g" % (k, (got[k].float() - v.float()).abs().max())
    dist.barrier()


def start(star_program: str, folder: str, *flags: str) -> Tuple[Any, str]:
    """The coordinator of a job, and its address."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("STAR_")}
    args = [
        star_program,
        "ps",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "off",
        "--workers",
        str(RANKS),
        "--arch",
        "allreduce",
        "--join-timeout",
        "4m",
        "--out",
        folder + "/out",
        *flags,
    ]
    with open(folder + "/ps.log", "wb") as log:
        p = subprocess.Popen(args, stdout=log, stderr=subprocess.STDOUT, env=env, preexec_fn=die_with_parent)
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for line in open(folder + "/ps.log", errors="replace"):
            if '"msg":"listening"' in line:
                return p, str(json.loads(line)["addr"])
        time.sleep(0.02)
    p.kill()
    raise AssertionError("star ps does not listen")


def run(name: str, star_program: str, root: str, patience: float = 120) -> "Dict[str, Any]":
    folder = os.path.join(root, name)
    os.makedirs(folder)
    ps, addr = start(star_program, folder)
    pids = []
    for r in range(RANKS):
        pid = os.fork()
        if pid == 0:
            die_with_parent()
            log = os.open("%s/rank%d.log" % (folder, r), os.O_CREAT | os.O_WRONLY)
            os.dup2(log, 1)
            os.dup2(log, 2)
            rank(name, r, star_program, addr, folder)
            atexit._run_exitfuncs()  # as at the end of a script; what comes behind that takes a second
            os._exit(0)
        pids.append(pid)
    codes: List[Optional[int]] = [None] * RANKS
    end = time.monotonic() + patience
    while None in codes and time.monotonic() < end:
        for r, pid in enumerate(pids):
            if codes[r] is None:
                done, status = os.waitpid(pid, os.WNOHANG)
                codes[r] = os.waitstatus_to_exitcode(status) if done else None
        time.sleep(0.02)
    for r, pid in enumerate(pids):
        if codes[r] is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    with contextlib.suppress(subprocess.TimeoutExpired):
        ps.wait(30)
    ps.kill()
    logs = "".join(open("%s/rank%d.log" % (folder, r), errors="replace").read() for r in range(RANKS))
    return {"name": name, "codes": codes, "job": ps.wait(), "why": "" if codes == [0] * RANKS else logs[-4000:] + open(folder + "/ps.log", errors="replace").read()[-1000:]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)  # loads much of PyTorch, once for all processes
    for scenario_name in sys.argv[3:] or list(SCENARIOS):
        print(json.dumps(run(scenario_name, sys.argv[1], sys.argv[2])), flush=True)
