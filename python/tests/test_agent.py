"""Collectives between hosts: processes with two host names share agents. Nothing here needs torch."""

import datetime
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List

import pytest
from conftest import PATIENCE, ROOT

STORE = """
import os, pathlib, struct, sys, time
sys.path[:0] = %r
from star_train import _agent, _link

class Store:
    'As torch.distributed.Store, in a folder.'
    def __init__(self, folder): self.folder = pathlib.Path(folder)
    def _path(self, key): return self.folder / key.replace("/", "%%2F").replace(" ", "_")
    def set(self, key, value):
        part = self._path(key + ".part%%d" %% os.getpid())
        part.write_bytes(value.encode() if isinstance(value, str) else value)
        part.rename(self._path(key))
    def check(self, keys): return all(self._path(k).exists() for k in keys)
    def wait(self, keys, timeout):
        end = time.monotonic() + timeout.total_seconds()
        while not self.check(keys):
            if time.monotonic() > end: raise RuntimeError("wait timeout")
            time.sleep(0.002)
    def get(self, key): return self._path(key).read_bytes()
    def add(self, key, n):  # each key has one writer
        value = int(self.get(key)) + n if self.check([key]) else n
        self.set(key, str(value))
        return value
"""

BEGIN = """
folder, rank, size, local = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
store = Store(folder)
host, hosts = int(os.environ["STAR_HOST_ID"]), int(sys.argv[5])
agent = _agent.Agent.ensure(store, rank, size, local, 30)
def meet(n):
    store.set("met/%s/%d" % (n, rank), "")
    store.wait(["met/%s/%d" % (n, r) for r in range(size)], __import__("datetime").timedelta(seconds=30))
meet("agent")
if local == 0:
    fd = os.memfd_create("group")
    os.truncate(fd, 1 << 20)
    import mmap
    memory = memoryview(mmap.mmap(fd, 1 << 20))
    group = agent.group(store, "world", host, hosts, fd, 1 << 20, 30)
    os.close(fd)
    floats = memory.cast("f")
"""


def rest(p: "subprocess.Popen[str]", text: str = "") -> str:
    """What a process prints after the lines that were read, until its end. communicate would miss what is in the buffer of p.stdout."""
    assert p.stdin and p.stdout
    try:
        p.stdin.write(text)
        p.stdin.close()
    except BrokenPipeError:
        pass
    out = p.stdout.read()
    p.wait(PATIENCE)
    return out


class Job:
    """Processes of a script on pretended hosts."""

    def __init__(self, star: str, folder: pathlib.Path, script: str) -> None:
        self.star, self.folder = star, folder
        (folder / "store").mkdir()
        where = [] if os.environ.get("STAR_TEST_INSTALLED") else [str(ROOT / "python")]
        (folder / "run.py").write_text(STORE % (where,) + BEGIN + script)
        self.all: List["subprocess.Popen[str]"] = []

    def start(self, hosts: int, each: int, **env: str) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("STAR_") and k != "MASTER_ADDR"}
        for rank in range(hosts * each):
            args = [sys.executable, str(self.folder / "run.py"), str(self.folder / "store"), str(rank), str(hosts * each), str(rank % each), str(hosts)]
            all_env = {**clean, "STAR_AGENT": self.star, "STAR_HOST_ID": str(rank // each), **env}
            self.all.append(subprocess.Popen(args, env=all_env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))

    def outputs(self) -> List[str]:
        return [rest(p) for p in self.all]

    def close(self) -> None:
        for p in self.all:
            if p.poll() is None:
                p.kill()
                p.wait()


@pytest.fixture
def run(star: str, tmp_path: pathlib.Path) -> Any:
    jobs: List[Job] = []

    def make(script: str) -> Job:
        jobs.append(Job(star, tmp_path, script))
        return jobs[-1]

    yield make
    for j in jobs:
        j.close()


def agents() -> Dict[int, str]:
    """Processes that run star agent."""
    out = {}
    for p in pathlib.Path("/proc").iterdir():
        if p.name.isdigit():
            try:
                words = (p / "cmdline").read_bytes().split(b"\0")
                if words[1:2] == [b"agent"]:
                    out[int(p.name)] = (p / "stat").read_text().split(")")[1].split()[0]
            except (OSError, IndexError):
                pass
    return out


def gone(pids: List[int]) -> None:
    """Waits until agents have ended."""
    end = time.monotonic() + PATIENCE
    while set(pids) & {p for p, state in agents().items() if state != "Z"}:
        assert time.monotonic() < end, "agents %s are left: %s" % (pids, agents())
        time.sleep(0.01)


def test_operations(run: Any) -> None:
    """Two hosts of two processes: sums, bytes from all to all, a broadcast, a second group, a fork; the agents end with the processes."""
    job = run("""
pid = os.fork()  # as a DataLoader does: the child outlives the group
if pid == 0:
    try:
        agent._own.ask("again", _agent.BARRIER)
    except _link.StarError as e:
        assert "was forked from" in str(e), e
        if local == 0:
            try: group.barrier(5)
            except _link.StarError as e: assert "was forked from" in str(e), e
    sys.stdin.readline()
    os._exit(0)
if local == 0:
    assert [n.rsplit(" ", 1)[1] for n in group.names] == ["0", "2"], group.names
    for op, want in ("sum", 3), ("mean", 1.5), ("max", 2), ("min", 1):
        floats[16:1016] = memoryview(b"".join(struct.pack("f", host + 1) for _ in range(1000))).cast("f")
        group.all_reduce(64, 1000, "float32", op, 30)
        assert floats[16] == floats[1015] == want and floats[1016] == 0, (op, floats[16])
    memory[0:6], memory[10:20] = bytes([host] * 6), bytes(10)
    group.exchange([(0, 4 + host)] * 2, [(10, 5 - host)] * 2, __import__("datetime").timedelta(seconds=30))
    assert bytes(memory[10:20]) == bytes([1 - host] * (5 - host) + [0] * (5 + host)), bytes(memory[10:20])
    group.broadcast(1, 0, 5, 30)
    assert bytes(memory[0:6]) == bytes([1] * 5 + [host]), bytes(memory[0:6])
    group.barrier(30)
    fd = os.memfd_create("second")
    os.truncate(fd, 4096)
    second = agent.group(store, "world", host, 2, fd, 4096, 30)  # the same name again
    second.all_reduce(0, 4, "int64", "sum", 30)
    for call, want in (
        (lambda: second.all_reduce(0, 4, "int8", "sum", 30), "it has the types float32"),
        (lambda: second.all_reduce(0, 4, "float32", "product", 30), "the operators sum"),
        (lambda: second.all_reduce(4096, 4, "float32", "sum", 30), "outside the group's memory of 4096 bytes"),
        (lambda: second.all_reduce(-1, 4, "float32", "sum", 30), "must be from 0"),
        (lambda: second.broadcast(2, 0, 1, 30), "no host 2 of 2"),
        (lambda: second.exchange([], [], 30), "for each of 2 hosts"),
        (lambda: second.exchange([(0, 8)] * 2, [(4, 8)] * 2, 30), "overlap"),
    ):
        try: call()
        except _link.StarError as e: assert want in str(e) and e.code == 2, e
        else: raise AssertionError(want)
    second.barrier(30)
    second.close()
    group.close()
    try: group.barrier(1)
    except _link.AgentLost as e: assert "was closed" in str(e), e
meet("end")
assert _agent.Agent.ensure(store, rank, size, local, 30) is agent
print("agent", agent._own.agent)
agent.close()
agent.close()
assert _agent._current is None
""")
    job.start(2, 2)
    lines = [p.stdout.readline() for p in job.all]
    assert all(line.startswith("agent ") for line in lines), (lines, job.outputs())
    pids = sorted({int(line.split()[1]) for line in lines})
    assert len(pids) == 2
    gone(pids)  # though the forked processes are still there
    for p, out in zip(job.all, job.outputs()):
        assert p.returncode == 0, out
        assert out == "", out


FAULT = """
import signal
if local == 0:
    group.barrier(30)
    print("ready", agent._own.agent, flush=True)
    if host == 1:
        sys.stdin.readline()
    try:
        group.all_reduce(0, 1000, "float32", "sum", float(os.environ.get("WITHIN", "30")))
    except _link.StarError as e:
        print(type(e).__name__, e.code, e)
else:
    sys.stdin.readline()
"""


def faulty(run: Any, **env: str) -> Any:
    job = run(FAULT)
    job.start(2, 1, **env)
    lines = [p.stdout.readline() for p in job.all]
    assert all(line.startswith("ready") for line in lines), (lines, job.outputs())
    return job, [int(line.split()[1]) for line in lines]


def test_lost_process(run: Any) -> None:
    """The process of a host is killed: the other host's operation ends with an error that names it."""
    job, pids = faulty(run)
    job.all[1].kill()
    out = rest(job.all[0])
    assert out.startswith("HostLost 69 all_reduce (sum of 1000 float32) in group 'world' of 2 hosts: host 1 (") and ", rank 1)" in out, out
    gone(pids)


def test_lost_agent(run: Any) -> None:
    """An agent is killed: its own process and the other host get errors that say so."""
    job, pids = faulty(run)
    os.kill(pids[1], 9)
    out = rest(job.all[0])
    assert out.startswith("HostLost 69 ") and "host 1 (" in out, out
    out = rest(job.all[1], "\n")
    assert "AgentLost 69 all_reduce (sum of 1000 float32)" in out and "ended by signal 9: this job is no longer measured" in out and "(process %d) has ended" % pids[1] in out, out


def test_late_host(run: Any) -> None:
    """A host that does not come within the time of a call is named."""
    job, _ = faulty(run, WITHIN="0.3")
    out = rest(job.all[0])
    assert out.startswith("HostLost 69 ") and "host 1 (" in out and "no byte has moved for 300ms" in out, out


def test_bad_start(tmp_path: pathlib.Path, run: Any) -> None:
    """Settings that the agent refuses end each process of the host with the agent's exit code or the reason."""
    job = run("")
    job.start(1, 2, STAR_TLS_CERT=str(tmp_path / "none.pem"))
    outs = job.outputs()
    assert all(p.returncode == 1 for p in job.all)
    assert "none.pem" in outs[0] and "has ended with exit code 2" in outs[0], outs[0]
    assert "could not be started" in outs[1] and "exit code 2" in outs[1], outs[1]


WATCH = """
os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
print("measured", agent.watch(), flush=True)
if agent.watch():
    import star_watch
    for n in range(40):
        with star_watch.step(samples=32):
            time.sleep(0.02 if rank == 2 else 0.002)
            with star_watch.exchange():
                meet(n)
meet("end")
agent.close()
"""


def test_watch(tmp_path: pathlib.Path, run: Any) -> None:
    """Processes of two hosts are measured without star watch: the agent of rank 0's host judges all, and writes a run log where that is wanted."""
    job = run(WATCH)
    job.start(2, 2, STAR_WATCH_OUT=str(tmp_path / "log"), TMPDIR=str(tmp_path))
    outs = job.outputs()
    assert [p.returncode for p in job.all] == [0] * 4, outs
    assert "4 ranks of run.py on 1 host" in outs[0] and "40 steps in " in outs[0], outs
    assert outs[1:] == ["measured True\n"] * 3, outs
    lines = [json.loads(x) for x in (tmp_path / "log" / "run.jsonl").read_text().splitlines()]
    own = [[x["compute"] for x in lines if x["type"] == "record" and x["worker"] == w] for w in range(4)]
    assert [len(o) for o in own] == [40] * 4 and min(own[2]) >= 0.02 > min(own[0]), own
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("star-watch-")]


def test_watch_off(run: Any) -> None:
    job = run(WATCH)
    job.start(1, 2, STAR_WATCH="false")
    assert job.outputs() == ["measured False\n"] * 2


@pytest.mark.skipif(bool(os.environ.get("STAR_TEST_INSTALLED")), reason="the wheel has the program")
def test_no_program(run: Any) -> None:
    """Without a program star there is no agent; the others of the host know at once."""
    job = run("")
    text = (job.folder / "run.py").read_text()
    (job.folder / "run.py").write_text(text.replace("if local == 0:", "print(agent)\nif agent is not None and local == 0:"))
    job.start(1, 2, STAR_AGENT="", PATH="/nowhere")
    assert job.outputs() == ["None\n", "None\n"]


def test_parts() -> None:
    sys.path[:0] = [] if os.environ.get("STAR_TEST_INSTALLED") else [str(ROOT / "python")]
    from star_train import _agent

    assert _agent._seconds(datetime.timedelta(minutes=2)) == 120 and _agent._seconds(1.5) == 1.5
    given = os.environ.pop("STAR_HOST_ID", None)
    try:
        assert len(_agent.host_id()) > 36 and _agent.host_id() == _agent.host_id()
        os.environ["STAR_HOST_ID"] = "a"
        assert _agent.host_id() == "a"
    finally:
        os.environ.pop("STAR_HOST_ID", None)
        if given is not None:
            os.environ["STAR_HOST_ID"] = given
    code = "import sys; sys.path[:0] = %r; import star_train._agent; print('torch' in sys.modules)" % sys.path[:1]
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


BACKEND = """
import os, sys
sys.path[:0] = %r
import torch, torch.distributed as dist
import star_train.backend
torch.set_num_threads(1)
for r in range(4):
    if os.fork() == 0: break
else:
    sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(4)))
code = 1
try:
    os.environ.update(RANK=str(r), STAR_HOST_ID=str(r // 2))
    dist.init_process_group("star")
    n = dist.get_world_size()
    for size in 5, 300_000:
        for kind in torch.float32, torch.int64, torch.bfloat16, torch.uint8:
            x = torch.full((size,), r + 1, dtype=kind)
            dist.all_reduce(x)
            assert (x == 10).all(), (size, kind, x)
    outs = [torch.empty(3) for _ in range(n)]
    dist.all_gather(outs, torch.full((3,), float(r)))
    assert [o[2].item() for o in outs] == [0, 1, 2, 3]
    sub = dist.new_group([1, 2])  # one process of each host
    if r in (1, 2):
        x = torch.full((7,), float(r))
        dist.broadcast(x, 2, group=sub)
        assert (x == 2).all()
    dist.barrier()  # rank 0 has the store
    from star_train import _agent
    os.write(1, b"agent %%d %%d\\n" %% (r // 2, _agent._current._own.agent))  # in one piece
    dist.destroy_process_group()
    code = 0
finally:
    if code: __import__("traceback").print_exc()
    os._exit(code)
"""


def test_backend(star: str, tmp_path: pathlib.Path) -> None:
    """The backend star over two pretended hosts of two processes: their agents carry sums, other types and a sub-group, and none is left."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if tuple(int(x) for x in torch.__version__.split(".")[:2]) < (2, 5):
        pytest.skip("the backend needs PyTorch 2.5")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    where = [] if os.environ.get("STAR_TEST_INSTALLED") else [str(ROOT / "python")]
    (tmp_path / "run.py").write_text(BACKEND % (where,))
    env = {k: v for k, v in os.environ.items() if not k.startswith("STAR_")}
    env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="4", STAR_AGENT=star, STAR_WATCH="false")
    done = subprocess.run([sys.executable, str(tmp_path / "run.py")], env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    of = sorted({tuple(map(int, line.split()[1:])) for line in done.stdout.splitlines()})
    assert len(of) == 2 and [host for host, _ in of] == [0, 1] and of[0][1] != of[1][1], done.stdout
    gone([pid for _, pid in of])
