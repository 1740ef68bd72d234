#!/usr/bin/env python3
"""What is the effect of a learning rate that follows the number of workers (--update-scale workers)?

Jobs of eight workers lose six machines at once and train the rest with two: with the learning rate as it is (--update-scale n), and with one in
proportion to the present workers. Both begin with the same parameters and see the same samples. Printed: test accuracy in the mean over the seeds, and what the second has more than the
first, with its standard error over the pairs.

  python3 bench/adaptive.py --star ./star --seeds 10
"""

import argparse
import pathlib
import re
import statistics
import subprocess
import tempfile

GONE = "time,worker,replaced\n" + "".join(f"{0.3 + 0.05 * w:.2f},{w},\n" for w in range(2, 8))


def accuracy(star, out, model, rate, mode, scale, seed, lose):
    """Of one job, %."""
    done = subprocess.run([star, "run", "--workers", "8", "--min-workers", "1", "--model", model, "--dataset", "digits", "--batch", "8", "--lr", str(rate), "--epochs", "2", "--mode", mode,
                           "--slow", "none", "--seed", str(seed), "--update-scale", scale, "--revoke", f"trace:{lose}", "--out", str(out)], capture_output=True, text=True)
    found = re.search(r"accuracy +([0-9.]+) %", done.stdout)
    if done.returncode or not found:
        raise SystemExit(done.stdout + done.stderr)
    return float(found.group(1))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--star", default="star")
    p.add_argument("--seeds", type=int, default=10)
    a = p.parse_args()
    print(f"{'model':8}{'mode':6}{'lr':>6}{'n':>8}{'workers':>9}{'more':>8}")
    with tempfile.TemporaryDirectory() as d:
        lose = pathlib.Path(d, "lose.csv")
        lose.write_text(GONE)
        for model, rate in [("lenet", 0.02), ("lenet", 0.01), ("mlp", 0.02), ("mlp", 0.04)]:
            for mode in ["ssgd", "asgd"]:
                pairs = [[accuracy(a.star, pathlib.Path(d, f"{model}-{rate}-{mode}-{scale}-{seed}"), model, rate, mode, scale, seed, lose) for scale in ["n", "workers"]] for seed in range(1, a.seeds + 1)]
                more = [w - n for n, w in pairs]
                n, w = (statistics.mean(x) for x in zip(*pairs))
                print(f"{model:8}{mode:6}{rate:6}{n:8.2f}{w:9.2f}{statistics.mean(more):+8.2f} ± {statistics.stdev(more) / len(more) ** 0.5:.2f}", flush=True)


main()
