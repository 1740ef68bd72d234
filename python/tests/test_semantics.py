"""What a script's loop may do between two batches: the gradient that the job gets is that of plain PyTorch, or the script ends with a reason.

The agent is played by a thread, which hands out batches, keeps what it gets, and makes plain SGD steps; so each test is one process and takes no time. Whole jobs
with such loops are in test_parity.py.
"""

import copy
import io
import json
import mmap
import os
import pickle
import socket
import struct
import sys
import threading
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

import conftest  # noqa: E402, F401
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import star_train.torch as star  # noqa: E402
from star_train import _link, _tensors  # noqa: E402

HEADER = struct.Struct("<IIQQQ")
RATE = 0.1
N = 64


class Agent(threading.Thread):
    """The agent's end of a link, for one epoch of batches."""

    def __init__(self, batches: List[List[int]], parts: bool = False, epoch: int = N) -> None:
        super().__init__(daemon=True)
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(60)
        os.environ["STAR_LINK_FD"] = str(theirs.detach())
        self.batches, self.parts = batches, parts
        self.about: Dict[str, Any] = {}
        self.gradients: List[torch.Tensor] = []
        self.losses: List[float] = []
        self.told: List[int] = []  # parts
        self.early: Dict[int, torch.Tensor] = {}  # what they were when they were told
        self.failed: Optional[str] = None
        self.leases: Dict[int, List[Tuple[int, List[int]]]] = {}  # what is said before a step is asked for
        self.rates: Callable[[int], float] = lambda position: RATE
        self.start()

    def read(self) -> Tuple[int, int, int, bytes]:
        b = b""
        while len(b) < HEADER.size:
            got = self.sock.recv(HEADER.size - len(b))
            if not got:
                raise EOFError
            b += got
        kind, size, a, x, _ = HEADER.unpack(b)
        body = b""
        while len(body) < size:
            body += self.sock.recv(size - len(body))
        return kind, a, x, body

    def send(self, kind: int, a: int = 0, b: int = 0, c: int = 0, body: bytes = b"") -> None:
        self.sock.sendall(HEADER.pack(kind, len(body), a, b, c) + body)

    def run(self) -> None:
        try:
            self._run()
        except (EOFError, OSError) as e:
            self.failed = self.failed or repr(e)
        except BaseException:
            self.sock.shutdown(socket.SHUT_RDWR)  # the script does not wait for it
            raise

    def _run(self) -> None:
        _, _, _, body = self.read()
        self.about = json.loads(body)
        count = [_link._words(self.about[k]) for k in ("layout", "buffers")]
        up = lambda n: -(-4 * n // 4096) * 4096  # noqa: E731
        grad = 4096 + up(count[0])
        buffers = grad + up(count[0])
        size = buffers + up(count[1])
        fd = os.memfd_create("link")
        os.ftruncate(fd, size)
        self.map = mmap.mmap(fd, size)
        self.map[:72] = struct.pack("<8s8Q", b"STARLINK", 1, size, 4096, count[0], grad, buffers, count[1], 1)
        socket.send_fds(self.sock, [HEADER.pack(_link.MEMORY, 0, size, 0, 0)], [fd])
        os.close(fd)
        self.params = torch.frombuffer(self.map, dtype=torch.float32, count=count[0], offset=4096)
        self.grad = torch.frombuffer(self.map, dtype=torch.float32, count=count[0], offset=grad)
        self.buffers = torch.frombuffer(self.map, dtype=torch.float32, count=count[1], offset=buffers) if count[1] else torch.empty(0)
        assert self.read()[0] == _link.READY
        self.send(_link.JOINED, 0, 1)
        position = 0
        for step, batch in enumerate(self.batches, 1):
            for where, samples in self.leases.get(step, []):
                self.send(_link.LEASE, where, len(samples), 0, struct.pack("<%dq" % len(samples), *samples))
            self.send(_link.COMPUTE, step, len(batch), position | (_link.WANTS_PARTS if self.parts else 0), struct.pack("<%dq" % len(batch), *batch))
            while True:
                kind, a, b, body = self.read()
                if kind == _link.PART:
                    self.told.append(b)
                    self.early[b] = self.grad[b:].clone()
                elif kind == _link.ERROR:
                    self.failed = body.decode()
                    return
                elif kind == _link.LEAVE:
                    self.failed = "left"
                    return
                elif kind == _link.RECALL:  # of Adam, which has made no step
                    body = bytes(2 * 4 * count[0])
                    self.send(_link.STATE, 0, len(body), 0, body)
                else:
                    break
            assert kind == _link.DONE and a == step
            self.losses.append(struct.unpack("<d", struct.pack("<Q", b))[0])
            self.gradients.append(self.grad.clone())
            for at, early in self.early.items():
                assert torch.equal(early, self.grad[at:]), "what was told to be complete was changed"
            self.early.clear()
            self.params -= self.rates(position) * self.grad
            position += len(batch)
        self.send(_link.STOP)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Agent]]:
    """Makes the agent of this process."""
    made: List[Agent] = []
    backward = torch.Tensor.backward
    monkeypatch.setattr(_link, "_register", lambda link: None)
    monkeypatch.setattr(_link, "show_stacks", lambda: False)
    monkeypatch.setattr(star._job, "session", None)
    for name in ("STAR_OFF", "STAR_AGENT", "STAR_COORDINATOR"):
        monkeypatch.delenv(name, raising=False)

    def make(*args: Any, **kwargs: Any) -> Agent:
        made.append(Agent(*args, **kwargs))
        return made[-1]

    yield make
    star._job.session = None
    torch.Tensor.backward = backward  # type: ignore[method-assign]
    _tensors.watch(None)
    os.environ.pop("STAR_LINK_FD", None)
    for a in made:
        a.sock.close()


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        g = torch.Generator().manual_seed(3)
        self.x = torch.randn(N, 6, generator=g)
        self.y = self.x[:, :3].argmax(1)

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i]


def small() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


BATCHES = [list(range(i, i + 16)) for i in range(0, N, 16)]


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() if p.grad is not None else torch.zeros(p.numel()) for p in model.parameters() if p.requires_grad])


def plain(model: nn.Module, batches: List[List[int]], gradient: Callable[[nn.Module, torch.Tensor, torch.Tensor], Any]) -> List[torch.Tensor]:
    """The gradients of plain PyTorch in a loop of SGD."""
    data, out = Data(), []
    for b in batches:
        model.zero_grad()
        gradient(model, data.x[b], data.y[b])
        out.append(flat(model))
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= RATE * p.grad
    return out


def ce(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def same(got: List[torch.Tensor], want: List[torch.Tensor]) -> None:
    assert len(got) == len(want)
    for i, (g, w) in enumerate(zip(got, want)):
        assert torch.allclose(g, w, rtol=1e-4, atol=1e-7), "step %d differs by %g" % (i, (g - w).abs().max())


def attached(model: nn.Module, **kwargs: Any) -> Any:
    return star.attach(model, torch.optim.SGD(model.parameters(), RATE), **kwargs)


def loop(model: nn.Module, opt: Any, loader: Any, step: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
    for x, y in loader:
        opt.zero_grad()
        step(x, y)


def test_plain(agent: Any) -> None:
    a, model = agent(BATCHES), small()
    opt = attached(model)

    def step(x: Any, y: Any) -> None:
        ce(model, x, y).backward()
        opt.step()

    want = plain(copy.deepcopy(model), BATCHES, lambda m, x, y: ce(m, x, y).backward())
    loop(model, opt, star.loader(Data(), 16), step)
    same(a.gradients, want)


# Parts of the batch: of one size, of several, fewer samples than parts.
@pytest.mark.parametrize("loaders", [0, 2])
def test_accumulate(agent: Any, loaders: int) -> None:
    batches = [list(range(16)), list(range(16, 30)), list(range(30, 35)), list(range(35, 37)), [37]]
    a, model = agent(batches), small()
    want = plain(copy.deepcopy(model), batches, lambda m, x, y: ce(m, x, y).backward())
    data = Data()
    losses = []
    m = copy.deepcopy(model)
    for b in batches:
        m.zero_grad()
        loss = ce(m, data.x[b], data.y[b])
        losses.append(float(loss))
        loss.backward()
        with torch.no_grad():
            for p in m.parameters():
                p -= RATE * p.grad
    opt = attached(model)
    taken = 0
    for x, y in star.loader(data, 4, accumulate=4, num_workers=loaders):
        (ce(model, x, y) / 4).backward()
        taken += 1
        if taken % 4 == 0:
            opt.step()
            opt.zero_grad()
    assert taken == 4 * len(batches)
    same(a.gradients, want)
    assert a.losses == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_leases(agent: Any, accumulate: int) -> None:
    """Batches that were foretold are loaded ahead; what comes otherwise, at the place of one or in its place, is what counts."""
    a, model = agent([*BATCHES, *BATCHES[:2]], epoch=N), small()
    a.leases = {1: [(16, BATCHES[1]), (32, BATCHES[0])], 2: [(48, BATCHES[3][:8])], 3: [(40, BATCHES[0])], 4: [(64, BATCHES[0]), (80, BATCHES[1])]}
    opt = attached(model)
    data, seen = Data(), []
    loader = star.loader(data, 16 // accumulate, accumulate=accumulate, num_workers=2)
    for _ in range(2):
        for k, (x, y) in enumerate(loader, 1):
            seen.append(x)
            ce(model, x, y).backward()
            if k % accumulate == 0:
                opt.step()
                opt.zero_grad()
    assert torch.equal(torch.cat(seen), torch.cat([data.x, data.x[:32]]))


def test_clip(agent: Any) -> None:
    a, model = agent(BATCHES, parts=True), small()

    def clipped(m: Any, x: Any, y: Any) -> None:
        ce(m, x, y).backward()
        nn.utils.clip_grad_norm_(m.parameters(), 0.05)

    want = plain(copy.deepcopy(model), BATCHES, clipped)
    opt = attached(model)
    loop(model, opt, star.loader(Data(), 16), lambda x, y: (clipped(model, x, y), opt.step()))
    same(a.gradients, want)


def test_closure(agent: Any) -> None:
    a, model = agent(BATCHES), small()
    want = plain(copy.deepcopy(model), BATCHES, lambda m, x, y: ce(m, x, y).backward())
    opt = attached(model)
    for x, y in star.loader(Data(), 16):

        def closure() -> Any:
            opt.zero_grad()
            loss = ce(model, x, y)  # noqa: B023
            loss.backward()
            return loss

        assert float(opt.step(closure)) == pytest.approx(a.losses[-1])
    same(a.gradients, want)


class Wide(nn.Module):
    """Several MiB, so that parts go early."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.unused, self.a, self.b, self.c = nn.Linear(2, 2), nn.Linear(6, 600), nn.Linear(600, 600), nn.Linear(600, 600)
        self.out = nn.Linear(600, 3)

    def forward(self, x: Any) -> Any:
        return self.out(torch.tanh(self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))))


MANY = [list(range(8 * i % 64, 8 * i % 64 + 8)) for i in range(8)]


def test_parts(agent: Any) -> None:
    """A part that is reported early does not change (the agent checks), and at least one part is reported."""
    a, model = agent(MANY, parts=True), Wide()
    opt = attached(model)
    want = plain(copy.deepcopy(model), MANY, lambda m, x, y: ce(m, x, y).backward())
    loop(model, opt, star.loader(Data(), 8), lambda x, y: (ce(model, x, y).backward(), opt.step()))
    same(a.gradients, want)
    assert a.told


@pytest.mark.parametrize("overlap", [True, False])
def test_several_losses(agent: Any, overlap: bool) -> None:
    """Two calls of backward in a step: nothing goes before the second one."""
    a, model = agent(MANY, parts=True), Wide()

    def two(m: Any, x: Any, y: Any) -> None:
        out = m(x)
        F.cross_entropy(out, y).backward(retain_graph=True)
        (out**2).mean().backward()

    opt = attached(model, overlap=overlap)
    want = plain(copy.deepcopy(model), MANY, two)
    loop(model, opt, star.loader(Data(), 8), lambda x, y: (two(model, x, y), opt.step()))
    same(a.gradients, want)
    assert not a.told


def test_second_loss_too_late(agent: Any) -> None:
    """A second call of backward that comes when parts are on their way ends the script: the gradient would be wrong."""
    a, model = agent(MANY, parts=True), Wide()
    opt = attached(model)
    with pytest.raises(star.StarError, match="overlap=False"):
        for k, (x, y) in enumerate(star.loader(Data(), 8)):
            opt.zero_grad()
            out = model(x)
            F.cross_entropy(out, y).backward(retain_graph=k >= 5)
            if k >= 5:
                (out**2).mean().backward()
            opt.step()
    assert len(a.gradients) == 5


def test_clip_too_late(agent: Any) -> None:
    agent(MANY, parts=True)
    model = Wide()
    opt = attached(model)
    with pytest.raises(star.StarError, match="overlap=False"):
        for k, (x, y) in enumerate(star.loader(Data(), 8)):
            opt.zero_grad()
            ce(model, x, y).backward()
            if k >= 5:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            opt.step()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.into, self.middle, self.out = nn.Linear(6, 6, bias=False), nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.out.weight = self.into.weight

    def forward(self, x: Any) -> Any:
        return self.out(torch.tanh(self.middle(self.into(x))))


def test_tied(agent: Any) -> None:
    """One tensor with two names is one parameter with the gradient of both uses; it stays one."""
    a, model = agent(BATCHES), Tied()
    want = plain(copy.deepcopy(model), BATCHES, lambda m, x, y: ce(m, x, y).backward())
    opt = attached(model)
    loop(model, opt, star.loader(Data(), 16), lambda x, y: (ce(model, x, y).backward(), opt.step()))
    same(a.gradients, want)
    assert [t["name"] for t in a.about["layout"]] == ["into.weight", "middle.weight", "middle.bias"]
    assert model.out.weight is model.into.weight


def test_frozen_and_unused(agent: Any) -> None:
    """Frozen parameters, and those that the optimizer does not have, stay; unused ones have a gradient of zero."""
    a, model = agent(MANY), Wide()
    for p in model.a.parameters():
        p.requires_grad = False
    start = {k: v.clone() for k, v in model.state_dict().items()}
    opt = star.attach(model, torch.optim.SGD([*model.a.parameters(), *model.b.parameters(), *model.out.parameters(), *model.unused.parameters()], RATE))
    loop(model, opt, star.loader(Data(), 8), lambda x, y: (ce(model, x, y).backward(), opt.step()))
    assert len(a.gradients) == len(MANY)
    for name, now in model.state_dict().items():
        assert torch.equal(now, start[name]) == (name[0] in "acu"), name
    assert [t["name"] for t in a.about["layout"]] == ["unused.weight", "unused.bias", "b.weight", "b.bias", "out.weight", "out.bias"]
    assert a.gradients[-1][:6].abs().max() == 0


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda m, opt: m.a.weight.requires_grad_(False), "a.weight was frozen after star.attach"),
        (lambda m, opt: m.b.weight.requires_grad_(True), "b.weight was frozen at star.attach and is not now"),
        (lambda m, opt: opt.add_param_group({"params": [nn.Parameter(torch.zeros(1))]}), "a group of parameters is added after the first batch"),
        (lambda m, opt: opt.param_groups[0].update(lr=1.0), "star.schedule"),
    ],
)
def test_changed_too_late(agent: Any, change: Any, says: str) -> None:
    agent(MANY)
    model = Wide()
    model.b.weight.requires_grad = False
    opt = attached(model)
    with pytest.raises(star.StarError, match=says):
        for k, (x, y) in enumerate(star.loader(Data(), 8)):
            opt.zero_grad()
            ce(model, x, y).backward()
            if k == 3:
                change(model, opt)
            opt.step()


def test_replaced_gradients(agent: Any) -> None:
    """model.zero_grad() of PyTorch 2 drops the views: gradients are copied, and it is said once."""
    a, model = agent(BATCHES), small()
    want = plain(copy.deepcopy(model), BATCHES, lambda m, x, y: ce(m, x, y).backward())
    opt = attached(model)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for x, y in star.loader(Data(), 16):
            model.zero_grad(set_to_none=True)
            ce(model, x, y).backward()
            opt.step()
    same(a.gradients, want)
    assert len([w for w in said if "is copied in every step" in str(w.message)]) == 1


def test_batch_norm_buffers(agent: Any) -> None:
    """Buffers of all types are the job's to see, with their own bytes."""
    a, model = agent(BATCHES), nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model.register_buffer("big", torch.tensor([2**24 + 1, 3]))
    model.register_buffer("fine", torch.tensor([0.1], dtype=torch.float64))
    model.register_buffer("freqs", torch.tensor([1 + 2j]))
    model.register_buffer("mask", torch.tensor([True, False, True]))
    model.register_buffer("narrow", torch.tensor([1.5, 2.5], dtype=torch.bfloat16))
    model.register_buffer("scalar", torch.tensor(7, dtype=torch.uint8))
    model.register_buffer("none", None)
    model.register_buffer("empty", torch.zeros(0, dtype=torch.int16))
    model.register_parameter("table", nn.Parameter(torch.tensor([0.1], dtype=torch.float64), requires_grad=False))
    own = copy.deepcopy(model)
    plain(own, BATCHES, lambda m, x, y: ce(m, x, y).backward())
    opt = attached(model)
    loop(model, opt, star.loader(Data(), 16), lambda x, y: (ce(model, x, y).backward(), opt.step()))
    assert len(a.gradients) == 4
    for (name, want), got in zip(own.state_dict().items(), model.state_dict().values()):
        assert torch.allclose(got, want, rtol=1e-4, atol=1e-6) if got.is_floating_point() else torch.equal(got, want), name
    assert model.big[0] == 2**24 + 1 and model.fine[0] == 0.1 and int(model[1].num_batches_tracked) == 4
    (begin,), end, found = struct.unpack_from("<Q", a.map, 48), 0, {}
    types = {
        "F32": torch.float32,
        "F64": torch.float64,
        "I64": torch.int64,
        "C64": torch.complex64,
        "BOOL": torch.bool,
        "BF16": torch.bfloat16,
        "U8": torch.uint8,
        "I16": torch.int16,
    }
    for t in a.about["buffers"]:
        want = model.state_dict()[t["name"]]
        assert types[t.get("dtype", "F32")] == want.dtype and t["shape"] == list(want.shape)
        at, end = _link.place(t.get("dtype", "F32"), want.numel(), end)
        size = want.numel() * want.element_size()
        found[t["name"]] = bytes(a.map[begin + 4 * at : begin + 4 * at + size]) == want.contiguous().view(-1).numpy().tobytes() if want.dtype != torch.bfloat16 else size == 4
    assert all(found.values()) and set(found) == set(own.state_dict()) - {n for n, p in own.named_parameters() if p.requires_grad}


def test_frozen_of_every_type(agent: Any) -> None:
    """What is not trained may have any type; what is trained has float32."""
    a, model = agent(BATCHES), small()
    for kind in ("float64", "float16", "bfloat16", "complex64"):
        model.register_parameter("of_" + kind, nn.Parameter(torch.ones(3, dtype=getattr(torch, kind)), requires_grad=False))
    opt = attached(model)
    loop(model, opt, star.loader(Data(), 16), lambda x, y: (ce(model, x, y).backward(), opt.step()))
    assert [t.get("dtype") for t in a.about["buffers"]] == ["F64", "F16", "BF16", "C64"] and all("dtype" not in t for t in a.about["layout"])


@pytest.mark.parametrize("bad", [lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), lambda: torch.ones(2).to_sparse()], ids=["quantized", "sparse"])
def test_buffers_that_no_file_holds(agent: Any, bad: Any) -> None:
    agent(BATCHES)
    model = small()
    model.register_buffer("odd", bad())
    attached(model)
    with pytest.raises(star.StarError, match="odd is torch.*persistent=False") as e:
        next(iter(star.loader(Data(), 16)))
    assert e.value.code == 78


def wrapped(how: str) -> Tuple[Any, Any]:
    model = small()
    if how == "parallel":
        return nn.DataParallel(model), model
    if not hasattr(torch, "compile"):
        pytest.skip("this PyTorch has no torch.compile")
    if how == "part":
        model[0] = torch.compile(model[0], backend="eager")
        return model, model
    compiled = torch.compile(model, backend="eager")
    return (nn.DataParallel(compiled) if how == "both" else compiled), model


@pytest.mark.parametrize("how", ["parallel", "compiled", "part", "both"])
def test_names_of_wrapped_models(agent: Any, how: str) -> None:
    """What torch.compile and DataParallel put before names is in no checkpoint."""
    a, (model, inner) = agent(BATCHES), wrapped(how)
    inner.register_buffer("n", torch.tensor(3))
    opt = attached(model)
    loop(model, opt, star.loader(Data(), 16), lambda x, y: (ce(model, x, y).backward(), opt.step()))
    assert [t["name"] for t in a.about["layout"]] == list(dict(small().named_parameters())) and [t["name"] for t in a.about["buffers"]] == ["n"]
    assert a.about["name"] == "Sequential"


def test_copies_of_the_model(agent: Any, tmp_path: Any) -> None:
    """A copy, a file and a pickle of the model are of its own memory, and as large as in plain PyTorch; hooks of state_dict see what it has; training goes on."""
    a, model = agent(BATCHES), small()
    model.register_buffer("n", torch.tensor([2**40]))
    hooked: List[int] = []
    model._register_state_dict_hook(lambda module, state, prefix, meta: hooked.append(len(state)))
    opt = attached(model)
    copies: List[Any] = []

    def step(x: Any, y: Any) -> None:
        ce(model, x, y).backward()
        opt.step()
        torch.save(model.state_dict(), tmp_path / "state.pt")
        copies.append(
            (copy.deepcopy(model), pickle.loads(pickle.dumps(model.state_dict())), torch.load(tmp_path / "state.pt"), {k: v.clone() for k, v in model.state_dict().items()})
        )

    loop(model, opt, star.loader(Data(), 16), step)
    assert len(a.gradients) == 4 and hooked
    begin = torch.frombuffer(a.map, dtype=torch.uint8).data_ptr()
    for other, pickled, saved, then in copies:
        for name, want in then.items():
            for got in (other.state_dict()[name], pickled[name], saved[name]):
                assert torch.equal(got, want) and got.dtype == want.dtype, name
                assert not begin <= got.data_ptr() < begin + len(a.map), "%s lies in the job's memory" % name
    assert not torch.equal(copies[0][3]["0.weight"], copies[1][3]["0.weight"])
    plain_file = tmp_path / "plain.pt"
    torch.save({k: v.clone() for k, v in model.state_dict().items()}, plain_file)
    assert abs((tmp_path / "state.pt").stat().st_size - plain_file.stat().st_size) < 1024


def test_load_state_dict_within_a_job(agent: Any) -> None:
    """The optimizer's state is where the job has the parameters: it is loaded before attach."""
    agent(BATCHES)
    model = small()
    opt = star.attach(model, torch.optim.Adam(model.parameters(), 0.1))
    opt.load_state_dict(opt.state_dict())  # before the first batch it is the script's
    loader = iter(star.loader(Data(), 16))
    next(loader)
    with pytest.raises(star.StarError, match="Load a state before star.attach") as e:
        opt.load_state_dict({})
    assert e.value.code == 2


def experienced(make: Any, steps: int = 3) -> Tuple[Any, Any]:
    model = small()
    opt = make(model)
    for _ in range(steps):
        opt.zero_grad()
        ce(model, *(torch.stack(v) if isinstance(v[0], torch.Tensor) else v for v in zip(*(Data()[i] for i in range(8))))).backward()
        opt.step()
    return model, opt


def one_more(opt: Any) -> Any:
    """Gives one parameter a step that the others have not made."""
    p = opt.param_groups[0]["params"][1]
    opt.state[p]["step"] = opt.state[p]["step"] + 1
    return opt


@pytest.mark.parametrize(
    "make, change, says",
    [
        (lambda m: torch.optim.Adam(m.parameters(), 0.1, amsgrad=True), lambda o: None, "with amsgrad"),
        (lambda m: torch.optim.Adam(m.parameters(), 0.1), one_more, "3 steps of 0.weight, and 4 of 0.bias"),
        (lambda m: torch.optim.AdamW(m.parameters(), 0.1), lambda o: o.state[o.param_groups[0]["params"][2]].update(max_exp_avg_sq=torch.zeros(1)), "max_exp_avg_sq of 2.weight"),
        (
            lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9),
            lambda o: o.state[o.param_groups[0]["params"][0]].update(momentum_buffer=torch.zeros(1)),
            "another shape of 0.weight",
        ),
    ],
    ids=["amsgrad", "steps", "unknown", "shape"],
)
def test_state_that_no_job_has(agent: Any, make: Any, change: Any, says: str) -> None:
    """What an optimizer remembers and the job cannot go on with is said before anything is trained."""
    agent(BATCHES)
    model, opt = experienced(make)
    change(opt)
    with pytest.raises(star.StarError, match=says) as e:
        star.attach(model, opt)
    assert e.value.code == 2


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_state_that_begins(agent: Any, momentum: float) -> None:
    """The job gets the state where it exists: the momentum of all trained parameters; zeros for those without one yet."""
    a = agent(BATCHES)
    model, opt = experienced(lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=momentum))
    opt.state.pop(opt.param_groups[0]["params"][3], None)
    opt = star.attach(model, opt)
    loop(model, opt, star.loader(Data(), 16), lambda x, y: (ce(model, x, y).backward(), opt.step()))
    assert a.about.get("state") == ({"steps": 0, "slots": ["momentum_buffer"]} if momentum else None)
    if momentum:
        sent = torch.frombuffer(bytearray(star._job._rule.slots(opt, "momentum", star._job.session.params, star._job.session._whole)), dtype=torch.float32)
        want = [opt.state[p]["momentum_buffer"].flatten() for p in list(model.parameters())[:3]]
        assert torch.equal(sent, torch.cat([*want, torch.zeros(3)]))


# Schedulers: the table that the job gets is what the scheduler does alone.
lrs = torch.optim.lr_scheduler
SCHEDULERS: Dict[str, Callable[[Any], Any]] = {
    "step": lambda o: lrs.StepLR(o, 3, 0.5),
    "cosine": lambda o: lrs.CosineAnnealingLR(o, 20),
    "warm-up from 0": lambda o: lrs.LambdaLR(o, lambda k: min(k / 5, 1.0)),
    "linear": lambda o: lrs.LinearLR(o, 0.1, 1.0, 4),
    "one cycle": lambda o: lrs.OneCycleLR(o, max_lr=[0.5, 0.05], total_steps=30, cycle_momentum=False),
    "two": lambda o: lrs.SequentialLR(o, [lrs.LinearLR(o, 0.1, 1.0, 3), lrs.ExponentialLR(o, 0.9)], [3]),
}


def at(table: str, samples: int) -> float:
    assert table.startswith("table=")
    f = 1.0
    for part in table[6:].split(","):
        when, factor = part.split(":")
        if samples >= int(when):
            f = float(factor)
    return f


def groups_of(model: Any) -> Any:
    return [{"params": model[0].parameters(), "lr": 0.2}, {"params": model[2].parameters(), "lr": 0.02}]


@pytest.mark.parametrize("before", [False, True], ids=["after attach", "before attach"])
@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_schedule(agent: Any, name: str, before: bool) -> None:
    model = small()
    alone = torch.optim.SGD(groups_of(model), 0.1)
    reference = SCHEDULERS[name](alone)
    rates = []
    for _ in range(30):
        rates.append([g["lr"] for g in alone.param_groups])
        alone.step()
        if len(rates) < 30:
            reference.step()
    model = small()
    a = agent([[i % N] * 8 for i in range(30)])
    opt = torch.optim.SGD(groups_of(model), 0.1)
    sched = SCHEDULERS[name](opt) if before else None
    assert star.attach(model, opt) is opt
    sched = star.schedule(sched or SCHEDULERS[name](opt), every=8)
    shown: List[Any] = []
    for _ in range(9):
        for x, y in star.loader(Data(), 8, epochs=30 * 8 / N) if not shown else []:
            opt.zero_grad()
            shown.append([g["lr"] for g in opt.param_groups])
            assert sched.get_last_lr() == shown[-1]
            ce(model, x, y).backward()
            opt.step()
            sched.step()
    rule = a.about["optimizer"]
    factors = [next(g["factor"] for g in rule["groups"] if g["from"] <= e < g["to"]) for e in (0, 60)]
    for k, want in enumerate(rates):
        got = [rule["lr"] * f * at(rule["schedule"], 8 * k) for f in factors]
        assert got == pytest.approx(want, rel=1e-6, abs=1e-12), "step %d" % k
    for got, want in zip(shown, rates):
        assert got == pytest.approx(want, rel=1e-6, abs=1e-12)
    assert len(shown) == 8  # an epoch


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda o: lrs.OneCycleLR(o, 0.5, total_steps=10), "changes more than the rate"),
        (lambda o: lrs.LambdaLR(o, [lambda k: 1 / (1 + k), lambda k: 1 / (1 + k) ** 2]), "the rates of the groups have another course each"),
        (lambda o: lrs.ReduceLROnPlateau(o), "want a scheduler with rates that depend only on the number of steps"),
        (lambda o: lrs.StepLR(torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1), 2), "a scheduler of the optimizer that star.attach was given"),
    ],
)
def test_schedules_that_cannot_be(agent: Any, make: Any, says: str) -> None:
    agent(BATCHES)
    model = small()
    opt = star.attach(model, torch.optim.SGD(groups_of(model), 0.1, momentum=0.9))
    with pytest.raises(star.StarError, match=says):
        star.schedule(make(opt))
        next(iter(star.loader(Data(), 16, epochs=3)))


@pytest.mark.parametrize(
    "told, epochs, steps",
    [
        ({"STAR_STEPS": "400", "STAR_WORKERS": "4"}, 0, 1600),
        ({"STAR_STEPS": "400", "STAR_WORKERS": "4"}, 2, 1600),
        ({"STAR_STEPS": "400", "STAR_WORKERS": "4", "STAR_SAMPLES": "12800"}, 0, 800),
        ({"STAR_EPOCHS": "300"}, 1, 1200),
        ({}, 1, 512),
    ],
)
def test_schedule_to_the_end(agent: Any, monkeypatch: pytest.MonkeyPatch, told: Dict[str, str], epochs: int, steps: int) -> None:
    """A schedule of batches is followed to the end of the job, also where that is counted in updates of all workers."""
    for k, v in told.items():
        monkeypatch.setenv(k, v)
    a, model = agent(BATCHES), small()
    opt = attached(model)
    star.schedule(lrs.LambdaLR(opt, lambda k: 1 / (1 + k)), every=16)
    loop(model, opt, star.loader(Data(), 16, epochs=epochs), lambda x, y: (ce(model, x, y).backward(), opt.step()))
    last = a.about["optimizer"]["schedule"].split(",")[-1]
    assert steps <= int(last.split(":")[0]) // 16 + 1 <= steps + 2, last


# Mixed precision.


def test_autocast(agent: Any) -> None:
    a, model = agent(BATCHES), small()

    def low(m: Any, x: Any, y: Any) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = m(x)
        assert out.dtype == torch.bfloat16
        F.cross_entropy(out.float(), y).backward()

    want = plain(copy.deepcopy(model), BATCHES, low)
    opt = attached(model)
    loop(model, opt, star.loader(Data(), 16), lambda x, y: (low(model, x, y), opt.step()))
    same(a.gradients, want)


@pytest.mark.skipif(not hasattr(getattr(torch, "amp", None), "GradScaler"), reason="GradScaler for processors comes with PyTorch 2.3")
@pytest.mark.parametrize("unscale", [False, True])
def test_grad_scaler(agent: Any, unscale: bool) -> None:
    """The gradient that goes is unscaled; one that overflows goes as zero, and the scale falls."""
    a, model = agent(BATCHES), small()
    want = plain(copy.deepcopy(model), [b for i, b in enumerate(BATCHES) if i != 2], lambda m, x, y: ce(m, x, y).backward())
    opt = attached(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for k, (x, y) in enumerate(star.loader(Data(), 16)):
        opt.zero_grad()
        loss = ce(model, x, y)
        scaler.scale(loss).backward()
        if k == 2:
            model[0].weight.grad[0, 0] = float("inf")
        if unscale:
            scaler.unscale_(opt)
        scaler.step(opt, loss=loss) if unscale else scaler.step(opt)
        scaler.update()
        assert a.losses[k] == pytest.approx(float(loss), rel=1e-5)
    assert scaler.get_scale() == 512 and a.gradients[2].abs().max() == 0
    same([g for i, g in enumerate(a.gradients) if i != 2], want)


# What cannot be, and is said.


@pytest.mark.parametrize(
    "model, says",
    [
        (lambda: small().double(), "float64: the job exchanges float32"),
        (lambda: small().half(), "float16: the job exchanges float32"),
        (lambda: nn.Linear(3, 2, device="meta"), "is on meta: star_train trains on processors and on GPUs of CUDA"),
    ],
)
def test_models_that_cannot_be(agent: Any, model: Any, says: str) -> None:
    agent(BATCHES)
    attached(m) if (m := model()) else None
    with pytest.raises(star.StarError, match=says) as e:
        next(iter(star.loader(Data(), 16)))
    assert e.value.code == 78


@pytest.mark.parametrize("dropped", [False, True])
def test_sparse_gradients(agent: Any, dropped: bool) -> None:
    """They are added to the job's dense ones. A script that drops those gets a message."""
    a = agent(BATCHES)
    model = nn.Sequential(nn.EmbeddingBag(10, 4, sparse=True), nn.Linear(4, 3))
    words = torch.arange(32).view(16, 2) % 10
    want = plain(copy.deepcopy(model), BATCHES, lambda m, x, y: (setattr(m[0], "sparse", False), ce(m, words, y).backward()))
    opt = attached(model)

    def step(x: Any, y: Any) -> None:
        if dropped:
            model.zero_grad(set_to_none=True)
        ce(model, words, y).backward()
        opt.step()

    if dropped:
        with pytest.raises(star.StarError, match="the gradient of 0.weight is sparse: give the embedding sparse=False"):
            loop(model, opt, star.loader(Data(), 16), step)
        return
    loop(model, opt, star.loader(Data(), 16), step)
    same(a.gradients, want)


def test_two_of_each(agent: Any) -> None:
    agent(BATCHES)
    model = small()
    attached(model)
    star.loader(Data(), 16)
    with pytest.raises(star.StarError, match="star.attach was called before in this process"):
        attached(model)
    with pytest.raises(star.StarError, match="star.loader was called before in this process"):
        star.loader(Data(), 16)


def test_parameters_of_another_model(agent: Any) -> None:
    agent(BATCHES)
    star.attach(small(), torch.optim.SGD([*small().parameters()], 0.1))
    with pytest.raises(star.StarError, match="4 parameters of the optimizer are not in the model"):
        next(iter(star.loader(Data(), 16)))


def test_other_optimizers(agent: Any) -> None:
    agent(BATCHES)
    model = small()
    with pytest.raises(star.StarError, match="Adagrad is unknown to it"):
        star.attach(model, torch.optim.Adagrad(model.parameters(), 0.1))
    with pytest.raises(star.StarError, match="Adam with amsgrad"):
        star.attach(model, torch.optim.Adam(model.parameters(), 0.1, amsgrad=True))


def test_step_without_batch(agent: Any) -> None:
    agent(BATCHES)
    model = small()
    opt = attached(model)
    loader = star.loader(Data(), 16)
    with pytest.raises(star.StarError, match="a batch was taken from star.loader before"):
        for _ in loader:
            pass
    with pytest.raises(star.StarError, match="opt.step\\(\\) without a batch"):
        star._job.session.step = 0
        opt.step()


# Samples in an order of the script's own.


class Endless(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        k, n = (info.id, info.num_workers) if info else (0, 1)
        for i in range(40):
            if i % n == k:
                yield torch.full((6,), float(i)), star.rank()


@pytest.mark.parametrize("loaders", [0, 2])
def test_iterable(agent: Any, loaders: int) -> None:
    """As many samples as the job asks for, from the beginning again at the end; a data set without a length needs one."""
    batches = [[0] * n for n in (16, 16, 5, 16, 11)]
    a, model = agent(batches), small()
    opt = attached(model)
    with pytest.raises(star.StarError, match="Endless has no len\\(\\): give star.loader\\(samples=…\\)"):
        star.loader(Endless(), 16)
    with pytest.warns(UserWarning, match="the job does not see to it that each comes once"):
        loader = star.loader(Endless(), 16, samples=N, num_workers=loaders)
    seen: List[int] = []
    for x, rank in loader:
        seen += x[:, 0].int().tolist()
        assert rank.abs().max() == 0
        opt.zero_grad()
        model(x).sum().backward()
        opt.step()
    assert a.about["samples"] == N and len(seen) == N and a.about["prefetch"] == 0
    assert sorted(seen[:40]) == list(range(40)) and sorted(seen[40:]) == sorted(seen[: len(seen) - 40])


def test_sampler(agent: Any) -> None:
    a, model = agent(BATCHES), small()
    opt = attached(model)
    order = list(range(N))[::-1]
    with pytest.warns(UserWarning, match="each comes once"):
        loader = star.loader(Data(), 16, sampler=lambda: [i + star.rank() for i in order], shuffle=False)
    data, seen = Data(), []
    for x, _ in loader:
        seen.append(x)
        opt.zero_grad()
        model(x).sum().backward()
        opt.step()
    assert torch.equal(torch.cat(seen), data.x.flip(0)) and a.about["samples"] == N


def test_whole(agent: Any) -> None:
    """Batches are whole unless the script says that they may be cut; the job gets that, and drop_last."""
    a, model = agent(BATCHES), small()
    opt = attached(model)
    loader = star.loader(Data(), 16, drop_last=True)
    loop(model, opt, loader, lambda x, y: (ce(model, x, y).backward(), opt.step()))
    assert a.about["whole"] is True and a.about["drop_last"] is True and a.about["batch"] == 16
    assert len(loader) == 4


@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_divisible(agent: Any, loss: str) -> None:
    """Parts of a batch make the gradient of the whole: the job takes their mean, weighted by samples; len() follows the size of the parts."""
    parts = [list(range(i, i + 4)) for i in range(0, N, 4)]
    a, model = agent(parts), small()
    a.rates = lambda position: 0.0
    opt = attached(model)
    loader = star.loader(Data(), 16, divisible=True, loss=loss)
    lengths = []

    def step(x: Any, y: Any) -> None:
        lengths.append(len(loader))
        F.cross_entropy(model(x), y, reduction=loss).backward()
        opt.step()

    loop(model, opt, loader, step)
    data = Data()
    want, fresh = [], small()
    for i in range(0, N, 16):
        fresh.zero_grad()
        F.cross_entropy(fresh(data.x[i : i + 16]), data.y[i : i + 16], reduction=loss).backward()
        want.append(flat(fresh))
    same([sum(a.gradients[i : i + 4]) / 4 for i in range(0, 16, 4)], want)
    assert a.about["whole"] is False and set(lengths) == {16}
    assert a.losses[0] == pytest.approx(float(ce(small(), data.x[:4], data.y[:4])), rel=1e-5)


def test_summed_parts(agent: Any) -> None:
    """accumulate=N of a summed loss: of a smaller batch, too, the gradient counts as a sum does."""
    batches = [list(range(16)), list(range(16, 22))]
    a, model = agent(batches), small()
    a.rates = lambda position: 0.0
    opt = attached(model)
    taken = 0
    for x, y in star.loader(Data(), 4, accumulate=4, loss="sum"):
        (F.cross_entropy(model(x), y, reduction="sum") / 4).backward()
        taken += 1
        if taken % 4 == 0:
            opt.step()
            opt.zero_grad()
    data, want = Data(), []
    for b in batches:
        fresh = small()
        (F.cross_entropy(fresh(data.x[b]), data.y[b], reduction="sum") / 4).backward()
        want.append(flat(fresh) * 16 / len(b))  # the job counts it by len(b) / 16
    same(a.gradients, want)


def test_look_ahead(agent: Any) -> None:
    """next(iter(loader)) takes nothing away."""
    a, model = agent(BATCHES * 2), small()
    opt = attached(model)
    loader = star.loader(Data(), 16)
    assert torch.equal(next(iter(loader))[0], Data().x[:16])
    epochs: List[Any] = []
    for _ in range(2):
        epochs.append([x for x, y in loader if (opt.zero_grad(), ce(model, x, y).backward(), opt.step())])
    assert [len(e) for e in epochs] == [4, 4] and torch.equal(torch.cat(epochs[0]), Data().x)
    assert len(a.gradients) == 8


def test_next_after_the_end(agent: Any) -> None:
    """A script that takes its batches by next() gets the end of the job; the end of an epoch is DataLoader's."""
    agent(BATCHES * 2)
    model = small()
    opt = attached(model)
    loader = star.loader(Data(), 16)
    ends: List[str] = []
    batches = iter(loader)
    while len(ends) < 3:
        try:
            x, y = next(batches)
        except StopIteration as e:
            ends.append(str(e))
            batches = iter(loader)
        else:
            opt.zero_grad()
            ce(model, x, y).backward()
            opt.step()
    assert not ends[0] and all("the job is over" in e for e in ends[1:]), ends


def test_attributes(agent: Any) -> None:
    """The loader has what a DataLoader has; a batch_size of None, of numpy and as the third argument."""
    agent(BATCHES)
    data, g = Data(), torch.Generator()
    loader = star.loader(data, 16, True, drop_last=True, generator=g, num_workers=0)
    assert loader.dataset is data and loader.generator is g and loader.drop_last and loader.num_workers == 0
    assert type(loader.sampler) is torch.utils.data.RandomSampler and loader.collate_fn is torch.utils.data.default_collate
    with pytest.raises(AttributeError, match="wrong"):
        loader.wrong  # noqa: B018


def test_no_batch_size(agent: Any) -> None:
    np = pytest.importorskip("numpy")
    a, model = agent([[i] for i in range(4)]), small()
    opt = attached(model)

    class Batches(Data):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Any:
            return self.x[16 * i : 16 * i + 16].numpy(), self.y[16 * i : 16 * i + 16]

    seen = []
    for x, y in star.loader(Batches(), None, accumulate=np.int64(1)):
        seen.append(x)
        opt.zero_grad()
        ce(model, x, y).backward()
        opt.step()
    assert torch.equal(torch.cat(seen), Data().x) and a.about["samples"] == 4 and a.about["batch"] == 1


def test_steps(agent: Any) -> None:
    """A script without a DataLoader makes the requested number of samples."""
    batches = [list(range(16)), list(range(16, 32)), list(range(32, 37))]
    a, model = agent(batches), small()
    opt = attached(model)
    at, data = 0, Data()
    for _ in range(2):
        for n in star.steps(16, samples=N):
            opt.zero_grad()
            ce(model, data.x[at : at + n], data.y[at : at + n]).backward()
            opt.step()
            at += n
    assert at == 37
    with pytest.raises(star.StarError, match="was called before"):
        star.steps(16, samples=N + 1)
    same(a.gradients, plain(small(), batches, lambda m, x, y: ce(m, x, y).backward()))


# What a script does to its tensors between two steps.


class Odd(nn.Module):
    """Buffers of several types, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.a, self.teacher, self.b = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        for p in self.teacher.parameters():
            p.requires_grad = False

    def forward(self, x: Any) -> Any:
        return self.b(torch.tanh(self.a(x)) + 0.1 * self.teacher(x) + self.mean)


def vector(m: nn.Module) -> None:
    ps = list(m.parameters())
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(ps).detach().clone(), ps)


def swapped(m: nn.Module) -> None:
    own = [p.data.clone() for p in m.parameters()]
    for p in m.parameters():
        p.data = p.data * 0.5
    for p, v in zip(m.parameters(), own):
        p.data = v


def copied(m: nn.Module) -> None:
    own = [p.data.clone() for p in m.parameters()]
    for p in m.parameters():
        p.data.mul_(0.5)
    for p, v in zip(m.parameters(), own):
        p.data.copy_(v)


def loaded(m: nn.Module) -> None:
    own = copy.deepcopy(m.state_dict())
    m.load_state_dict({k: v * 0 for k, v in own.items()})
    m.load_state_dict(own)


def saved(m: nn.Module) -> None:
    torch.save(m.state_dict(), io.BytesIO())
    copy.deepcopy(m)


KEPT = [vector, swapped, copied, loaded, saved, lambda m: (m.double(), m.float())]


@pytest.mark.parametrize("do", KEPT, ids=["vector", "p.data =", "p.data.copy_", "load_state_dict", "saved", "double, float"])
def test_same_values(agent: Any, do: Any) -> None:
    """Parameters that get other storage, or are written and restored, train on."""
    a, model = agent(BATCHES), Odd()
    want = plain(copy.deepcopy(model), BATCHES, lambda m, x, y: ce(m, x, y).backward())
    opt = attached(model)

    def step(x: Any, y: Any) -> None:
        ce(model, x, y).backward()
        opt.step()
        do(model)

    loop(model, opt, star.loader(Data(), 16), step)
    same(a.gradients, want)
    assert torch.equal(a.params, torch.cat([p.detach().flatten() for p in (*model.a.parameters(), *model.b.parameters())]))


def clamped(m: Any) -> None:
    with torch.no_grad():
        m.a.weight.clamp_(-0.01, 0.01)


def replaced(m: Any) -> None:
    m.a.weight = nn.Parameter(m.a.weight.detach().clone())


WRITTEN = {
    "clamp_": clamped,
    "p.data.clamp_": lambda m: m.a.weight.data.clamp_(-0.01, 0.01),
    "p.data =": lambda m: setattr(m.a.weight, "data", m.a.weight.data * 0.5),
    "load_state_dict": lambda m: m.load_state_dict({k: v * 0 for k, v in m.state_dict().items()}),
    "another parameter": replaced,
    "another type": lambda m: m.double(),
}


@pytest.mark.parametrize("last", [False, True], ids=["", "behind the last step"])
@pytest.mark.parametrize("do", list(WRITTEN))
def test_other_values(agent: Any, do: str, last: bool) -> None:
    """Parameters that a script changes end it, with the name: the job would not learn of it."""
    batches = BATCHES[:1] if last else BATCHES
    agent(batches)
    model = Odd()
    opt = attached(model)
    steps = 0
    with pytest.raises(star.StarError, match=r"^a\.weight ") as e:
        for x, y in star.loader(Data(), 16):
            opt.zero_grad()
            ce(model, x.to(model.a.weight.dtype), y).backward()
            opt.step()
            steps += 1
            WRITTEN[do](model)
    assert steps == 1 and e.value.code == 2


@pytest.mark.parametrize("shape", [(3, 2), (2,), (1,), (), (0,)], ids=str)
@pytest.mark.parametrize("other", [(3, 2), (1,), ()], ids=str)
def test_another_object(shape: Any, other: Any) -> None:
    """Another tensor in the place of one is seen, also with equal values, and so is a change behind what was not a tensor before."""
    model = nn.Module()
    model.p, model.q = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.ones(2))
    model.register_parameter("none", None)
    tensors = _tensors.Tensors(model, [model.p], [model.q], True)
    tensors.watching = True
    assert tensors.changes() is None
    model.none = nn.Parameter(torch.ones(other))  # the job does not have it
    for _ in range(2):
        assert tensors.changes() is None
        tensors.settle()
    assert tensors.known
    first = model.p
    for p in (nn.Parameter(torch.ones(shape)), nn.Parameter(torch.ones(other)), None):
        model.p = p
        assert tensors.changes() == ([0], [], [])
        model.p = first
        assert tensors.changes() is None
        tensors.settle()
    with torch.no_grad():
        model.p.add_(1)
    assert tensors.changes() == ([], [], [0])


def test_renormalised(agent: Any) -> None:
    """An embedding that changes its weight in forward."""
    agent(BATCHES)
    model = nn.Sequential(nn.Embedding(N, 4, max_norm=0.5), nn.Flatten(), nn.Linear(4, 3))
    opt = attached(model)
    with pytest.raises(star.StarError, match=r"0\.weight was changed in place.*max_norm"):
        loop(model, opt, star.loader(torch.utils.data.TensorDataset(torch.arange(N), Data().y), 16), lambda x, y: (ce(model, x, y).backward(), opt.step()))


def test_other_buffers(agent: Any) -> None:
    """Buffers and frozen parameters that are replaced are the job's from then on."""
    a, model = agent(BATCHES), Odd()
    opt = attached(model)

    def step(x: Any, y: Any) -> None:
        ce(model, x, y).backward()
        model.mean = 0.9 * model.mean + 0.1 * x.mean()
        model.seen = model.seen + len(x)
        model.teacher.weight.data = 0.9 * model.teacher.weight.data + 0.1 * model.a.weight.data
        model.teacher.bias = nn.Parameter(model.teacher.bias + 1, requires_grad=False)
        opt.step()
        model.mean.add_(1)

    loop(model, opt, star.loader(Data(), 16), step)
    kept = torch.cat([model.teacher.weight.flatten(), model.teacher.bias, model.mean])
    assert torch.equal(a.buffers[: len(kept)], kept) and int(a.buffers[-2:].clone().view(torch.int64)) == int(model.seen) == N and float(model.mean[0]) > 3


def test_own_gradients_moved(agent: Any) -> None:
    """A gradient reaches the job, although the script replaces its storage."""
    a, model = agent(BATCHES), small()
    opt = attached(model)

    def clip(m: Any) -> None:
        for p in m.parameters():
            p.grad.data = p.grad.data.clamp(-0.01, 0.01)

    want = plain(small(), BATCHES, lambda m, x, y: (ce(m, x, y).backward(), clip(m)))
    loop(model, opt, star.loader(Data(), 16), lambda x, y: (ce(model, x, y).backward(), clip(model), opt.step()))
    same(a.gradients, want)


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: star.loader(Data(), batch_sampler=[[1]]), "the job says how large a batch is"),
        (lambda: star.loader(Data(), shuffle=False), "the job shuffles samples"),
        (lambda: star.loader(iter([1])), "list_iterator is neither"),
        (lambda: star.loader(Data(), samples=3), "the data set has 64"),
        (lambda: star.loader(Data(), 0), "at least 1"),
        (lambda: star.loader(Data(), 16, num_worker=4), "no argument num_worker; did you mean num_workers"),
        (lambda: star.loader(Data(), 16, divisble=True), "did you mean divisible"),
        (lambda: star.loader(Data(), 16, shuffle=True, **{"loss": "max"}), 'want "mean" or "sum"'),
        (lambda: star.loader(Data(), 16.5), "batch_size=16.5.*whole number"),
    ],
)
def test_loaders_that_cannot_be(agent: Any, make: Any, says: str) -> None:
    agent(BATCHES)
    with pytest.raises(star.StarError, match=says) as e:
        make()
    assert e.value.code == 2


# Alone.


@pytest.mark.parametrize("why", ["STAR_OFF", "no launcher"])
def test_off(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """The lines are stock PyTorch."""
    for name in ("STAR_LINK_FD", "STAR_AGENT", "STAR_COORDINATOR", "RANK", "STAR_OFF"):
        monkeypatch.delenv(name, raising=False)
    if why == "STAR_OFF":
        monkeypatch.setenv("STAR_LINK_FD", "3")
        monkeypatch.setenv("STAR_OFF", "1")
    monkeypatch.setattr(star._job, "session", None)
    monkeypatch.setattr(star._job, "_stock_warned", False)
    model = small()
    mine = torch.optim.Adagrad(model.parameters(), 0.1)
    with pytest.warns(UserWarning, match="part of no job"):
        opt = star.attach(model, mine)
    assert opt is mine and type(opt) is torch.optim.Adagrad
    sched = star.schedule(lrs.StepLR(opt, 1))
    star.evaluate(lambda batch: (0.0, 0, 0), Data())
    ld = star.loader(Data(), 16, accumulate=2, epochs=3)
    assert type(ld) is torch.utils.data.DataLoader and len(ld) == 4
    for x, y in ld:
        opt.zero_grad()
        ce(model, x, y).backward()
        opt.step()
    sched.step()
    assert (star.rank(), star.workers()) == (0, 1) and opt.param_groups[0]["lr"] == pytest.approx(0.01)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
