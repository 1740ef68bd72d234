#!/usr/bin/env python3
"""How often star watch names a hang rightly: real jobs of three ranks over Gloo that hang, and jobs that do not.

  go build -o star ./cmd/star && python3 bench/hangs.py --star ./star --each 3 --clean 10 --engines ddp,fsdp2

Prints a CSV line for each job: what happened to which rank, what star watch said, how long after the hang, and whether
rank, call and line are right. A wrong shape ends a job over Gloo at once: there the last calls are to be named.
--after sets the time that counts as a hang, for tries; the table is of the default, 15 s. Needs PyTorch 2.6 for fsdp2."""

import argparse
import collections
import concurrent.futures
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SCRIPT = r"""
import os, signal, sys, time
kind, engine, hurt, at, workers, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6])
def injured():
    open(os.environ["MARK"], "w").write(str(time.time()))
if kind == "start" and int(os.environ.get("RANK", -1)) == hurt:
    time.sleep(10000)  # LINE start
import torch
import torch.distributed as dist
torch.set_num_threads(1)
if "RANK" not in os.environ:  # torch is imported once for all ranks
    children = []
    for rank in range(int(os.environ["WORLD_SIZE"])):
        if not (child := os.fork()):
            os.environ["RANK"] = str(rank)
            break
        children.append(child)
    else:
        for child in children:
            os.waitpid(child, 0)
        os._exit(0)
if kind == "start" and not os.path.exists(os.environ["MARK"]):
    injured()  # it hangs from the first rank that waits on
dist.init_process_group("gloo")
rank = dist.get_rank()
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1000000
    def __getitem__(self, i):
        if kind in ("loader", "worker") and rank == hurt and i >= at * 8:
            injured()
            if kind == "worker": os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(10000)  # LINE loader
        return torch.randn(64), i % 10
net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
if engine == "ddp":
    net = torch.nn.parallel.DistributedDataParallel(net)
else:
    from torch.distributed.fsdp import fully_shard
    for part in (net[0], net[2]):
        fully_shard(part)
    fully_shard(net)
if kind == "compile":
    net = torch.compile(net)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
shared = torch.ones(1000)
for step, (x, y) in enumerate(torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=workers)):
    opt.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(x), y)
    if step == at and rank == hurt:
        if kind == "branch":
            injured()
            dist.barrier()  # LINE branch
        if kind == "stop":
            injured()
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "sleep":
            injured()
            time.sleep(10000)  # LINE sleep
    if step == at and kind == "order":
        if rank == hurt:
            injured()
            dist.broadcast(shared, 0)  # LINE order
        else:
            dist.all_reduce(shared)
    if step == at and kind == "shape":
        if rank == hurt: injured()
        dist.all_reduce(torch.ones(2000) if rank == hurt else shared)
    loss.backward()
    opt.step()
    time.sleep(0.01)
    if step == at and kind == "checkpoint":  # of rank 0, the others wait
        if rank == 0:
            end = time.time() + pause
            while time.time() < end:
                torch.save({"x": torch.randn(500000)}, os.environ["MARK"] + ".pt")
                time.sleep(0.5)
        dist.barrier()
    if step == at and kind == "pause":  # of all ranks
        time.sleep(pause)
    if step == at and kind == "evaluation":  # of rank 0, longer than what counts as a hang
        if rank == 0:
            end = time.time() + 2 * pause
            for x, y in torch.utils.data.DataLoader(Data(), batch_size=8):
                time.sleep(0.05)
                if time.time() > end: break
        dist.barrier()
    if step == at + 40: break
"""

HANGS = ("branch", "stop", "loader", "worker", "shape", "order", "start", "sleep")
CLEAN = ("checkpoint", "evaluation", "pause", "compile")


def job(a, kind, engine, n=3):
    hurt, at, workers = random.randrange(n), random.randint(20, 60), 1 if kind == "worker" else random.randint(0, 1)
    with tempfile.TemporaryDirectory() as d:
        script, mark = os.path.join(d, "train.py"), os.path.join(d, "mark")
        with open(script, "w") as f:
            f.write(SCRIPT)
        line = {m.group(1): i for i, text in enumerate(SCRIPT.splitlines(), 1) if (m := re.search(r"# LINE (\w+)", text))}
        env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(random.randint(15000, 29000)), WORLD_SIZE=str(n), MARK=mark, GLOO_SOCKET_IFNAME="lo",
                   OMP_NUM_THREADS="1", TMPDIR=d)
        if a.after:
            env["STAR_WATCH_HANG"] = str(a.after)
        command = [sys.executable, script, kind, engine, str(hurt), str(at), str(workers), str(a.pause)]
        if kind == "start":  # a launcher starts each rank as a program
            command = ["sh", "-c", "for r in %s; do RANK=$r \"$@\" & done; wait" % " ".join(map(str, range(n))), "sh"] + command
        log = open(os.path.join(d, "said"), "w+")
        watch = subprocess.Popen([a.star, "watch", "--out", os.path.join(d, "w"), "--"] + command, env=env, stdout=log, stderr=log, start_new_session=True)
        said, delay, begun = "", -1.0, time.time()
        while time.time() - begun < a.limit:
            over = watch.poll() is not None
            said = open(log.name).read()
            injured = float(open(mark).read() or 0) if os.path.exists(mark) else 0.0
            found = re.search(r"^watch \| (hang: .*|the last calls .*)$", said, re.M)
            if found and injured and delay < 0:
                delay = time.time() - injured
            if over or (found and kind in HANGS):
                break
            time.sleep(0.2)
        for p in descendants(watch.pid) + [watch.pid]:
            try:
                os.kill(p, signal.SIGKILL)
            except ProcessLookupError:
                pass
        watch.wait()
    found = re.search(r"^watch \| (hang: .*|the last calls .*)$", said, re.M)
    text = found.group(1) if found else ""
    want_line = {"loader": "loader", "branch": "branch", "order": "order", "start": "start", "sleep": "sleep"}.get(kind)
    right = {
        "rank": bool(re.search(r"rank %d " % hurt, text.split(";")[-1] if text.startswith("hang") else text)) and "ranks 0-2 " not in text,
        "call": bool(re.search(r"(wait|waits) in \S+.* #\d+|all_reduce #\d+ float32\[2000\]", text)),
        "line": "train.py:%d " % line[want_line] in text if want_line else ("stopped by a signal" in text or kind == "shape"),
    }
    return kind, engine, hurt, workers, delay, right, text, said


def descendants(pid):
    """Processes below one, by /proc."""
    children = collections.defaultdict(list)
    for p in os.listdir("/proc"):
        if p.isdigit():
            try:
                children[int(open("/proc/%s/stat" % p).read().rsplit(")", 1)[1].split()[1])].append(int(p))
            except (OSError, IndexError):
                pass
    out, todo = [], [pid]
    while todo:
        for c in children[todo.pop()]:
            out.append(c)
            todo.append(c)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--star", default=shutil.which("star") or "./star")
    p.add_argument("--each", type=int, default=3, help="jobs of each kind of hang and engine")
    p.add_argument("--clean", type=int, default=5, help="jobs of each kind without a hang, and engine")
    p.add_argument("--kinds", default=",".join(HANGS + CLEAN))
    p.add_argument("--engines", default="ddp")
    p.add_argument("--pause", type=float, default=10, help="seconds of a checkpoint; an evaluation takes twice as long")
    p.add_argument("--limit", type=float, default=240, help="seconds after which a job is ended")
    p.add_argument("--after", type=float, default=0)
    p.add_argument("--jobs", type=int, default=1, help="jobs at a time")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    a.star = os.path.abspath(a.star)
    random.seed(a.seed)
    todo = [(k, e) for k in a.kinds.split(",") for e in a.engines.split(",") for _ in range(a.each if k in HANGS else a.clean)]
    random.shuffle(todo)
    count, good, alarms = collections.Counter(), collections.Counter(), collections.Counter()
    print("kind,engine,rank,loader processes,seconds,rank right,call right,line right,said", flush=True)
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        for kind, engine, hurt, workers, delay, right, text, said in pool.map(lambda x: job(a, *x), todo):
            count[kind, engine] += 1
            if kind in HANGS:
                good[kind, engine] += all(right.values())
                if not all(right.values()):
                    print("# " + said[-1200:].replace("\n", " | "))
            else:
                alarms[kind, engine] += bool(text)
                if "steps in" not in said:
                    print("# it did not end: %s" % said[-400:].replace("\n", " | "))
            print("%s,%s,%d,%d,%.1f,%s,%s" % (kind, engine, hurt, workers, delay, ",".join(str(int(v)) for v in right.values()), text.replace(",", " ")), flush=True)
    for kind, engine in sorted(count):
        if kind in HANGS:
            print("# %s %s: rank, call and line right in %d of %d" % (engine, kind, good[kind, engine], count[kind, engine]))
        else:
            print("# %s %s: %d false alarms in %d" % (engine, kind, alarms[kind, engine], count[kind, engine]))


if __name__ == "__main__":
    main()
