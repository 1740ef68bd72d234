#!/usr/bin/env bash
# How true the simulator is: jobs of 4 real worker processes with an injected trace, then the simulator with the same trace (star bench fidelity).
# Prints the table of time for a round of samples, staleness and changes of mode. Exit code 1 if a round differs by more than 10 %, or the simulator
# has less than 90 % of the changes of mode: to the same plan, at most one round of samples apart.
#
#   bench/fidelity.sh [DIR]     STAR=path/of/star TRACES="a.csv b.csv" ITERATION=200ms STEPS=300 RUN=what each job is started with (nice -n -15)
#                               AUTO="--optimizer sgd --lr 0.2", more settings of the job with --mode auto; AUTO= is momentum, with which the prices of ASGD
#                               and of waiting for all but one are so close here that what is measured of a few gradients decides (docs/simulator.md)
#                               DIR keeps the jobs' folders
#
# Without TRACES there are three: no slow worker for 20 iterations, one worker four times slower for 20, none, another one three times, and so on, with a
# jitter of 3 %. Jobs sleep most of the time, so all of a trace run at once; on a busy machine give RUN="nice -n -15". Takes 2 minutes for each trace.
set -euo pipefail
star=${STAR:-} iteration=${ITERATION:-200ms} steps=${STEPS:-300}
dir=${1:-$(mktemp -d)}
mkdir -p "$dir"
if [ -z "$star" ]; then
	star=$dir/star
	go build -C "$(dirname "$0")/.." -o "$star" ./cmd/star
fi
if [ -z "${TRACES:-}" ]; then
	TRACES=
	for seed in 1 2 3; do
		awk -v seed=$seed 'BEGIN {
			srand(seed); print "step,worker,duration,slowdown,rel"
			for (s = 0; s < 600; s++) for (w = 0; w < 4; w++) {
				x = 0.97 + 0.06 * rand(); k = int(s / 20) % 4
				if (k == 1 && w == 3) x *= 4
				if (k == 3 && w == 1) x *= 3
				printf "%d,%d,%.4f,%.4f,%.4f\n", s, w, x, x, x
			}
		}' >"$dir/trace-$seed.csv"
		TRACES="$TRACES $dir/trace-$seed.csv"
	done
fi
job() { # name, trace, steps, what decides
	${RUN:-} "$star" run --listen 127.0.0.1:0 --workers 4 --model mlp:hidden=32 --dataset digits --batch 32 --steps "$3" --threads 1 --eval-every 0 --http off --predictor none \
		--telemetry off --log-level warn --progress off --straggler-trace "$2" --straggler-iteration "$iteration" --out "$dir/$1" "${@:4}" >"$dir/$1.txt" 2>&1 ||
		{ echo "bench/fidelity.sh: job $1 failed:" >&2; tail -3 "$dir/$1.txt" >&2; exit 69; }
}
jobs=()
for trace in $TRACES; do
	name=$(basename "$trace"); name=${name%.gz}; name=${name%.csv}
	pids=()
	job "$name-ssgd" "$trace" $((steps / 2)) --mode ssgd & pids+=($!)
	job "$name-x3" "$trace" $((steps * 2 / 3)) --mode x=3 & pids+=($!)
	job "$name-asgd" "$trace" $((steps * 2 / 3)) --mode asgd & pids+=($!)
	job "$name-auto" "$trace" "$steps" --mode auto ${AUTO---optimizer sgd --lr 0.2} & pids+=($!)
	job "$name-greedy" "$trace" "$steps" --baseline sync-switch:switch=0.99,online=greedy & pids+=($!)
	for p in "${pids[@]}"; do wait "$p"; done
	for m in ssgd x3 asgd auto greedy; do jobs+=("$dir/$name-$m"); done
done
"$star" bench fidelity "${jobs[@]}"
"$star" bench fidelity --json "${jobs[@]}" | /usr/bin/env python3 -c '
import json, sys
rows = json.load(sys.stdin)
worst = max(abs(r["error"]) for r in rows)
real, simulated, same = (sum(r[k] for r in rows) for k in ("switches", "simulated_switches", "same_switches"))
print("worst error of a round %.1f %%; of %d changes of mode the simulator has %d (%.0f %%), and %d of its own" % (100*worst, real, same, 100*same/max(1, real), simulated-same))
sys.exit(worst > 0.10 or same < 0.9*real)'
