#!/usr/bin/env python3
"""How often star watch names the right rank and the right cause: real DDP jobs of three ranks with one injured rank, and jobs
without one.

  go build -o star ./cmd/star && python3 bench/watch.py --star ./star --each 10 --clean 20

Prints a CSV line for each job, and a summary. Needs PyTorch, and root for quotas (cgroup v1). On a machine that does other things
--light has jobs that mostly sleep: their ranks get a processor when they want one; contention is left out then, since it needs a
rank that computes."""

import argparse
import collections
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

SCRIPT = r"""
import os, time, torch
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
torch.distributed.init_process_group("gloo")
rank, light = torch.distributed.get_rank(), bool(os.environ["LIGHT"])
base, extra, item, more = (0.04, 0.08, 0.0025, 60) if light else (0.015, 0.03, 0.0012, 16)
hurt = rank == int(os.environ["HURT"])
injury, steps = os.environ["INJURY"], int(os.environ["STEPS"])
if hurt:
    open(os.environ["PIDFILE"], "w").write(str(os.getpid()))
class Data(torch.utils.data.Dataset):
    def __len__(self): return 32 * steps
    def __getitem__(self, i):
        if hurt and injury == "data": time.sleep(item)
        return torch.randn(64), i % 10
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(64, 64), torch.nn.Linear(64, 10)
    def forward(self, x):
        for _ in range((more if hurt and injury == "work" else 0) + (0 if light else 8)):
            torch.randn(160, 160) @ torch.randn(160, 160)
        time.sleep(base + (extra if hurt and injury == "sleep" else 0))
        return self.b(torch.relu(self.a(x)))
net = torch.nn.parallel.DistributedDataParallel(Net())
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
for x, y in torch.utils.data.DataLoader(Data(), batch_size=32):
    opt.zero_grad()
    torch.nn.functional.cross_entropy(net(x), y).backward()
    opt.step()
"""

# injury: the causes that are right
CAUSES = {"sleep": {"compute", "blocked"}, "work": {"compute"}, "data": {"data"}, "contention": {"contention"}, "quota": {"quota"}, "pauses": {"pauses"}, "none": set()}


CPU = "/sys/fs/cgroup/cpu"


def limited(pid, over, *settings):
    """Has a process in a group of its own with these settings (cgroup v1) until over is set, and removes the group when the process has ended."""
    group = f"{CPU}/star-watch-{pid}"
    os.mkdir(group)
    try:
        for name, value in (*settings, ("cgroup.procs", pid)):
            with open(f"{group}/{name}", "w") as f:
                f.write(str(value))
        over.wait()
    finally:
        for _ in range(100):
            try:
                os.rmdir(group)
                break
            except OSError:
                time.sleep(0.1)


def injure(kind, pid, over, light):
    """What is done to a process from outside, until over is set."""
    if kind == "contention":
        cpu = random.choice(sorted(os.sched_getaffinity(0)))
        os.sched_setaffinity(pid, {cpu})
        for task in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(task), {cpu})
        hogs = [subprocess.Popen(["taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done"]) for _ in range(4)]
        over.wait()
        for h in hogs:
            h.kill()
            h.wait()
    elif kind == "quota":
        limited(pid, over, ("cpu.cfs_period_us", 50000), ("cpu.cfs_quota_us", 1500 if light else 5000))
    elif kind == "pauses":
        while not over.is_set():
            try:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.2)
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                return
            time.sleep(0.6)


def job(star, kind, hurt, steps, light, keep, n=3):
    with tempfile.TemporaryDirectory() as d:
        script, pidfile = os.path.join(d, "train.py"), os.path.join(d, "pid")
        with open(script, "w") as f:
            f.write(SCRIPT)
        env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(random.randint(15000, 29000)), HURT=str(hurt if kind != "none" else -1), INJURY=kind,
                   STEPS=str(steps), PIDFILE=pidfile, LIGHT="1" if light else "", WORLD_SIZE=str(n))
        watch = subprocess.Popen([star, "watch", "--out", os.path.join(d, "w"), "--", sys.executable, script], env=env, stderr=subprocess.PIPE, text=True)
        over = threading.Event()

        def outside():
            while not os.path.exists(pidfile) or not open(pidfile).read():
                if over.wait(0.05):
                    return
            if not over.wait(1.5):  # some steps as all others
                try:
                    injure(kind, int(open(pidfile).read()), over, light)
                except OSError as e:
                    print(e, file=sys.stderr)

        t = threading.Thread(target=outside)
        t.start()
        said = watch.stderr.read()
        watch.wait()
        over.set()
        t.join()
        if keep:
            shutil.copy(os.path.join(d, "w", "run.jsonl"), keep)
    blamed = re.findall(r"rank (\d+) on \S+ is [0-9.]+x slow.*\((?:cause: |the cause is )([a-z-]+)(?: now)?\)", said)
    return blamed, said


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--star", required=True)
    p.add_argument("--each", type=int, default=10)
    p.add_argument("--clean", type=int, default=20)
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--light", action="store_true")
    p.add_argument("--only", default=",".join(k for k in CAUSES if k != "none"), help="injuries, separated by commas")
    p.add_argument("--keep", default="", help="a folder for the run logs")
    p.add_argument("--verbose", action="store_true")
    a = p.parse_args()
    random.seed(a.seed)
    right_rank, right_cause, jobs = collections.Counter(), collections.Counter(), collections.Counter()
    print("injury,rank,blamed,load")
    if unknown := set(a.only.split(",")) - set(CAUSES):
        p.error(f"--only: {', '.join(sorted(unknown))}: want some of {', '.join(k for k in CAUSES if k != 'none')}")
    plan = [k for k in a.only.split(",") if not (a.light and k == "contention") for _ in range(a.each)] + ["none"] * a.clean
    random.shuffle(plan)
    for i, kind in enumerate(plan):
        hurt = random.randrange(3)
        blamed, said = job(a.star, kind, hurt, a.steps, a.light, a.keep and os.path.join(a.keep, f"{i:02d}-{kind}-{hurt}.jsonl"))
        print(f"{kind},{hurt},{' '.join(r + ':' + c for r, c in blamed)},{os.getloadavg()[0]:.0f}", flush=True)
        if a.verbose:
            print(said, file=sys.stderr)
        jobs[kind] += 1
        if kind == "none":
            right_rank[kind] += not blamed
            continue
        right_rank[kind] += bool(blamed) and all(int(r) == hurt for r, _ in blamed)
        right_cause[kind] += bool(blamed) and blamed[-1][1] in CAUSES[kind]
    for k in (k for k in CAUSES if jobs[k]):
        print(f"# {k}: {right_rank[k]} of {jobs[k]} {'blame no rank' if k == 'none' else f'name the right rank and no other, {right_cause[k]} the right cause'}")


if __name__ == "__main__":
    main()
