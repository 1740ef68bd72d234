#!/usr/bin/env python3
"""Kills servers of jobs with copies of shards (star run --replicas 2), by SIGKILL at random moments, and prints the results.

Each job is compared with one that nothing happened to: its parameters and the state of its optimiser must be the same, bit for bit. The pause
is the longest time between two updates in the run log from the moment of the kill on.

    bench/replicas.py [--star PATH] [--kills 50] [--optimizer momentum,adam] [--seed 1]
"""
import argparse
import glob
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ap = argparse.ArgumentParser()
ap.add_argument("--star", default="star")
ap.add_argument("--kills", type=int, default=50)
ap.add_argument("--optimizer", default="momentum,adam")
ap.add_argument("--seed", type=int, default=1)
ap.add_argument("--steps", type=int, default=60)
a = ap.parse_args()
rnd = random.Random(a.seed)
tmp = tempfile.mkdtemp(prefix="star-replicas-")


def job(out, optimizer, victim=None, after=0.0):
    """Runs one job; kills star-ps victim after that number of seconds of training. Returns whether it did."""
    cmd = [a.star, "run", "--listen", "127.0.0.1:0", "--out", out, "--progress", "off", "--slow", "none", "--workers", "2", "--shards", "3",
           "--replicas", "2", "--mode", "ssgd", "--steps", str(a.steps), "--optimizer", optimizer, "--lr", "0.02" if optimizer != "adam" else "0.001"]
    log = open(out + ".log", "w+")
    p = subprocess.Popen(cmd, stdout=subprocess.DEVNULL, stderr=log)
    killed = False
    if victim is not None:
        end = time.time() + 30
        while p.poll() is None and time.time() < end and " training " not in open(out + ".log").read():
            time.sleep(0.005)
        time.sleep(after)
        kids = open(f"/proc/{p.pid}/task/{p.pid}/children").read().split() if os.path.exists(f"/proc/{p.pid}") else []
        for t in glob.glob(f"/proc/{p.pid}/task/*/children"):
            kids += open(t).read().split()
        for pid in set(kids):
            try:
                args = open(f"/proc/{pid}/cmdline").read().split("\0")
                env = open(f"/proc/{pid}/environ").read().split("\0")
                if "ps" in args and f"STAR_RANK={victim}" in env:
                    os.kill(int(pid), signal.SIGKILL)
                    killed = True
            except (FileNotFoundError, ProcessLookupError):
                pass
    try:
        rc = p.wait(90)
    except subprocess.TimeoutExpired:
        p.kill()
        rc = "no end after 90 s"
    if rc != 0:
        sys.exit(f"{out}: exit {rc}\n" + open(out + ".log").read()[-4000:])
    return killed


def bits(out):
    h = hashlib.sha256()
    files = sorted(glob.glob(out + "/checkpoints/*/shard-*"))
    if not files:
        sys.exit(f"{out}: no checkpoint")
    for f in files:
        h.update(open(f, "rb").read())
    return h.hexdigest()


def story(out):
    fires, first, events = [], None, []
    for line in open(out + "/run.jsonl"):
        d = json.loads(line)
        if d["type"] == "fire":
            fires.append(d["t"])
        if d["type"] == "replica":
            events.append(d["event"])
            first = first or d["t"]
    around = [y - x for x, y in zip(fires, fires[1:]) if first is not None and y >= first]
    return max(around, default=0.0), events


ok = True
for optimizer in a.optimizer.split(","):
    ref = os.path.join(tmp, "ref-" + optimizer)
    job(ref, optimizer)
    want = bits(ref)
    pauses, equal, kills, tries = [], 0, 0, 0
    while kills < a.kills and tries < 3 * a.kills:
        tries += 1
        out = os.path.join(tmp, "job")
        shutil.rmtree(out, ignore_errors=True)
        if not job(out, optimizer, rnd.choice([1, 2]), rnd.uniform(0, 0.6)):
            continue
        pause, events = story(out)
        if "promoted" not in events:
            continue  # it was over
        kills += 1
        pauses.append(pause)
        equal += bits(out) == want
    if not pauses:
        sys.exit(f"{optimizer}: in {tries} jobs no primary was killed before the end: more --steps")
    pauses.sort()
    ok = ok and kills == a.kills and equal == kills and pauses[-1] <= 3
    print(f"{optimizer}: {kills} primaries killed, {equal} jobs with the same bits, pause {1e3 * pauses[len(pauses) // 2]:.0f} ms (median), {1e3 * pauses[-1]:.0f} ms (most)", flush=True)
shutil.rmtree(tmp)
sys.exit(0 if ok else 1)
