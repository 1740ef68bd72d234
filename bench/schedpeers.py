#!/usr/bin/env python3
"""How long does no service decide after the deciding service is killed?

Three services of `star sched serve --peers` on this machine, and a job that trains. The one that decides is killed (kill -9) --kills times, and started again after each.
Printed: for each kill, how long it took until another one answered `star sched status`, s, and how many lives the job has had.

  python3 bench/schedpeers.py --star ./star --kills 10 --out /tmp/schedpeers
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

LIMIT = 60  # s that anything may take


def free():
    """Ports of this machine without a listener now."""
    held = [socket.socket() for _ in range(3)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def status(star, dir):
    done = subprocess.run([star, "sched", "status", "--json", "--dir", dir], capture_output=True, text=True, timeout=LIMIT)
    return json.loads(done.stdout) if done.returncode == 0 else None


def until(star, dir, good):
    end = time.time() + LIMIT
    while time.time() < end:
        st = status(star, dir)
        if st and good(st):
            return st
        time.sleep(0.02)
    sys.exit(f"not within {LIMIT} s: {status(star, dir)}")


def decides(st):
    return next((p["rank"] for p in st["peers"] if p.get("decides")), -1)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--star", default="star")
    p.add_argument("--kills", type=int, default=10)
    p.add_argument("--out", type=pathlib.Path, required=True)
    a = p.parse_args()
    star = os.path.abspath(a.star)
    (a.out / "jobs").mkdir(parents=True)
    peers = ",".join(f"127.0.0.1:{n}" for n in free())
    dirs = [str(a.out / f"service-{r}") for r in range(3)]

    def start(r):
        return subprocess.Popen([star, "sched", "serve", "--dir", dirs[r], "--peers", peers, "--rank", str(r), "--jobs", str(a.out / "jobs"), "--places", "2"], stderr=open(a.out / f"log-{r}", "a"))

    services = [start(r) for r in range(3)]
    try:
        until(star, dirs[0], lambda st: decides(st) >= 0)
        job = a.out / "job.yaml"
        spec = dict(name="long", settings=dict(model="softmax", dataset="digits", slow=["0:+20ms", "1:+20ms"]), samples=10**9, rates={1: 1300}, **{"max-workers": 2})
        job.write_text(json.dumps(spec).replace('"1":', "1:"))  # a number of workers is no text
        subprocess.run([star, "sched", "submit", "--dir", dirs[0], "--name", "long", str(job)], check=True)
        until(star, dirs[0], lambda st: st["jobs"][0]["samples"] > 0)
        took = []
        for _ in range(a.kills):
            r = decides(until(star, dirs[0], lambda st: not any(p.get("missing") for p in st["peers"])))
            other = dirs[(r + 1) % 3]
            services[r].kill()
            begun = time.time()
            st = until(star, other, lambda st, r=r: decides(st) not in (-1, r))
            took.append(round(time.time() - begun, 2))
            print(json.dumps(dict(killed=r, decides=decides(st), took_s=took[-1], lives=st["jobs"][0]["lives"])), flush=True)
            services[r].wait()
            services[r] = start(r)
        print(json.dumps(dict(kills=a.kills, median_s=sorted(took)[len(took) // 2], most_s=max(took), lives=st["jobs"][0]["lives"])))
        subprocess.run([star, "sched", "cancel", "--dir", other, "long"], check=True)  # the one that was killed last may not answer yet
        until(star, other, lambda st: "ended_s" in st["jobs"][0])
    finally:
        for s in services:
            s.terminate()
        for s in services:
            s.wait()


main()
