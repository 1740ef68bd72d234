#!/usr/bin/env python3
"""Do live jobs meet the deadlines that the simulator predicts?

Sets of six small jobs with deadlines go through `star sched serve` under each policy, at the times that a seed gives, and the same jobs, with the times at
which the service took them in, through `star sched sim`, which gets the times of starts and added workers in the sets before (--start, --resize), as the service knows it; three short jobs go
before the first set, for the service to learn that. Sets of one turn share a queue, so that the service knows as much. A worker sleeps 200 ms in each iteration, so that its speed does not depend on what else the machine
does. Printed: for each set and policy, how many of the six deadlines were met, simulated and live, for how many jobs both agree, what was preempted, and the
most samples that were computed twice.

  python3 bench/schedlive.py --star ./star --sets 10 --beside 3 --out /tmp/schedlive      # 16 minutes, if jobs take as long as simulated
"""

import argparse
import concurrent.futures
import csv
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time

PLACES = 4
RATES = {1: 159, 2: 317, 4: 632}  # samples/s: batches of 32, 200 ms and some for the update; as measured on two processors
POLICIES = ["edf", "tiresias", "ef-admission"]


def draw(seed):
    """Six jobs: when each comes, how many samples it has, how many workers it may have, and its deadline, s after that."""
    r = random.Random(seed)
    at, jobs = 0.0, []
    for i in range(6):
        most = r.choice([1, 2, 4])
        seconds = r.uniform(15, 40)  # on that many
        samples = int(seconds * RATES[most]) // 32 * 32
        jobs.append(dict(name=f"s{seed}-j{i}", at=at, samples=samples, workers=most, deadline=round(seconds * r.choice([1.3, 2, 3]) + 10)))
        at += r.uniform(3, 15)
    return jobs


def ask(star, dir, *args):
    return subprocess.run([star, "sched", *args, "--dir", dir], capture_output=True, text=True)


def live(star, out, policy, jobs, slot):
    """What became of the jobs under the service, by name, and what it knew when the set began: what a start with its end takes, and a worker more."""
    dir = str(out.parent / f"queue-{policy}")
    log = open(out / "serve.log", "w")
    service = subprocess.Popen([star, "sched", "serve", "--dir", dir, "--policy", policy, "--places", str(PLACES), "--slot", f"{slot}s"], stderr=log)
    try:
        while ask(star, dir, "status").returncode != 0:
            if service.poll() is not None:
                sys.exit(f"the service has ended: {out / 'serve.log'}")
            time.sleep(0.1)
        took = json.loads(ask(star, dir, "status", "--json").stdout).get("took_s", {})
        begin = time.time()
        for j in jobs:
            slow = [f"{rank}:+200ms" for rank in range(j["workers"] + 1)]
            spec = dict(name=j["name"], settings=dict(model="softmax", dataset="digits", slow=slow, mode="ssgd"), samples=j["samples"], rates=RATES)
            spec["max-workers"] = spec["workers"] = j["workers"]
            spec["deadline"] = f"{j['deadline']}s"
            file = out / f"{j['name']}.yaml"
            file.write_text(re.sub(r'"(\d+)":', r"\1:", json.dumps(spec)))  # numbers of workers are no texts
            time.sleep(max(0, begin + j["at"] - time.time()))
            done = ask(star, dir, "submit", str(file))
            if done.returncode != 0 and "declined" not in done.stderr:
                sys.exit(done.stderr)
        while True:
            status = json.loads(ask(star, dir, "status", "--json").stdout)
            if all("ended_s" in j for j in status["jobs"]):
                names = {j["name"] for j in jobs}
                return {j["job"]: j for j in status["jobs"] if j["job"] in names}, (took.get("start", 0) + took.get("end", 0), took.get("resize", 0))
            time.sleep(0.5)
    finally:
        service.terminate()
        service.wait()


def simulated(star, out, policy, jobs, submitted, slot, start, resize):
    """The same by the simulator, with the medians that the service counts with: what a start takes, and how long it is until more workers are of use."""
    (out / "rates").mkdir(exist_ok=True)
    unit = 1 if policy == "tiresias" else 10  # jobs of the others end in whole seconds of the trace: here these are tenths
    with open(out / "trace.csv", "w") as f:
        w = csv.writer(f)
        w.writerow("job_id submit_time iteration model_name ddl batch_size num_gpu duration".split())
        for j in jobs:
            at = round(submitted[j["name"]], 2)
            if policy != "tiresias":
                at = int(at * unit)
            w.writerow([j["name"], at, j["samples"], f"to{j['workers']}", at + j["deadline"] * unit, 64, j["workers"], j["samples"] / RATES[j["workers"]] * unit])
    for most in RATES:
        with open(out / "rates" / f"to{most}.csv", "w") as f:
            w = csv.writer(f)
            w.writerow(["global_batch_size"] + [n for n in RATES if n <= most])
            w.writerow([64] + [RATES[n] / unit for n in RATES if n <= most])
    done = subprocess.run([star, "sched", "sim", str(out / "trace.csv"), "--format", "elasticflow", "--throughputs", str(out / "rates"), "--cluster", f"n1g{PLACES}",
                           "--policy", policy, "--slot", f"{slot * unit}s", "--start", f"{start * unit}s", "--resize", f"{resize * unit}s", "--jobs", "-"], capture_output=True, text=True, check=True)
    return {row["job_id"]: dict(row, end=row["end"] and float(row["end"]) / unit) for row in csv.DictReader(done.stdout.splitlines())}


def twice(out, jobs):
    """The most samples of a job that were applied in one life and again in a later one, and whether each job that ended used all of its samples."""
    most = 0
    for j in jobs:
        at = 0
        for log in sorted((out / "jobs" / j["name"]).glob("life-*/run.jsonl"), key=lambda p: int(p.parent.name[5:])):
            fires = [json.loads(line) for line in open(log) if '"type":"fire"' in line]
            if fires:
                most = max(most, at - fires[0]["samples"])
                at = fires[-1]["samples"]
    return max(most, 0)


def one(star, out, seed, policy, slot):
    jobs = draw(seed)
    out.mkdir(parents=True)
    begun = time.time()
    real, (start, resize) = live(star, out, policy, jobs, slot)
    took = time.time() - begun
    sim = simulated(star, out, policy, jobs, {n: j["submitted_s"] for n, j in real.items()}, slot, start, resize)
    met = {n: j["met_deadline"] for n, j in real.items()}
    said = {n: sim[n]["met_deadline"] == "true" for n in met}
    later = [real[n]["ended_s"] - sim[n]["end"] for n in met if sim[n]["end"] and real[n]["state"] == "done"]
    return dict(seed=seed, policy=policy, jobs=len(met), simulated=sum(said.values()), live=sum(met.values()), same=sum(met[n] == said[n] for n in met),
                differ=[n for n in met if met[n] != said[n]], preemptions=sum(j["preemptions"] for j in real.values()), start_s=round(start, 2), resize_s=round(resize, 2), took_s=round(took), twice=twice(out.parent / f"queue-{policy}", jobs),
                unused=[n for n, j in real.items() if j["state"] == "done" and j["samples"] != j["of"]], later=[round(x, 1) for x in later])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--star", default="star")
    p.add_argument("--sets", type=int, default=3)
    p.add_argument("--first", type=int, default=1, help="seed of the first set")
    p.add_argument("--beside", type=int, default=1, help="sets at a time; each has a queue of its own for each policy, which the sets after it in its turn go on with")
    p.add_argument("--policies", type=lambda s: s.split(","), default=POLICIES, help="such as ef-admission: all of the comma-separated ones have each set")
    p.add_argument("--slot", type=int, default=5)
    p.add_argument("--out", type=pathlib.Path, required=True)
    a = p.parse_args()
    a.star = os.path.abspath(a.star)

    def learn(n, policy):
        """Three short jobs: the second one gets the first one's places when that ends."""
        out = a.out / f"turn-{n}" / f"0-{policy}"
        out.mkdir(parents=True)
        live(a.star, out, policy, [dict(name=f"learn-{i}", at=6 * i, samples=10 * RATES[n] // 32 * 32, workers=n, deadline=600) for i, n in enumerate([2, 4, 1])], a.slot)

    def turn(n):
        """Sets of one turn, one after the other; policies beside each other: workers sleep most of the time."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for f in [pool.submit(learn, n, policy) for policy in a.policies]:
                f.result()
        for seed in range(a.first + n, a.first + a.sets, a.beside):
            with concurrent.futures.ThreadPoolExecutor() as pool:
                for f in [pool.submit(one, a.star, a.out / f"turn-{n}" / f"{seed}-{policy}", seed, policy, a.slot) for policy in a.policies]:
                    print(json.dumps(f.result()), flush=True)

    with concurrent.futures.ThreadPoolExecutor(a.beside) as turns:
        for f in [turns.submit(turn, n) for n in range(a.beside)]:
            f.result()


main()
