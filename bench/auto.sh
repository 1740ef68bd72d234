#!/usr/bin/env bash
# What --mode auto reaches in simulation, beside every fixed x-order, and the best of them in hindsight: on constant, bursty and rotating
# stragglers, and on each straggler trace (*.csv, *.csv.gz) of the folders given. Prints one line for each scenario, learning rate and seed count.
#
#   bench/auto.sh [FOLDER …]        STAR=path/of/star SEEDS=5
set -euo pipefail
star=${STAR:-}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
if [ -z "$star" ]; then
	star=$work/star
	go build -C "$(dirname "$0")/.." -o "$star" ./cmd/star
fi
scenario() { # name, then lines of YAML
	local name=$1; shift
	# Long training at a small learning rate, where staleness is cheap; shorter ones at rates near what the curvature allows.
	for l in "0.02 20" "0.5 200" "1 500"; do
		{ printf 'name: %s, rate %s\nlimit: 100h\ntarget: 2\nlearner: {rate: %s, condition: %s}\n' "$name" "${l% *}" "${l% *}" "${l#* }"; printf '%s\n' "$@"; } >"$work/s-$name-${l% *}.yaml"
	done
}
scenario calm 'workers: 8' 'jitter: 0.03'
scenario one-3x 'workers: 8' 'jitter: 0.03' 'times: {3: 1800ms}'
scenario two-2x 'workers: 8' 'jitter: 0.03' 'times: {3: 1200ms, 5: 1200ms}'
scenario network 'workers: 8' 'jitter: 0.03' 'fixed: 0.3' 'episodes: [{worker: 2, from: 0s, to: 100h, factor: 6, network: true}]'
scenario rotating 'workers: 8' 'jitter: 0.03' 'episodes: [{worker: 0, from: 20s, to: 50s, factor: 3, every: 60s, times: 1000, rotate: true}]'
scenario bursts 'workers: 8' 'jitter: 0.03' 'episodes: [{worker: 1, from: 2s, to: 3s, factor: 5, every: 6s, times: 5000}]'
for dir; do
	for f in "$dir"/*.csv "$dir"/*.csv.gz; do
		[ -e "$f" ] || continue
		name=$(basename "$f"); name=${name%.gz}; name=${name%.csv}
		scenario "$name" "trace: $(realpath "$f")"
	done
done
printf '%-34s %6s  %9s  %10s %-6s  %9s %8s %8s %8s\n' scenario bound ssgd best "" auto "vs ssgd" "vs best" switches
for s in "$work"/s-*.yaml; do
	"$star" sim --mode all --seeds "${SEEDS:-5}" --json "$s" | /usr/bin/env python3 -c '
import json, statistics, sys
rows = json.load(sys.stdin)
med = {}
for r in rows:
    med.setdefault(r["method"], []).append(r["tta_s"] if r["tta_s"] is not None else float("inf"))
switches = statistics.mean(r["switches"] for r in rows if r["method"] == "auto")
m = {k: statistics.median(v) for k, v in med.items()}
best = min((k for k in m if k != "auto"), key=lambda k: m[k])
print("%-34s %5.0f%%  %8.1fs  %9.1fs %-6s  %8.1fs %+7.1f%% %8.3f %8.1f" % (rows[0]["scenario"], 100*rows[0]["bound"], m["ssgd"], m[best], best, m["auto"], 100*(m["auto"]/m["ssgd"]-1), m["auto"]/m[best], switches))'
done
