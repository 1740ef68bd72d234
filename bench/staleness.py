#!/usr/bin/env python3
"""How many samples ASGD needs, relative to SSGD, where no worker is slow: a table of bench/RESULTS.md, Evidence for the prices.

  bench/staleness.py --data FOLDER [--star PATH] [--seeds 16] [digits=0.2 images=0.2 text=8 ...]

A line for each task and learning rate: pairs of runs of one seed that both arrive, the geometric mean of their ratios, two standard
errors below and above it, and how many runs of each mode do not arrive. FOLDER is that of star bench tta."""
import argparse
import json
import math
import statistics
import subprocess
import sys

p = argparse.ArgumentParser()
p.add_argument("--star", default="star")
p.add_argument("--data", default="")
p.add_argument("--seeds", type=int, default=16)
p.add_argument("tasks", nargs="*", default=["digits=0.2", "images=0.2", "text=8"])
a = p.parse_args()
print("task     rate  pairs  samples, ASGD over SSGD   not arrived: SSGD  ASGD")
for task in a.tasks:
    name, rate = task.split("=")
    out = subprocess.run([a.star, "bench", "tta", "--tasks", name, "--arch", "ps", "--scenarios", "calm", "--methods", "ssgd,asgd",
                          "--seeds", str(a.seeds), "--search", "1", "--rates", rate, "--json", *(["--data", a.data] if a.data else [])],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if out.returncode:
        sys.exit(f"{task}: star bench tta ended with {out.returncode}")
    needs: dict = {"ssgd": {}, "asgd": {}}  # samples to the target, by seed; None: not arrived
    for r in json.loads(out.stdout):
        needs[r["method"]][r["seed"]] = r["tta_s"] and r["tta_s"] / r["run_s"] * r["samples"]
    logs = [math.log(needs["asgd"][s] / n) for s, n in needs["ssgd"].items() if n and needs["asgd"][s]]
    lost = [sum(n is None for n in needs[m].values()) for m in ("ssgd", "asgd")]
    if len(logs) < 2:
        print(f"{name:7} {rate:>5} {len(logs):6}  {'–':>23}  {lost[0]:17} {lost[1]:5}")
        continue
    mean, error = statistics.mean(logs), 2 * statistics.stdev(logs) / math.sqrt(len(logs))
    print(f"{name:7} {rate:>5} {len(logs):6}    {math.exp(mean):.2f} ({math.exp(mean - error):.2f} to {math.exp(mean + error):.2f})  {lost[0]:17} {lost[1]:5}")
