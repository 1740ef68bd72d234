#!/usr/bin/env python3
"""Writes the scenarios of "Goals of decisions" in RESULTS.md to a folder, for star bench tta --scenarios and bench/regret.py.

    bench/goals.py FOLDER [--half tune|judge] [--traces DIR]

Six kinds of slowness (--half gives other numbers): speeds 1:1:1.5:3, churn, Pareto, a sine that all workers share, a slow link, and one worker
that is slow from 30 to 70 % of the run. With --traces, parts of recorded jobs, which the halves do not share: some of their steps, of some workers.
"""
import argparse
import csv
import gzip
import math
import os
import random
import statistics

ap = argparse.ArgumentParser()
ap.add_argument("folder")
ap.add_argument("--half", choices=["tune", "judge"], default="judge")
ap.add_argument("--traces", help="folder with alibaba-job1.csv.gz, alibaba-job4.csv.gz and bytedance-AR-allranks.csv.gz")
a = ap.parse_args()
JUDGE = a.half == "judge"
r = random.Random("goals " + a.half)
os.makedirs(a.folder, exist_ok=True)


def scenario(name, text):
    with open(os.path.join(a.folder, name + ".yaml"), "w") as f:
        f.write("name: %s\n%s\n" % (name, text))


def trace(name, rows):
    """Writes times, one row for each step, with the median of all as 1,000, and a scenario."""
    job = statistics.median(t for row in rows for t in row)
    with open(os.path.join(a.folder, name + ".csv"), "w", newline="") as f:
        f.write("# source=bench/goals.py unit=ms workers=%d steps=%d job_median=1000\n" % (len(rows[0]), len(rows)))
        out = csv.writer(f)
        out.writerow("step worker duration slowdown rel".split())
        for s, row in enumerate(rows):
            m = statistics.median(row)
            for w, t in enumerate(row):
                out.writerow([s, w, max(round(1000 * t / job), 1), "%.4f" % (t / m), "%.4f" % (t / job)])
    scenario(name, "trace: %s.csv" % name)


def recorded(name, file, steps, workers):
    rows = {}
    with gzip.open(os.path.join(a.traces, file + ".csv.gz"), "rt") as f:
        for row in csv.DictReader(line for line in f if line[0] != "#"):
            rows.setdefault(int(row["step"]), {})[int(row["worker"])] = float(row["duration"])
    # Some steps lack a worker, or have a time of 0: the step before counts.
    out, last = [], None
    for s in sorted(rows)[steps[0]:steps[1]]:
        row = [rows[s].get(w) or (last[i] if last else None) for i, w in enumerate(workers)]
        if None not in row:
            out.append(row)
            last = row
    trace(name, out)


if JUDGE:
    scenario("speeds", "workers: 4\njitter: 0.05\ntimes: {2: 900ms, 3: 1800ms}")
    scenario("churn", "workers: 6\njitter: 0.06\nfailures: [{worker: 4, at: 9s, back: 21s}, {worker: 1, at: 33s, back: 40s}]\n"
             "episodes: [{worker: 4, from: 21s, to: 33s, factor: 2.6}, {worker: 1, from: 40s, to: 60s, factor: 1.9}]")
    scenario("link", "workers: 8\njitter: 0.05\niteration: 400ms\nbytes: 1000000\nhosts:\n- {name: servers, servers: 1, bandwidth: 2.5e7}\n- {name: hosts, workers: 0-7}")
    scenario("slow-link", "workers: 8\njitter: 0.05\nepisodes: [{worker: 5, from: 0s, to: 10000s, factor: 12, network: true}]")
    scenario("fail-slow", "workers: 8\njitter: 0.05\nepisodes: [{worker: 3, from: 22s, to: 50s, factor: 3}]")
else:
    scenario("speeds", "workers: 6\njitter: 0.06\ntimes: {3: 780ms, 4: 900ms, 5: 1500ms}")
    scenario("churn", "workers: 8\njitter: 0.05\nfailures: [{worker: 2, at: 12s, back: 20s}, {worker: 6, at: 26s, back: 37s}]\n"
             "episodes: [{worker: 2, from: 20s, to: 30s, factor: 2}, {worker: 6, from: 37s, to: 50s, factor: 3}]")
    scenario("link", "workers: 6\njitter: 0.06\niteration: 300ms\nbytes: 1000000\nhosts:\n- {name: servers, servers: 1, bandwidth: 2.5e7}\n- {name: hosts, workers: 0-5}")
    scenario("slow-link", "workers: 6\njitter: 0.06\nepisodes: [{worker: 2, from: 0s, to: 10000s, factor: 8, network: true}]")
    scenario("fail-slow", "workers: 6\njitter: 0.06\nepisodes: [{worker: 1, from: 22s, to: 50s, factor: 2.3}]")
n, alpha = (8, 2.2) if JUDGE else (6, 1.8)
trace("pareto", [[0.7 * r.random() ** (-1 / alpha) for _ in range(n)] for _ in range(600)])
n, period, high = (8, 37, 0.5) if JUDGE else (6, 23, 0.4)
trace("sine", [[(1 + high * math.sin(2 * math.pi * s / period)) * math.exp(r.gauss(0, 0.06)) for _ in range(n)] for s in range(600)])
if a.traces:
    every = list(range(10))
    for name, file, steps, workers in (
        [("job4-a", "alibaba-job4", (400, 800), every), ("job4-b", "alibaba-job4", (1200, 1600), [0, 1, 2, 3, 4, 5, 9]), ("job4-c", "alibaba-job4", (1950, 2182), every),
         ("job1-a", "alibaba-job1", (100, 200), every), ("job1-b", "alibaba-job1", (200, 300), every[2:]),
         ("AR-a", "bytedance-AR-allranks", (10, 44), list(range(8))), ("AR-b", "bytedance-AR-allranks", (5, 44), [0] + list(range(4, 15)))]
        if JUDGE else
        [("job4-a", "alibaba-job4", (800, 1200), every), ("job4-b", "alibaba-job4", (1600, 1900), [0, 1, 2, 3, 4, 9]), ("job4-c", "alibaba-job4", (0, 400), [1, 2, 3, 4, 6, 9]),
         ("job1-a", "alibaba-job1", (0, 100), every[:6]), ("AR-a", "bytedance-AR-allranks", (0, 34), list(range(6)))]
    ):
        recorded(name, file, steps, workers)
