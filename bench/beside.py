#!/usr/bin/env python3
"""Hot paths of this version beside an earlier one: both are built and measured in turns, and the ratios are printed.

    bench/beside.py COMMIT [--rounds 5] [--only coord,ps,allreduce,step,ring,arrive,sim] [--keep FOLDER]

coord      star bench coord: from the last arrival to the release, 8 workers
ps         star bench ps: push and pull of 1 and 16 MB, 1 and 4 workers, over TCP
allreduce  star bench allreduce: 2 and 4 ranks, 4 KiB, 1 MiB and 16 MiB, TCP and shared memory
step       star bench step: jobs of LeNet and a perceptron with 4 workers and 2 shards
ring       star bench step --arch allreduce: LeNet with 2 and 4 ranks
arrive     go test -bench Arrive ./modes
sim        star bench scale: processor time of the simulator for a gradient, 100 and 10000 workers

A round measures each of both versions once, the earlier one first in every other round. A line of the table is the median over the rounds of this version's time over the
earlier one's, below 1 where this one is faster, with the least and the most; the least of its times over the least of the earlier one's, which other programs on the
machine disturb less; and allocations of both, where the measurement counts them. A round of arrive is ten short turns of each. FOLDER keeps what is
built, and everything that was measured; with arrive it has old.txt and new.txt for benchstat, which is run if it is installed.
Needs git and go. It exits with 1 if a measurement fails.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(argv, **more):
    p = subprocess.run(argv, capture_output=True, text=True, **more)
    if p.returncode:
        sys.exit("%s ended with %d:\n%s" % (" ".join(argv), p.returncode, p.stderr[-2000:]))
    return p.stdout


def rows(name, out):
    """Yields (what, time, allocations or None) of one measurement."""
    if name == "arrive":
        for m in re.finditer(r"^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op.*?(\d+) allocs/op", out, re.M):
            yield m.group(1), float(m.group(2)), float(m.group(3))
        return
    got = json.loads(out)
    if name == "step":
        for r in got["overhead"]:
            yield "%s, %d workers" % (r["model"], r["ranks"]), r["step_s"], None
    elif name == "ring":
        for r in got["exchange"]:
            if r["exchange"] == "star":
                yield "%s, %d ranks, %s" % (r["model"], r["ranks"], r["transport"]), r["step_s"], None
    elif name == "sim":
        for r in got:
            yield "%d workers, %s" % (r["workers"], r["mode"]), r["s_per_gradient"], None
    elif name == "coord":
        for r in got:
            yield "%d workers, %s" % (r["ranks"], r["mode"]), r["median_s"], None
    else:
        for r in got:
            if r["algorithm"] in ("star-ps", "star-ps-data") or name == "allreduce":
                yield "%d × %d B, %s, %s" % (r["ranks"], r["bytes"], r["transport"], r["algorithm"]), r["median_s"], r.get("allocs_per_op")


BENCHES = {
    "coord": "bench coord --json",
    "ps": "bench ps --sizes 1MB,16MB --ranks 1,4 --runs 3 --json",
    "allreduce": "bench allreduce --ranks 2,4 --sizes 4KiB,1MiB,16MiB --rounds 1 --json",
    "step": "bench step --models none --jobs lenet,mlp --rounds 1 --json",
    "ring": "bench step --arch allreduce --models lenet --ranks 2,4 --rounds 1 --json",
    "arrive": None,
    "sim": "bench scale --ranks 100,10000 --modes ssgd,x=half --events 500000 --json",
}


def build(folder, side, source):
    star, tests = os.path.join(folder, "star-" + side), os.path.join(folder, "modes-" + side)
    run(["go", "build", "-o", star, "./cmd/star"], cwd=source)
    run(["go", "test", "-c", "-o", tests, "./modes"], cwd=source)
    return star, tests


def measure(name, binaries, side, folder):
    star, tests = binaries[side]
    if name == "arrive":
        out = run([tests, "-test.run", "^$", "-test.bench", "Arrive", "-test.benchmem", "-test.benchtime", "20ms"])
        with open(os.path.join(folder, side + ".txt"), "a") as f:
            f.write(out)
    else:
        out = run([star] + BENCHES[name].split())
        with open(os.path.join(folder, "%s-%s.jsonl" % (name, side)), "a") as f:
            f.write(json.dumps(json.loads(out)) + "\n")
    return {what: (t, allocs) for what, t, allocs in rows(name, out)}


def table(name, turns):
    """Prints a line for each measurement that both versions have."""
    for what in turns[0]["new"]:
        pairs = [(t["old"][what], t["new"][what]) for t in turns if what in t["new"] and t["old"].get(what, (0,))[0] > 0]
        if not pairs:
            print("| %s | %s | the earlier version has no such measurement | | | |" % (name, what))
            continue
        ratios = [n[0] / o[0] for o, n in pairs]
        counts = [[p[k][1] for p in pairs if p[k][1] is not None] for k in (0, 1)]
        allocs = " → ".join("%.1f" % statistics.median(c) for c in counts) if all(counts) else ""
        least = min(n[0] for _, n in pairs) / min(o[0] for o, _ in pairs)
        print("| %s | %s | %.2f | %.2f to %.2f | %.2f | %s |" % (name, what, statistics.median(ratios), min(ratios), max(ratios), least, allocs), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("commit")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--only", default=",".join(BENCHES))
    p.add_argument("--keep")
    args = p.parse_args()
    names = args.only.split(",")
    if unknown := set(names) - set(BENCHES):
        p.error("--only %s: want some of %s" % (",".join(sorted(unknown)), ",".join(BENCHES)))
    if args.rounds < 1:
        p.error("--rounds %d: want at least 1" % args.rounds)
    folder = args.keep or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    tree = os.path.join(folder, "earlier")
    commit = run(["git", "rev-parse", "--verify", args.commit + "^{commit}"], cwd=HERE).strip()
    try:
        run(["git", "worktree", "add", "--detach", tree, commit], cwd=HERE)
        binaries = {"old": build(folder, "old", tree), "new": build(folder, "new", HERE)}
        now = run(["git", "describe", "--always", "--dirty"], cwd=HERE).strip()
        print("%s beside %s, %d rounds, load %.1f on %d processors\n" % (now, commit[:7], args.rounds, os.getloadavg()[0], os.cpu_count()))
        print("| | what | time, this version over the earlier | least to most | of the least times | allocations, earlier → this |\n|---|---|---|---|---|---|", flush=True)
        for name in names:
            turns = []
            for k in range(args.rounds * (10 if name == "arrive" else 1)):
                sides = ("old", "new") if k % 2 == 0 else ("new", "old")
                turns.append({side: measure(name, binaries, side, folder) for side in sides})
            table(name, turns)
        print("\nload at the end: %.1f" % os.getloadavg()[0])
        if "arrive" in names and shutil.which("benchstat"):
            print(run(["benchstat", os.path.join(folder, "old.txt"), os.path.join(folder, "new.txt")]))
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if not args.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
