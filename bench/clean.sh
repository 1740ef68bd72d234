#!/usr/bin/env bash
# What --mode auto costs where no worker is slow: real jobs of LeNet in --mode ssgd and in --mode auto, by turns, so that whatever else the machine does meets
# both. Prints, for each number of workers, the medians of the samples per second, their ratio, that of each pair of turns, and the changes of mode.
# Exits with 1 where auto changed the mode, or its median is more than 1 % slower than SSGD's.
#
#   bench/clean.sh      STAR=path/of/star WORKERS="2 4" TURNS=5 STEPS=300 FLOOR=20ms (that each worker sleeps in an iteration, as one
#                       that waits for its accelerator; 0: none)
set -euo pipefail
star=${STAR:-} turns=${TURNS:-5} steps=${STEPS:-300} floor=${FLOOR:-20ms}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
if [ -z "$star" ]; then
	star=$work/star
	go build -C "$(dirname "$0")/.." -o "$star" ./cmd/star
fi
for n in ${WORKERS:-2 4}; do
	slow=()
	if [ "$floor" != 0 ]; then
		for ((r = 0; r < n; r++)); do slow+=(--slow "$r:+$floor"); done
	fi
	for ((t = 1; t <= turns; t++)); do
		order="ssgd auto"
		if ((t % 2 == 0)); then order="auto ssgd"; fi
		for mode in $order; do
			"$star" run --json --mode "$mode" --workers "$n" --model lenet --batch 32 --threads 1 --steps "$steps" --epochs 100000 --seed "$t" \
				--dataset digits:n=4000,test=100 --log-level error --out "$work/out" "${slow[@]}" >"$work/$n-$t-$mode.json" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
			rm -rf "$work/out"
		done
	done
done
/usr/bin/env python3 - "$work" "$turns" "${WORKERS:-2 4}" <<'END'
import json, statistics, sys
work, turns, workers = sys.argv[1], int(sys.argv[2]), sys.argv[3].split()
bad = False
print("%7s %6s  %12s %12s  %7s  %-15s %s" % ("workers", "turns", "ssgd", "auto", "ratio", "of single turns", "changes"))
for n in workers:
    def load(mode):
        return [json.load(open("%s/%s-%d-%s.json" % (work, n, t, mode))) for t in range(1, turns + 1)]
    ssgd, auto = load("ssgd"), load("auto")
    s, a = ([r["samples_per_s"] for r in rs] for rs in (ssgd, auto))
    ratio = statistics.median(a) / statistics.median(s)
    each = [y / x for x, y in zip(s, a)]
    changes = sum(r["switches"] for r in auto)
    print("%7s %6d  %8.0f/s   %8.0f/s    %6.3f  %.3f to %.3f  %d" % (n, turns, statistics.median(s), statistics.median(a), ratio, min(each), max(each), changes))
    bad = bad or changes > 0 or ratio < 0.99
sys.exit(1 if bad else 0)
END
