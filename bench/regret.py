#!/usr/bin/env python3
"""What --mode auto takes more than the best fixed mode in hindsight, in virtual time (star sim), on 24 generated traces at three learning rates.

The traces are of eight kinds of slowness, three of each, from a seed: no slow worker (calm), much jitter, one slow worker, two, slowness that all share, single
slow steps of any worker (blips), bursts, and a straggler that moves on (rotating). Every second trace is for tuning the controller on, the others
(--half judge) are for judging it; --seed gives 24 others. Traces in CSV and scenarios in YAML may be added; --only leaves out the generated ones.

    bench/regret.py [--star PATH] [--half tune|judge|both] [--momentum 0.9] [--optimizer dana|momentum] [--seeds 1] [--seed 1] [--csv FILE] [--keep FOLDER] [--rates 0.2,1] [--only] [TRACE.csv.gz | SCENARIO.yaml ...]

A line for each trace and rate: seconds of SSGD, of the best fixed mode and of auto, their ratios, changes of plan, and the regret, auto less the best, as parts of the
best: seeing (until the first change), choosing (its first plan in place of the best from there on), changing (the rest). Geometric means and worst cases at the end.
"""
import argparse
import concurrent.futures
import csv
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile

ap = argparse.ArgumentParser()
ap.add_argument("--star", default="star")
ap.add_argument("--half", choices=["tune", "judge", "both"], default="judge")
ap.add_argument("--momentum", type=float, default=0.9)
ap.add_argument("--optimizer", choices=["dana", "momentum"], default="dana")
ap.add_argument("--seeds", type=int, default=1)
ap.add_argument("--seed", type=int, default=1, help="of the traces")
ap.add_argument("--jobs", type=int, default=1)
ap.add_argument("--csv")
ap.add_argument("--keep", help="write the traces and a scenario of each to this folder, for star bench tta --scenarios, and end")
ap.add_argument("--rates", help="only some of them, such as 0.2,1")
ap.add_argument("--only", action="store_true", help="only the given traces and scenarios")
ap.add_argument("traces", nargs="*")
a = ap.parse_args()
STEPS = 600
KINDS = "calm", "jitter", "one", "two", "shared", "blips", "bursts", "rotating"


def generate(kind, r):
    """Relative times of STEPS iterations of each worker."""
    n = r.choice([6, 8, 8, 10, 12])
    sigma = {"calm": 0.03, "jitter": r.uniform(0.08, 0.2)}.get(kind, r.uniform(0.02, 0.08))
    times = [[math.exp(r.gauss(0, sigma)) for _ in range(n)] for _ in range(STEPS)]

    def slow(step, worker, factor):
        if 0 <= step < STEPS:
            times[step][worker] *= factor

    if kind in ("one", "two"):
        for w in r.sample(range(n), 1 if kind == "one" else 2):
            factor, begin = r.uniform(1.4, 4), r.choice([0, 0, 60])
            for s in range(begin, STEPS):
                slow(s, w, factor)
    elif kind == "shared":
        level, keep = 0.0, r.uniform(0.5, 0.95)
        for s in range(STEPS):
            level = keep * level + r.gauss(0, 0.3 * math.sqrt(1 - keep * keep))
            for w in range(n):
                slow(s, w, math.exp(level))
    elif kind == "blips":
        p, factor = r.uniform(0.02, 0.15), r.uniform(1.8, 4)
        for s in range(STEPS):
            for w in range(n):
                if r.random() < p:
                    slow(s, w, factor)
    elif kind == "bursts":
        s = r.randrange(20)
        while s < STEPS:
            w, spell, factor = r.randrange(n), r.randint(2, 12), r.uniform(2, 5)
            for k in range(s, s + spell):
                slow(k, w, factor)
            s += spell + r.randint(0, 25)
    elif kind == "rotating":
        s, w, stay, factor = 0, r.randrange(n), r.randint(15, 60), r.uniform(1.8, 3.5)
        while s < STEPS:
            for k in range(s, s + stay):
                slow(k, w, factor)
            s, w = s + stay, (w + 1) % n
    return times


def write(path, times):
    job = statistics.median(t for row in times for t in row)
    with open(path, "w", newline="") as f:
        out = csv.writer(f)
        f.write("# source=bench/regret.py unit=ms workers=%d steps=%d job_median=1000\n" % (len(times[0]), len(times)))
        out.writerow("step worker duration slowdown rel".split())
        for s, row in enumerate(times):
            m = statistics.median(row)
            for w, t in enumerate(row):
                out.writerow([s, w, round(1000 * t), "%.4f" % (t / m), "%.4f" % (t / job)])


def run(job):
    name, path, rate, condition = job
    folder = tempfile.mkdtemp(dir=tmp)
    yaml = os.path.join(folder, "s.yaml")
    cluster = "name: %s\ntrace: %s\n" % (name, path)
    if path.endswith(".yaml"):
        with open(path) as f:
            cluster = re.sub("(?m)^trace: *", "trace: %s/" % os.path.dirname(path), f.read())
    with open(yaml, "w") as f:
        f.write(cluster + "limit: 100h\ntarget: 2\nlearner: {rate: %g, condition: %g, momentum: %g, optimizer: %s}\n"
                % (rate * (1 - a.momentum), condition, a.momentum, a.optimizer))
    p = subprocess.run([a.star, "sim", "--mode", "all", "--regret", "--seeds", str(a.seeds), "--json", yaml], capture_output=True, text=True)
    if p.returncode:
        sys.exit(p.stderr)
    by = {}
    rows = json.loads(p.stdout)
    for r in rows:
        by.setdefault(r["method"], []).append(r["tta_s"] if r["tta_s"] is not None else math.inf)
    m = {k: statistics.median(v) for k, v in by.items()}
    best = min((k for k in m if k != "auto"), key=lambda k: m[k])
    auto = [r for r in rows if r["method"] == "auto"]
    part = [statistics.mean(r["regret"][k] for r in auto) / m[best] if all("regret" in r for r in auto) else math.nan for k in ("seeing_s", "choosing_s", "changing_s")]
    return dict(trace=name, rate=rate, bound=rows[0]["bound"], ssgd=m["ssgd"], best=m[best], mode=best, auto=m["auto"], of_ssgd=m["auto"] / m["ssgd"],
                of_best=m["auto"] / m[best], changes=max(r["switches"] for r in auto), seeing=part[0], choosing=part[1], changing=part[2])


def mean(xs):
    return math.exp(statistics.mean(map(math.log, xs)))


tmp = a.keep or tempfile.TemporaryDirectory().name
os.makedirs(tmp, exist_ok=True)
traces = []
for k in range(0 if a.only else 3):
    for i, kind in enumerate(KINDS):
        if a.half == "both" or (i + k) % 2 == (a.half == "judge"):
            path = os.path.join(tmp, "%s-%d.csv" % (kind, k))
            write(path, generate(kind, random.Random("%d %s %d" % (a.seed, kind, k))))
            traces.append(("%s-%d" % (kind, k), path))
if a.keep:
    for name, path in traces:
        with open(path[:-3] + "yaml", "w") as f:
            f.write("name: %s\ntrace: %s\n" % (name, os.path.basename(path)))
    sys.exit()
traces += [(os.path.basename(f).split(".")[0], os.path.abspath(f)) for f in a.traces]
# Momentum 0 as bench/auto.sh has it; with momentum, η/(1 − μ) where staleness is free, where ASGD begins to pay for it, and where only SSGD can go.
rates = [(0.02, 20), (0.5, 200), (1, 500)] if a.momentum == 0 else [(0.2, 50), (1, 300), (4, 1500)]
if a.rates:
    rates = [k for k in rates if str(k[0]) in a.rates.split(",")]
jobs = [(n, p, r, c) for n, p in traces for r, c in rates]
rows = []
print("%-24s %5s %5s %8s %8s %-6s %8s %6s %6s %3s %7s %8s %8s" % tuple("trace rate bound ssgd best mode auto /ssgd /best chg seeing choosing changing".split()))
with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
    for r in pool.map(run, jobs):
        rows.append(r)
        print("%-24s %5g %4.0f%% %7.1fs %7.1fs %-6s %7.1fs %6.3f %6.3f %3d %+7.3f %+8.3f %+8.3f" % (r["trace"], r["rate"], 100 * r["bound"], r["ssgd"], r["best"], r["mode"],
              r["auto"], r["of_ssgd"], r["of_best"], r["changes"], r["seeing"], r["choosing"], r["changing"]), flush=True)
print("of the best: %.3f, at worst %.3f; of SSGD: %.3f, at worst %.3f; changes at most %d, over 3 in %d of %d" % (mean(r["of_best"] for r in rows), max(r["of_best"] for r in rows),
      mean(r["of_ssgd"] for r in rows), max(r["of_ssgd"] for r in rows), max(r["changes"] for r in rows), sum(r["changes"] > 3 for r in rows), len(rows)))
parts = [[r[k] for r in rows if not math.isnan(r[k])] for k in ("seeing", "choosing", "changing")]
if parts[0]:
    print("mean regret, of the best: seeing %+.3f, choosing %+.3f, changing %+.3f" % tuple(map(statistics.mean, parts)))
if a.csv:
    with open(a.csv, "w", newline="") as f:
        out = csv.DictWriter(f, rows[0].keys())
        out.writeheader()
        out.writerows(rows)
