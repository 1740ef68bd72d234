#!/usr/bin/env python3
"""Which tool names the slow rank of a DDP job, and why it is slow: star watch and TraceML see the same runs.

  go build -o star ./cmd/star && sudo PYTHON/bin/python bench/watchers.py --star ./star --jobs 60 --out watchers.jsonl

Each job has two to four ranks over Gloo, on pretended hosts of their own (network namespaces behind a bridge), and one rank that
is injured from a step on, or none:

  forward, backward   a hook of one layer sleeps or keeps a processor busy
  data                __getitem__ sleeps or keeps a processor busy
  pause               the rank is stopped by SIGSTOP for 0.2 s of each 0.8 s
  quota               its control group may use a small part of a processor
  network             it sends with 60 to 120 Mbit/s (tc tbf), the others as fast as veth pairs go
  none                nothing

TraceML is used as its pages say for a loop of one's own: traceml.init(), trace_step() around a step, and traceml serve. The live view
(--mode cli) is read as a person would, and the verdict is that of final_summary.json. star watch needs no line of the script.

--overhead N measures the time of a step instead: without a tool, with each, in turns, N rounds.

Other programs of the machine get what processor time the jobs and the tools leave (cpu.shares): on a busy machine a quota would
take nothing away, and each rank would wait for processors.

Needs root, ip, tc, control groups of version 1, and a Python with PyTorch 2 and traceml-ai."""

import argparse
import collections
import fcntl
import json
import os
import pty
import random
import re
import runpy
import select
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

import watch

SCRIPT = r"""
import ctypes, os, sys, time, torch, torch.distributed as dist
job = __import__("json").loads(sys.argv[1])
traceml = None
if job["traceml"]:
    import traceml_ai as traceml
torch.set_num_threads(1)
children = []  # torch is imported once for all ranks
for rank in range(job["ranks"]):
    child = os.fork()
    if not child:
        break
    children.append(child)
else:
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children))
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job["ranks"]), LOCAL_WORLD_SIZE=str(job["ranks"]))
if traceml:
    traceml.init(mode="auto", connect_timeout_sec=60)
if job["hosts"]:
    if ctypes.CDLL(None, use_errno=True).setns(os.open("/run/netns/" + job["hosts"][rank], os.O_RDONLY), 0x40000000):
        sys.exit("setns: errno %d" % ctypes.get_errno())
dist.init_process_group("gloo", init_method="file://" + job["mark"] + ".store", rank=rank, world_size=job["ranks"])
kind, hurt, more, busy = job["kind"], rank == job["hurt"], job["more"], job["busy"]
now = 0  # the step
def suffer(what, seconds):
    if kind == what and hurt and now >= job["at"]:
        if busy:
            end = time.thread_time() + seconds
            while time.thread_time() < end: torch.randn(64, 64) @ torch.randn(64, 64)
        else:
            time.sleep(seconds)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 16 * job["steps"]
    def __getitem__(self, i):
        suffer("data", more / 16)
        return torch.randn(64), i % 10
def work(seconds):
    time.sleep(0.85 * seconds)
    end = time.thread_time() + 0.15 * seconds
    while time.thread_time() < end: torch.randn(64, 64) @ torch.randn(64, 64)
net = torch.nn.Sequential(torch.nn.Linear(64, job["width"]), torch.nn.ReLU(), torch.nn.Linear(job["width"], job["width"]), torch.nn.ReLU(), torch.nn.Linear(job["width"], 10))
def forward(*_):
    work(job["base"] / 2)
    suffer("forward", more)
def backward(*_):
    work(job["base"] / 2)
    suffer("backward", more)
net[2].register_forward_hook(forward)
net[2].register_full_backward_hook(backward)
net = torch.nn.parallel.DistributedDataParallel(net)
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
def step(x, y):
    opt.zero_grad()
    torch.nn.functional.cross_entropy(net(x), y).backward()
    opt.step()
times = []
for x, y in torch.utils.data.DataLoader(Data(), batch_size=16, num_workers=job["workers"]):
    if now == job["at"] and (hurt or job["hurt"] < 0 and rank == 0):
        with open(job["mark"] + ".new", "w") as f: f.write("%d %.6f" % (os.getpid(), time.time()))
        os.rename(job["mark"] + ".new", job["mark"])
    if traceml:
        with traceml.trace_step(net):
            step(x, y)
    else:
        step(x, y)
    now += 1
    times.append(time.time())
if rank == 0:
    with open(job["mark"] + ".times", "w") as f: f.write(" ".join("%.6f" % t for t in times))
dist.barrier()
dist.destroy_process_group()
"""

# Programs are forked from one that has imported PyTorch, which takes longer than a job on a busy machine. What star watch starts is
# this one: it has the other program run a script with its environment, and ends with its exit code. The hook of star watch is
# installed after PyTorch was imported then, and not before; it serves both.
CLIENT = r"""
import json, os, signal, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
socket.send_fds(s, [json.dumps({"argv": sys.argv[2:], "env": dict(os.environ), "cwd": os.getcwd()}).encode() + b"\n"], [0, 1, 2])
answers = s.makefile()
pid = int(next(answers))
for n in (signal.SIGINT, signal.SIGTERM):
    signal.signal(n, lambda n, _: os.kill(pid, n))
sys.exit(int(next(answers, 1)))
"""

KINDS = ("backward", "forward", "data", "pause", "quota", "network", "none")

# What each tool may call the cause of an injury. TraceML has no words for a pause, a quota or a slow link: it tells
# input, forward and other work apart.
STAR = {"forward": {"blocked", "compute"}, "backward": {"blocked", "compute"}, "data": {"data"}, "pause": {"pauses"}, "quota": {"quota"}, "network": {"network-out"}}
TRACEML = {"forward": {"COMPUTE_STRAGGLER"}, "backward": {"COMPUTE_STRAGGLER"}, "data": {"INPUT_STRAGGLER"}, "pause": set(), "quota": set(), "network": set()}
NAMES = ("COMPUTE_STRAGGLER", "INPUT_STRAGGLER", "H2D_STRAGGLER", "STRAGGLER")  # verdicts of TraceML that name a rank; the last has no cause


def run(line, **more):
    return subprocess.run(line.split(), check=True, capture_output=True, text=True, **more)


class Hosts:
    """Network namespaces behind a bridge, and a control group for all that this program starts."""

    def __init__(self, n):
        self.tag = "wt%d" % (os.getpid() % 10000)
        self.group = f"{watch.CPU}/{self.tag}"
        os.mkdir(self.group)
        for name, value in ("cpu.shares", 262144), ("cgroup.procs", os.getpid()):
            with open(f"{self.group}/{name}", "w") as f:
                f.write(str(value))
        self.names = [f"{self.tag}h{i}" for i in range(n)]
        run(f"ip netns add {self.tag}s")
        run(f"ip -n {self.tag}s link add br0 type bridge")
        run(f"ip -n {self.tag}s link set br0 up")
        for i, ns in enumerate(self.names):
            run(f"ip netns add {ns}")
            run(f"ip link add eth0 netns {ns} type veth peer name p{i} netns {self.tag}s")
            run(f"ip -n {ns} addr add 10.84.0.{i + 1}/24 dev eth0")
            run(f"ip -n {ns} link set lo up")
            run(f"ip -n {ns} link set eth0 up")
            run(f"ip -n {self.tag}s link set p{i} master br0 up")

    def close(self):
        for ns in self.names + [self.tag + "s"]:
            subprocess.run(["ip", "netns", "del", ns], capture_output=True)
        with open(f"{watch.CPU}/cgroup.procs", "w") as f:
            f.write(str(os.getpid()))
        try:
            os.rmdir(self.group)
        except OSError:  # a program of it is not over yet
            pass


def injure(job, pid, over):
    """What is done to a rank from outside until over is set."""
    kind = job["kind"]
    if kind == "pause":
        while not over.is_set():
            try:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.2)
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                return
            over.wait(0.6)
    elif kind == "quota":
        watch.limited(pid, over, ("cpu.shares", 262144), ("cpu.cfs_period_us", 50000), ("cpu.cfs_quota_us", int(50000 * job["quota"])))
    elif kind == "network":
        ns = job["hosts"][job["hurt"]]
        run(f"ip netns exec {ns} tc qdisc add dev eth0 root tbf rate {job['mbit']}mbit burst 64kb latency 100ms")
        over.wait()
        subprocess.run(f"ip netns exec {ns} tc qdisc del dev eth0 root".split(), capture_output=True)


def fork_server(path):
    """Forks programs for CLIENT until its parent ends."""
    import ctypes

    def tied(n=signal.SIGKILL):
        ctypes.CDLL(None).prctl(1, n)  # PR_SET_PDEATHSIG

    tied()
    import torch._dynamo  # as the first DistributedDataParallel does, for seconds
    import torch.distributed
    import torch.nn.parallel
    import torch.utils.data
    import traceml_ai.launcher.cli
    import traceml_ai.sdk

    assert traceml_ai.sdk and torch
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".new")
    listener.listen(16)
    os.rename(path + ".new", path)
    listener.settimeout(0.1)
    open_ = {}
    while True:
        for pid, c in list(open_.items()):
            if select.select([c], [], [], 0)[0] and not c.recv(1, socket.MSG_PEEK):  # the client is gone
                os.killpg(pid, signal.SIGKILL)
            if (done := os.waitpid(pid, os.WNOHANG))[0]:
                with open_.pop(pid) as c:
                    try:
                        c.sendall(b"%d\n" % (os.waitstatus_to_exitcode(done[1]) & 255))
                    except OSError:
                        pass
        try:
            c, _ = listener.accept()
        except TimeoutError:
            continue
        c.settimeout(None)
        data, fds, _, _ = socket.recv_fds(c, 65536, 3)
        while not data.endswith(b"\n"):
            data += c.recv(65536)
        pid = os.fork()
        if pid:
            for fd in fds:
                os.close(fd)
            open_[pid] = c
            c.sendall(b"%d\n" % pid)
            continue
        tied()
        os.setsid()
        for i, fd in enumerate(fds):
            os.dup2(fd, i)
        listener.close()
        what = json.loads(data)
        os.environ.clear()
        os.environ.update(what["env"])
        os.chdir(what["cwd"])
        sys.argv = what["argv"]
        if os.environ.get("STAR_WATCH_SOCKET"):
            sys.path.insert(0, os.environ["PYTHONPATH"].split(os.pathsep)[0])
            import star_watch

            star_watch.install()
        if sys.argv[0] == "traceml":
            sys.exit(traceml_ai.launcher.cli.main())
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit(0)


class Forks:
    def __init__(self):
        self.dir = tempfile.TemporaryDirectory()
        self.path, self.client = os.path.join(self.dir.name, "s"), os.path.join(self.dir.name, "client.py")
        with open(self.client, "w") as f:
            f.write(CLIENT)
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--fork-server", self.path])
        while not os.path.exists(self.path):
            if self.process.poll() is not None:
                sys.exit("bench/watchers.py: PyTorch or traceml-ai cannot be imported")
            time.sleep(0.1)

    def command(self, *what):
        return [sys.executable, "-S", "-E", self.client, self.path, *what]

    def close(self):
        self.process.kill()
        self.process.wait()
        self.dir.cleanup()


class Serve:
    """traceml serve, with a terminal: its text is kept, with times."""

    def __init__(self, forks, d, ranks):
        self.port = random.randint(30000, 40000)
        self.logs = os.path.join(d, "logs")
        self.seen = []
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
        command = forks.command("traceml", "serve", "--mode", "cli", "--logs-dir", self.logs, "--run-name", "r", "--nproc-per-node", str(ranks),
                                "--aggregator-port", str(self.port))
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=d, start_new_session=True)
        os.close(slave)
        self.thread = threading.Thread(target=self.read, args=(master,), daemon=True)
        self.thread.start()

    def read(self, master):
        text = ""
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:
                return
            if not data:
                return
            text = (text + re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", data.decode(errors="replace")))[-20000:]
            for m in re.finditer(r"Issue: ([A-Z0-9 -]*[A-Z])", text):
                self.seen.append((time.time(), m.group(1).replace(" ", "_")))
            text = text[text.rfind("Issue:") + 6:] if "Issue:" in text[:-60] else text

    def wait(self):
        """Waits until ranks can connect."""
        end = time.time() + 120
        while time.time() < end and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("traceml serve did not start within two minutes")

    def env(self):
        return {"TRACEML_SESSION_ID": "r", "TRACEML_AGGREGATOR_PORT": str(self.port), "TRACEML_LOGS_DIR": self.logs}

    def close(self):
        """The verdict of the run."""
        path = os.path.join(self.logs, "r", "final_summary.json")
        time.sleep(3)  # for the last rows of the ranks
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                pass
        try:
            with open(path) as f:
                return json.load(f)
        except (OSError, ValueError):
            return {}


def plan(a):
    """The jobs, from the seed."""
    dice = random.Random(a.seed)
    kinds = []
    while len(kinds) < a.jobs:  # the beginning of the plan has of each kind as many, too
        kinds += dice.sample(a.kinds.split(","), len(a.kinds.split(",")))
    jobs = []
    for kind in kinds[: a.jobs]:
        ranks = dice.randint(2, 4)
        base = dice.choice([0.03, 0.04, 0.06])
        jobs.append({"kind": kind, "ranks": ranks, "hurt": dice.randrange(ranks) if kind != "none" else -1, "at": dice.randint(20, 40), "base": base,
                     "more": base * dice.uniform(0.6, 1.5), "busy": dice.random() < 0.5, "width": 512 if kind == "network" else dice.choice([128, 256, 512]),
                     "mbit": dice.choice([60, 80, 120]), "quota": dice.uniform(0.07, 0.12), "workers": 0, "steps": 0})
        jobs[-1]["steps"] = jobs[-1]["at"] + int(a.seconds / (2 * base))
    return jobs


class Job:
    """A job under the tools."""

    def __init__(self, a, forks, job, hosts, star=True, traceml=True):
        self.a, self.dir = a, tempfile.TemporaryDirectory()
        d = self.dir.name
        self.mark, script = os.path.join(d, "mark"), os.path.join(d, "train.py")
        with open(script, "w") as f:
            f.write(SCRIPT)
        self.job = dict(job, mark=self.mark, traceml=traceml, hosts=hosts.names[: job["ranks"]] if hosts else [])
        env = dict(os.environ, OMP_NUM_THREADS="1", TMPDIR=d, GLOO_SOCKET_IFNAME="eth0" if hosts else "lo")
        self.serve = None
        if traceml:
            self.serve = Serve(forks, d, job["ranks"])
            self.serve.wait()
            env.update(self.serve.env())
        command = forks.command(script, json.dumps(self.job))
        if star:
            command = [a.star, "watch", "--out", os.path.join(d, "w"), "--"] + command
        self.process = p = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=d, start_new_session=True)
        self.said, self.over = [], threading.Event()
        self.hearing = threading.Thread(target=lambda: self.said.extend((time.time(), line.rstrip()) for line in p.stderr))
        self.hearing.start()

    def hurt(self):
        while not os.path.exists(self.mark):
            if self.over.wait(0.05):
                return
        with open(self.mark) as f:
            injure(self.job, int(f.read().split()[0]), self.over)

    def run(self):
        """Exit code, the time of the injury, times of steps, and what the tools said."""
        hurting = threading.Thread(target=self.hurt)
        hurting.start()
        try:
            code = self.process.wait(self.a.limit)
        except subprocess.TimeoutExpired:
            code = -1
        self.over.set()
        hurting.join()
        summary = self.serve.close() if self.serve else {}
        since, times = 0.0, []
        if os.path.exists(self.mark):
            since = float(open(self.mark).read().split()[1])
        if os.path.exists(self.mark + ".times"):
            times = [float(t) for t in open(self.mark + ".times").read().split()]
        log = os.path.join(self.dir.name, "w", "run.jsonl")
        if self.a.keep and os.path.exists(log):
            shutil.copy(log, os.path.join(self.a.keep, f"{self.job['kind']}-{self.job['hurt']}-{int(time.time())}.jsonl"))
        self.hearing.join(30)
        return code, since, times, self.said, self.serve.seen if self.serve else [], summary

    def close(self):
        self.over.set()
        for p in [self.process] + ([self.serve.process] if self.serve else []):
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            p.wait()
        self.hearing.join()
        self.dir.cleanup()


def judge(job, since, said, seen, summary):
    """What each tool named: ranks, the last cause of the injured rank, seconds until it was named."""
    star = {"ranks": set(), "cause": "", "delay": None}
    for at, line in said:
        m = re.match(r"watch \| rank (\d+) on \S+ is [0-9.]+x slow.*\((?:cause: |the cause is )([a-z-]+)(?: now)?\)", line)
        if m:
            star["ranks"].add(int(m.group(1)))
            if int(m.group(1)) == job["hurt"]:
                star["cause"] = m.group(2)
                star["delay"] = star["delay"] if star["delay"] is not None else at - since
    verdict = (summary.get("step_time") or {}).get("diagnosis") or {}
    traceml = {"ranks": set(), "cause": "", "delay": None, "verdict": verdict.get("kind", "")}
    if verdict.get("kind") in NAMES:
        traceml["ranks"] = set(verdict.get("ranks") or [])
        if not traceml["ranks"] and verdict.get("evidence"):
            traceml["ranks"] = {verdict["evidence"].get("culprit_rank")}
        if job["hurt"] in traceml["ranks"]:
            traceml["cause"] = verdict["kind"] if verdict["kind"] != "STRAGGLER" else ""
            traceml["delay"] = next((at - since for at, kind in seen if at > since and kind in NAMES), None)
    return star, traceml


def table(rows):
    print("| tool | jobs | rank: precision | recall | F1 | cause: right | wrong | none | precision | recall | F1 | seconds until named, median (most) |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for tool, causes in ("star", STAR), ("traceml", TRACEML):
        tp = sum(r["hurt"] in r[tool]["ranks"] for r in rows)
        fp = sum(len(set(r[tool]["ranks"]) - {r["hurt"]}) for r in rows)
        sick = [r for r in rows if r["hurt"] >= 0]
        right = sum(r[tool]["cause"] in causes[r["kind"]] for r in sick)
        named = sum(bool(r[tool]["cause"]) for r in sick)
        delays = sorted(r[tool]["delay"] for r in sick if r[tool]["delay"] is not None)
        delay = f"{statistics.median(delays):.1f} ({delays[-1]:.1f})" if delays else "–"
        print(f"| {tool} | {len(rows)} | {f1(tp, fp, len(sick) - tp)} | {right} | {named - right} | {len(sick) - named} | {f1(right, named - right, len(sick) - right)} | {delay} |")
    print()
    print("| injury | jobs | star: right rank | another rank | right cause | TraceML: right rank | another rank | right cause |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for kind in KINDS:
        rs = [r for r in rows if r["kind"] == kind]
        cells = []
        for tool, causes in ("star", STAR), ("traceml", TRACEML):
            cells += [sum(r["hurt"] in r[tool]["ranks"] for r in rs) if kind != "none" else "–", sum(bool(set(r[tool]["ranks"]) - {r["hurt"]}) for r in rs),
                      sum(r[tool]["cause"] in causes[kind] for r in rs) if kind != "none" else "–"]
        print(f"| {kind} | {len(rs)} | " + " | ".join(map(str, cells)) + " |")


def f1(tp, wrong, missed):
    p, r = tp / max(tp + wrong, 1), tp / max(tp + missed, 1)
    return f"{p:.2f} | {r:.2f} | {2 * p * r / max(p + r, 1e-9):.2f}"


def overhead(a, forks):
    """The time of a step of 10 ms, without a tool and with each, in turns."""
    arms = [("none", False, False), ("star", True, False), ("traceml", False, True)]
    medians = collections.defaultdict(list)
    for n in range(a.overhead):
        for name, star, traceml in arms[n % 3:] + arms[: n % 3]:
            job = {"kind": "none", "ranks": 2, "hurt": -1, "at": 50, "base": 0.01, "more": 0, "busy": False, "width": 128, "mbit": 0, "quota": 0, "workers": 0, "steps": 50 + int(a.seconds / 0.01)}
            this = Job(a, forks, job, None, star, traceml)
            try:
                code, since, times, said, _, _ = this.run()
            finally:
                this.close()
            if code or len(times) < 100:
                print(f"# {name}: exit {code}: " + " ".join(line for _, line in said[-3:]), flush=True)
                continue
            gaps = [y - x for x, y in zip(times[50:], times[51:])]
            medians[name].append(statistics.median(gaps))
            print(f"{n},{name},{1e3 * medians[name][-1]:.3f},{os.getloadavg()[0]:.0f}", flush=True)
    base = medians["none"]
    for name in medians:
        ratios = [x / y for x, y in zip(medians[name], base)]
        print(f"# {name}: {1e3 * statistics.median(medians[name]):.3f} ms a step, median of {len(medians[name])}; {100 * (statistics.median(ratios) - 1):+.2f} % beside none, in pairs")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--star", default=shutil.which("star") or "./star")
    p.add_argument("--jobs", type=int, default=60)
    p.add_argument("--kinds", default=",".join(KINDS))
    p.add_argument("--seconds", type=float, default=20, help="about how long a job runs after its injury")
    p.add_argument("--limit", type=float, default=240, help="seconds after which a job is ended")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out", default="", help="a file for one line of JSON a job; jobs that it has are not run again")
    p.add_argument("--keep", default="", help="a folder for run logs")
    p.add_argument("--overhead", type=int, default=0)
    p.add_argument("--fork-server", default="", help=argparse.SUPPRESS)
    p.add_argument("--verbose", action="store_true")
    a = p.parse_args()
    a.star = os.path.abspath(a.star)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # hosts are removed
    if a.fork_server:
        return fork_server(a.fork_server)
    if a.overhead:
        forks = Forks()
        try:
            return overhead(a, forks)
        finally:
            forks.close()
    if unknown := set(a.kinds.split(",")) - set(KINDS):
        p.error(f"--kinds: {', '.join(sorted(unknown))}: want some of {', '.join(KINDS)}")
    if os.getuid() != 0 or not os.path.exists(watch.CPU + "/cpu.cfs_quota_us"):
        sys.exit("bench/watchers.py: needs root and control groups of version 1 with cpu")
    rows = []
    if a.out and os.path.exists(a.out):
        rows = [json.loads(line) for line in open(a.out)]
    hosts, forks = Hosts(4), None
    try:
        forks = Forks()
        for i, job in enumerate(plan(a)):
            if i < len(rows):
                continue
            print(f"{i} {job['kind']}", end=" ", flush=True)
            this = Job(a, forks, job, hosts)
            try:
                code, since, times, said, seen, summary = this.run()
            finally:
                this.close()
            star, traceml = judge(job, since, said, seen, summary)
            rows.append(dict(job, star=dict(star, ranks=sorted(star["ranks"])), traceml=dict(traceml, ranks=sorted(traceml["ranks"])), exit=code, load=os.getloadavg()[0],
                             took=times[-1] - times[0] if times else 0, said=[line for _, line in said][-12:]))
            if a.out:
                with open(a.out, "a") as f:
                    f.write(json.dumps(rows[-1]) + "\n")
            print(f"rank {job['hurt']} of {job['ranks']}, exit {code}, load {rows[-1]['load']:.0f}: star {star['ranks'] or '–'} {star['cause']} {star['delay']}; "
                  f"TraceML {traceml['ranks'] or '–'} {traceml['verdict']} {traceml['delay']}", flush=True)
            if a.verbose or code:
                print("\n".join(line for _, line in said), flush=True)
    finally:
        if forks:
            forks.close()
        hosts.close()
    seen = [r for r in rows if r["traceml"]["verdict"] and not r["exit"]]  # by both
    print(f"{len(seen)} of {len(rows)} jobs were seen by both tools")
    table(seen)


if __name__ == "__main__":
    main()
