#!/usr/bin/env python3
"""How much of a method's time to accuracy is its scheme, and how much the length of its updates: a table in Markdown.

    bench/lengths.py --data FOLDER [--star star] [--optimizer dana] [--journal runs.jsonl] [--scenarios NAME=a.yaml,b.yaml …]

Each method with both weights of a gradient (star bench tta --update-scale), at the rate 0.04 (SGD: 0.2) and at its own: the best of a grid of factor 1.19, by levels
of the loss, with the seeds 1 to 4 of the held-out scenarios. What counts are their seeds 5 to 14, and 1 to 10 of other scenarios. Times are over those of SSGD in
the same block, pooled where the bound is 0.30 or more.
"""

import argparse
import functools
import json
import math
import shlex
import statistics
import subprocess

ap = argparse.ArgumentParser()
ap.add_argument("--star", default="star", help="the program, with a prefix if need be")
ap.add_argument("--data", required=True)
ap.add_argument("--optimizer", default="dana", choices=["dana", "sgd", "nesterov"])
ap.add_argument("--journal", default="runs.jsonl")
ap.add_argument("--scenarios", action="append", default=[], help="more scenarios: NAME=LIST")
a = ap.parse_args()
SEARCH, COUNT = 4, 10
METHODS = "ssgd", "ssgd queue=8", "k-sync", "lgc", "auto"
PAIRS = [(m, "n") for m in METHODS if m != "lgc"] + [(m, "firing") for m in ("k-sync", "lgc", "auto")]
if a.optimizer == "dana":  # LGC has Nesterov's momentum then
    PAIRS.append(("k-sync@nesterov", "firing"))
CENTRE = 0.2 if a.optimizer == "sgd" else 0.04
SETS = {"held": "held"} | dict(s.split("=", 1) for s in a.scenarios)
runs: dict = {}  # by method, scale, rate, set of scenarios, seeds


def rate(k):
    return float("%.4g" % (CENTRE * 2 ** (k / 4)))


def measure(method, scale, lr, name, seeds):
    """Runs by scenario and seed, of the seeds from 1."""
    key = method, scale, lr, name, seeds
    if key not in runs:
        args = ["--tasks", "mlp", "--arch", "ps", "--optimizer", a.optimizer, "--momentum", "0" if a.optimizer == "sgd" else "0.9", "--jobs", "1", "--json"]
        args += ["--data", a.data, "--out", a.journal, "--scenarios", SETS[name], "--methods", method, "--update-scale", scale, "--rates", str(lr), "--seeds", str(seeds)]
        p = subprocess.run(shlex.split(a.star) + ["bench", "tta"] + args, capture_output=True, text=True)
        if p.returncode != 0:
            raise SystemExit(p.stderr)
        rows = json.loads(p.stdout)
        first = min(r["seed"] for r in rows)
        runs[key] = {(r["scenario"], r["seed"] - first + 1): r for r in rows}
    return runs[key]


def ratio(x, y, accuracy=False):
    """The logarithm of x's time by y's, as in star bench tta: what only one reached counts as reached at the end of the longer run; None: neither did."""
    xs, ys = (([r["tta_s"]] if r["reached"] else []) if accuracy else r["level_s"] for r in (x, y))
    end, n = max(x["run_s"], y["run_s"]), max(len(xs), len(ys))
    xs, ys = xs + [end] * (n - len(xs)), ys + [end] * (n - len(ys))
    return statistics.mean(math.log(p / q) for p, q in zip(xs, ys)) if n else None


def pooled(xs, ys, seeds, value):
    """Mean over seeds and scenarios with a bound of 0.30 or more, and half of its interval: seeds are clusters."""
    by = {}
    for key, x in xs.items():
        v = value(x, ys[key]) if key[1] in seeds and x["bound"] >= 0.3 else None
        if v is not None:
            by.setdefault(key[1], []).append(v)
    every = [v for vs in by.values() for v in vs]
    mean, g = statistics.mean(every), len(by)
    spread = sum(sum(v - mean for v in vs) ** 2 for vs in by.values())
    return mean, (2.262 if g == 10 else 3.182) * math.sqrt(g / (g - 1) * spread) / len(every)  # Student's t with 9 or 3 degrees of freedom


def search(method, scale):
    """The best rate, and what each brings, over SSGD at the centre of the grid."""
    base = measure("ssgd", "n", rate(0), "held", SEARCH)
    seen, low, high = {}, 0, 5
    if (method, scale) == ("auto", "firing"):  # ASGD makes updates N times as long
        low = -12
    while True:
        for k in range(low, high + 1):
            if k not in seen:
                seen[k] = pooled(measure(method, scale, rate(k), "held", SEARCH), base, range(1, SEARCH + 1), ratio)[0]
        best = min(seen, key=seen.get)
        if low < best < high:
            break
        low, high = min(low, best - 1), max(high, best + 1)
    print("%s, %s: %s" % (method, scale, ", ".join("%g: %.3f" % (rate(k), math.exp(v)) for k, v in sorted(seen.items()))), flush=True)
    return rate(best)


def shorter(lr, name, seeds):
    """LGC with updates by samples: at K/N of the rate. Its 120 rounds of samples are 120·N/K updates."""
    full = measure("lgc", "firing", lr, name, seeds)
    part = {key: min((0.75, 0.8, 5 / 6), key=lambda f: abs(f - 120 / r["updates"])) for key, r in full.items()}
    return {key: measure("lgc", "firing", float("%.4g" % (lr * f)), name, seeds)[key] for key, f in part.items()}


def row(text, lr, of, base):
    cells = [text, lr]
    for name in SETS:
        seeds, n = (range(SEARCH + 1, SEARCH + COUNT + 1), SEARCH + COUNT) if name == "held" else (range(1, COUNT + 1), COUNT)
        xs, ys = of(name, n), base(name, n)
        for accuracy in (False, True):
            mean, half = pooled(xs, ys, seeds, functools.partial(ratio, accuracy=accuracy))
            cells.append("%.3f [%.3f, %.3f]" % (math.exp(mean), math.exp(mean - half), math.exp(mean + half)))
        cells.append("%.2f" % (100 * pooled(xs, ys, seeds, lambda x, _: x["final_accuracy"])[0]))
    print("| " + " | ".join(cells) + " |", flush=True)


best = {p: search(*p) for p in PAIRS}
print("\n| method | update | rate |" + "".join(" %s: levels | accuracy | at the end, %% |" % s for s in SETS) + "\n|---|---|---:|" + "---:|" * 3 * len(SETS))
for own in (False, True):
    methods = {p: functools.partial(measure, *p, best[p] if own else rate(0)) for p in sorted(PAIRS)}
    if not own:
        methods["lgc", "n"] = functools.partial(shorter, rate(0))
    for (method, scale), of in methods.items():
        lr = best[method, scale] if own else rate(0)
        text = "%s | %s" % (method, "by samples" if scale == "n" else "mean")
        row(text, "%g%s" % (lr, "·K/N" if (method, scale) == ("lgc", "n") else ""), of, methods["ssgd", "n"])
    for scale in ("n", "firing"):
        if ("lgc", scale) in methods:
            row("auto by samples over lgc | %s" % ("by samples" if scale == "n" else "mean"), "", methods["auto", "n"], methods["lgc", scale])
