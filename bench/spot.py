#!/usr/bin/env python3
"""Are forecasts of jobs on transient machines right?

One job trains while its workers are taken away and replaced; of its run log `star sched market forecast` says how long such jobs take, and how long their machines
are up, which is what is paid. Then jobs with other seeds run, with unknown failures. A worker sleeps 100 ms in each iteration, so that its speed depends
little on what else the machine does. Printed: for each job what was seen, and how many of them are in the intervals.

  python3 bench/spot.py --star ./star --runs 20 --out /tmp/spot
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys

WORKERS, SAMPLES = 4, 12800


def run(star, out, revoke):
    """One job: s of training, s that machines were up together, how many were taken away."""
    slow = ",".join(f"{w}:+100ms" for w in range(WORKERS))
    done = subprocess.run([star, "run", "--listen", "127.0.0.1:0", "--out", str(out), "--progress", "off", "--model", "softmax", "--dataset", "digits:n=2000,test=100",
                           "--workers", str(WORKERS), "--min-workers", "1", "--mode", "ssgd", "--batch", "8", "--samples", str(SAMPLES), "--eval-every", "0",
                           "--slow", slow, "--revoke", revoke], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{out}: exit code {done.returncode}\n{done.stderr}")
    train = last = None
    for line in open(out / "run.jsonl"):
        e = json.loads(line)
        if e["type"] == "train":
            train = e["t"]
        if e["type"] == "fire":
            last = e["t"]
    gone, up = re.search(r"machines of workers: (\d+) taken away.*up for ([\d.]+) s", done.stderr).groups()
    return last - train, float(up), int(gone)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--star", default="./star")
    p.add_argument("--runs", type=int, default=20)
    p.add_argument("--at-once", type=int, default=2, help="jobs that run at the same time")
    p.add_argument("--seed", type=int, default=1, help="of the job that the forecast is made of; the others follow")
    p.add_argument("--process", default="rate:120,replace=5s", help="how machines are taken away and replaced, without seed")
    p.add_argument("--out", type=pathlib.Path, required=True)
    o = p.parse_args()

    def process(seed):
        return f"{o.process}{',' if ':' in o.process else ':'}seed={seed}"

    o.out.mkdir(parents=True)
    with concurrent.futures.ThreadPoolExecutor(o.at_once) as pool:
        # The first one runs beside another one, as those do that judge it.
        first, *rest = [pool.submit(run, o.star, o.out / f"run-{seed}", process(seed)) for seed in range(o.seed, o.seed + o.runs + 1)]
        print("forecast of", *first.result(), flush=True)
        answer = json.loads(subprocess.run([o.star, "sched", "market", "forecast", str(o.out / f"run-{o.seed}"), "--revoke", process(o.seed), "--json"],
                                           capture_output=True, text=True, check=True).stdout)
        seen = [f.result() for f in rest]
    print(json.dumps(answer))
    print("seconds  machine s  taken away")
    for s in seen:
        print("%7.1f  %9.1f  %10d" % s)
    for i, what in enumerate(["seconds", "machine_s", "revoked"]):
        span = answer[what]
        low, high = span["low"], span["high"] or float("inf")
        inside = sum(low <= s[i] <= high for s in seen)
        print(f"{what}: {inside} of {len(seen)} between {low:.1f} and {high:.1f}, median {span['median']:.1f}, seen {sorted(s[i] for s in seen)[len(seen) // 2]:.1f}")


main()
