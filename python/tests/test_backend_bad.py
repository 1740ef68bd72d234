"""The backend star of torch.distributed with bad input: each error names the rank, the call and the fix, and nothing is left behind."""

import ctypes
import os
import pathlib
import re
import resource
import signal
import time
from datetime import timedelta
from typing import Iterator, List

import pytest
from conftest import PATIENCE

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 5):
    pytest.skip("the backend needs PyTorch 2.5 or later, this is %s" % torch.__version__, allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from backend_ranks import run  # noqa: E402

import star_train.backend  # noqa: E402

NEW = not star_train.backend._GROUP
new = pytest.mark.skipif(not NEW, reason="before PyTorch 2.10 a group is no Backend")


def processes(folder: pathlib.Path) -> List[str]:
    """Commands of the processes that have a folder as TMPDIR: ranks, and what they started."""
    mark, out = b"TMPDIR=%s\0" % str(folder).encode(), []
    for p in pathlib.Path("/proc").iterdir():
        try:
            if p.name.isdigit() and mark in (p / "environ").read_bytes() + b"\0":
                out.append((p / "cmdline").read_text().replace("\0", " "))
        except OSError:
            pass
    return out


@pytest.fixture(autouse=True)
def nothing_left(star: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No file in /dev/shm and the folder of temporary files, and no process. Sockets are abstract, so they end with their process."""
    before = set(os.listdir("/dev/shm"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("STAR_AGENT", star)
    yield
    end = time.monotonic() + PATIENCE
    while True:
        left = processes(tmp_path) + [p.name for p in tmp_path.iterdir()] + [p for p in os.listdir("/dev/shm") if p not in before and "star" in p]
        if not left:
            return
        assert time.monotonic() < end, "left behind: %s" % left
        time.sleep(0.05)


def begins(rank: int, n: int, folder: str, what: str) -> str:
    """The store is in rank 0, which has the port of a file."""
    size, path = n, os.path.join(folder, "port")
    if what == "sizes":
        size += rank
    if what == "torch" and rank == 1:
        torch.__version__ = "2.5.1"
    if what == "jobs":  # rank 1 of two jobs
        size, rank = 2, min(rank, 1)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        with open(path + ".part", "w") as f:
            f.write(str(store.port))
        os.rename(path + ".part", path)
    else:
        while not os.path.exists(path):
            time.sleep(0.01)
        with open(path) as f:
            store = dist.TCPStore("127.0.0.1", int(f.read()), is_master=False, wait_for_workers=False)
    if what == "memory" and rank == 0:  # a limit of its address space would also stop threads
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20,) * 2)
    try:
        dist.init_process_group("star", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
        return "begun"
    finally:
        if rank == 0 and what == "jobs":
            while not os.path.exists(os.path.join(folder, "out1")) and not os.path.exists(os.path.join(folder, "out2")):
                time.sleep(0.01)


@pytest.mark.parametrize(
    "what, ranks, text",
    [
        ("sizes", 2, r"rank [01] \(process \d+ on .*\) has world size [23], rank [01] [23]; give all processes one WORLD_SIZE, and each job a MASTER_PORT"),
        ("sizes", 3, r"rank [012] \(process \d+ on .*\) has world size [345], rank [012] [345]; give all"),
        ("torch", 2, r"rank [01] \(process \d+ on .*\) has PyTorch \d\.\d+, rank [01] \d\.\d+; install one version everywhere"),
        ("memory", 2, r"cannot make \d+ bytes of shared memory.*check the limits of this process"),
    ],
)
def test_beginnings(what: str, ranks: int, text: str) -> None:
    for said in run(ranks, begins, what, begin=False):
        assert re.search(text, said) and "cannot " in said, said


def test_two_jobs_on_one_port() -> None:
    """Three ranks for two places: the one that comes last is refused, and the others begin."""
    said = run(3, begins, "jobs", begin=False)
    refused = [s for s in said if s != "begun"]
    assert len(refused) == 1 and said[0] == "begun", said
    assert re.search(r"process \d+ on .* already has rank 1 at this address; two jobs use one MASTER_PORT.*give each job a port, each process a rank", refused[0]), said


def shapes(rank: int, n: int, what: str) -> str:
    x = torch.ones(4 + (rank if what == "shape" else 0), dtype=torch.float64 if what == "dtype" and rank else torch.float32)
    calls = [
        lambda g: dist.all_reduce(x, group=g),
        lambda g: dist.reduce(x, 0, group=g),
        lambda g: dist.broadcast(x, 0, group=g),
        lambda g: dist.all_gather([torch.empty_like(x) for _ in range(n)], x, group=g),
        lambda g: dist.all_gather_into_tensor(torch.empty(n * len(x), dtype=x.dtype), x, group=g),
        lambda g: dist.gather(x, [torch.empty_like(x) for _ in range(n)] if rank == 0 else None, 0, group=g),
        lambda g: dist.scatter(torch.empty_like(x), [x] * n if rank == 0 else None, 0, group=g),
        lambda g: dist.reduce_scatter(torch.empty_like(x), [x] * n, group=g),
        lambda g: dist.reduce_scatter_tensor(torch.empty_like(x), x.repeat(n), group=g),
        lambda g: dist.all_to_all([torch.empty_like(x) for _ in range(n)], [x] * n, group=g),
        lambda g: dist.all_to_all_single(torch.empty(n * len(x), dtype=x.dtype), x.repeat(n), group=g),
    ]
    out = []
    for call in calls:
        group = dist.new_group()
        try:
            call(group)
            out.append("no error")
        except RuntimeError as e:
            out.append(str(e))
    return "\n".join(out)


@pytest.mark.parametrize("hosts", ["aa", "ab"])
@pytest.mark.parametrize("what", ["shape", "dtype"])
def test_mismatches(what: str, hosts: str) -> None:
    """Every collective, within a host and across hosts: the error has both calls."""
    for said in run(2, shapes, what, env=lambda r: {"STAR_HOST_ID": hosts[r], "STAR_WATCH": "false"}):
        lines = said.split("\n")
        assert len(lines) == 11
        for line in lines:
            if "all-to-all" in line:
                assert re.search(r"rank \d sends \d+ bytes to rank \d, which expects \d+; check the split sizes", line), line
                continue
            a, b = ("float32", "float64") if what == "dtype" else ("[4]", "[5]")
            assert re.search(r"collective \d+ differs: rank \d calls .*, rank \d calls .*; all ranks must make the same calls in the same order", line), line
            assert "rank 0" in line and "rank 1" in line and a in line and b in line, line


@new
def test_a_device_without_backend() -> None:
    def call(rank: int, n: int) -> str:
        group = dist.group.WORLD._get_backend(torch.device("cpu"))  # dist.all_reduce itself ends a call on meta
        said = []
        for f in (lambda x: group.allreduce([x]), lambda x: group.broadcast([x], star_train.backend._DEFAULT)):
            try:
                f(torch.ones(3, device="meta"))
                said.append("no error")
            except ValueError as e:
                said.append(str(e))
        x = torch.ones(3)
        dist.all_reduce(x)
        assert x.sum() == 3 * n
        return "|".join(said)

    for said in run(2, call):
        assert said.count("on rank") == said.count("a tensor on meta; star has cpu and cuda: copy it to one of them, or name another backend for its device") == 2, said


def large(rank: int, n: int) -> str:
    x = torch.ones((3 << 30) + 1, dtype=torch.uint8)
    dist.all_reduce(x)
    return str(all(bool((p == n).all()) for p in x.split(1 << 28)))


@pytest.mark.skipif(not os.environ.get("STAR_TEST_LARGE"), reason="needs 7 GB of memory: STAR_TEST_LARGE=1 runs it")
def test_three_gigabytes() -> None:
    assert run(2, large, seconds=PATIENCE) == ["True"] * 2


def without_shm(rank: int, n: int, folder: str) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
    if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x44000, None) or libc.mount(b"none", b"/dev/shm", b"tmpfs", 0, b"size=4k"):
        return "skip: " + os.strerror(ctypes.get_errno())
    with open("/dev/shm/full", "wb") as f:
        f.write(bytes(4096))
    dist.init_process_group("star", init_method="file://%s/store" % folder, rank=rank, world_size=n, timeout=timedelta(seconds=60))
    x = torch.ones(1 << 20)
    dist.all_reduce(x)
    return "%d %s" % (x[0], os.listdir("/dev/shm"))


def test_full_dev_shm() -> None:
    said = run(2, without_shm, begin=False)
    if said[0].startswith("skip"):
        pytest.skip("no mounts here: " + said[0])
    assert said == ["2 ['full']"] * 2


def agent_killed(rank: int, n: int, hosts: str) -> str:
    from star_train import _agent

    x = torch.ones(3)
    dist.all_reduce(x)
    agent = _agent._current
    assert agent is not None
    if rank == 0:
        os.kill(agent._own.agent, signal.SIGKILL)
    begin = time.monotonic()
    try:
        for _ in range(3):
            time.sleep(0.3)
            dist.all_reduce(x)
    except RuntimeError as e:
        assert time.monotonic() - begin < 30
        return str(e)
    return "went on with %d" % x[0]


def test_agent_is_killed(capfd: pytest.CaptureFixture[str]) -> None:
    """A job on one host needs it for measuring alone. One on several hosts ends, and names the call and the host."""
    assert run(2, agent_killed, "aa") == ["went on with 16"] * 2
    assert re.search(r"the agent of this host \(process \d+\) ended by signal 9: this job is no longer measured", capfd.readouterr().err)
    a, b = run(2, agent_killed, "ab", env=lambda r: {"STAR_HOST_ID": "ab"[r]})
    for said in a, b:
        assert re.search(r"cannot complete collective 2 \(all_reduce\(sum\) of float32\[3\]\): .*restart the job$", said), said
    assert re.search(r"the agent of this host \(process \d+\) has ended", a) and re.search(r"host 0 \(.*, rank 0\)", b), (a, b)


def agent_refused(rank: int, n: int, folder: str) -> str:
    dist.init_process_group("star", init_method="file://%s/store" % folder, rank=rank, world_size=n, timeout=timedelta(seconds=60))
    return "begun"


def test_agent_cannot_start() -> None:
    """All ranks of a group that spans hosts learn it at once."""
    for said in run(3, agent_refused, begin=False, env=lambda r: {"STAR_HOST_ID": "aab"[r], "STAR_TLS_CERT": "none.pem" if r == 2 else ""}):
        assert re.search(r"cannot begin the group, which spans hosts: rank 2 has no agent: .*ended with exit code", said), said


def twice(rank: int, n: int) -> str:
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
    try:
        dist.destroy_process_group()
    except (AssertionError, ValueError) as e:
        return "%s, %s" % (e, star_train.backend._kept)
    return "no error"


def test_destroyed_twice() -> None:
    """PyTorch itself refuses it, as with Gloo."""
    star = run(2, twice)
    assert star == run(2, twice, backend="gloo") and "no error" not in star, star


def forks(rank: int, n: int, folder: str) -> str:
    def begin(name: str) -> None:
        dist.init_process_group("star", init_method="file://%s/%s" % (folder, name), rank=rank, world_size=n, timeout=timedelta(seconds=60))

    begin("store")
    dist.all_reduce(torch.ones(3), async_op=True).wait()
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = []
        for call in (
            lambda: dist.all_reduce(torch.ones(3)),
            lambda: dist.send(torch.ones(3), 1 - rank),
            lambda: dist.barrier(),
            lambda: dist.new_group([0, 1]),
        ) + ((lambda: dist.monitored_barrier(),) if NEW else ()):
            try:
                call()
                said.append("no error")
            except RuntimeError as e:
                said.append(str(e))
        dist.destroy_process_group()
        begin("again")
        x = torch.ones(3)
        dist.all_reduce(x, group=dist.new_group([0, 1]))
        said.append("%d" % x.sum())
        dist.destroy_process_group()
        os.write(w, "|".join(said).encode())
        os._exit(3)
    os.close(w)
    heard = b"".join(iter(lambda: os.read(r, 4096), b"")).decode()
    x = torch.ones(3)
    dist.all_reduce(x)
    return "%s|%d|%d" % (heard, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), x.sum())


def test_forks() -> None:
    """A child cannot use the group, nor disturb it; it may begin one of its own."""
    for said in run(2, forks, begin=False):
        parts = said.split("|")
        assert parts[-3:] == ["6", "3", "6"], said
        assert len(parts) > 6 and all("in a process that forked after init_process_group; call destroy_process_group and then init_process_group" in p for p in parts[:-3]), said
