#!/usr/bin/env bash
# Whether real processes do what star bench tta says: the same traces, seeds, learning rates and methods, in virtual time and as jobs of star run, in turns. Prints
# real over virtual in pace (time of a round of samples) and in time to an accuracy, and with --write puts the table between its marks in RESULTS.md.
#
#   bench/confirm.sh [--write] DIR [TRACE.csv …]     STAR=path/of/star TURNS=5 ITERATION=600ms ROUNDS=60 TARGET=0.42 METHODS="ssgd auto lb-bsp lgc sync-switch"
#
# Two traces are made: one-3x (worker 3 of 8 takes three times as long) and bursts (worker 1 five times as long in two steps of ten), with 8 % of jitter; others, such as
# alibaba-job4.csv.gz, are given. Workers sleep for what a trace says, so all jobs of a turn run at once, and little processor time is used: one turn takes what SSGD takes.
# DIR keeps traces, results in virtual time and the jobs' folders; turns that are there are not made again.
set -euo pipefail
write=
[ "${1:-}" = --write ] && { write=1; shift; }
[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 64; }
dir=$1; shift
here=$(cd "$(dirname "$0")" && pwd)
star=${STAR:-} turns=${TURNS:-5} iteration=${ITERATION:-600ms} rounds=${ROUNDS:-60} target=${TARGET:-0.42} batch=8
read -ra methods <<<"${METHODS:-ssgd auto lb-bsp lgc sync-switch}"
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
if [ -z "$star" ]; then
	star=$dir/star
	go build -C "$here/.." -o "$star" ./cmd/star
fi
for name in one-3x bursts; do
	[ -e "$dir/$name.csv" ] || awk -v name=$name 'BEGIN {
		srand(1); print "step,worker,duration,slowdown,rel"
		for (s = 0; s < 2000; s++) for (w = 0; w < 8; w++) {
			x = 0.92 + 0.16 * rand()
			if (name == "one-3x" && w == 3) x *= 3
			if (name == "bursts" && w == 1 && (s % 10 == 3 || s % 10 == 4)) x *= 5
			printf "%d,%d,%.4f,%.4f,%.4f\n", s, w, x, x, x
		}
	}' >"$dir/$name.csv"
done
for trace; do cp -n "$trace" "$dir/"; done
list=$(IFS=,; echo "${methods[*]}")
jobs=()
for trace in "$dir"/*.csv "$dir"/*.csv.gz; do
	[ -e "$trace" ] || continue
	name=$(basename "$trace"); name=${name%.gz}; name=${name%.csv}
	workers=$(if [[ $trace == *.gz ]]; then zcat "$trace"; else cat "$trace"; fi | awk -F, '/^[0-9]/ { if ($2 > n) n = $2 } END { print n + 1 }')
	round=$((batch * workers))
	printf 'name: %s\ntrace: %s\niteration: %s\nfixed: 0\n' "$name" "$(basename "$trace")" "$iteration" >"$dir/$name.yaml"
	set -- --model mlp:hidden=32 --dataset "digits:n=$((2 * round)),test=250" # an epoch, after which jobs look at the test samples, has two rounds
	[ -s "$dir/$name.json" ] || "$star" bench tta "$@" --round "$round" --rounds "$rounds" --target "$target" --scenarios "$dir/$name.yaml" --arch ps \
		--momentum 0.9 --optimizer dana --rates 0.02,0.04,0.08 --methods "$list" --seeds "$turns" --search 2 --json 2>/dev/null >"$dir/$name.json"
	for seed in $(seq "$turns"); do
		for m in "${methods[@]}"; do
			rate=$(/usr/bin/env python3 -c 'import json, sys; print(next(r["lr"] for r in json.load(open(sys.argv[1])) if r["method"] == sys.argv[2]))' "$dir/$name.json" "$m")
			case $m in ssgd | auto | asgd | *=*) how=(--mode "$m") ;; *) how=(--baseline "$m") ;; esac
			jobs+=("$seed|$name-$m-$seed|$(printf '%q ' "$star" run --listen 127.0.0.1:0 --workers "$workers" "$@" --batch $batch --steps "$rounds" --threads 1 --eval-every 1 --keep 1 --http off \
				--predictor none --telemetry off --log-level warn --progress off --optimizer dana --momentum 0.9 --lr "$rate" --schedule "linear=$((rounds * round))" --seed "$seed" \
				--straggler-trace "$trace" --straggler-iteration "$iteration" "${how[@]}" --out "$dir/$name-$m-$seed")")
		done
	done
done
load=
for seed in $(seq "$turns"); do
	pids=()
	for j in "${jobs[@]}"; do
		IFS='|' read -r of out command <<<"$j"
		[ "$of" = "$seed" ] && [ ! -e "$dir/$out.done" ] || continue
		rm -rf "${dir:?}/$out"
		{ eval "$command" >"$dir/$out.txt" 2>&1 && touch "$dir/$out.done" || { echo "bench/confirm.sh: job $out failed:" >&2; tail -3 "$dir/$out.txt" >&2; }; } &
		pids+=($!)
	done
	for p in "${pids[@]}"; do wait "$p"; done
	[ ${#pids[@]} = 0 ] || cut -d' ' -f1-3 /proc/loadavg >>"$dir/load.txt"
done
{
	printf '<!-- confirm: begin (written by bench/confirm.sh --write) -->\n\nMeasured on %s at commit %s by `bench/confirm.sh DIR alibaba-job4.csv.gz`; %s processors, load at the ends of the turns %s.\n\n' \
		"$(date -u +%F)" "${COMMIT:-$(git -C "$here" rev-parse --short HEAD)}" "$(nproc)" "$(cut -d' ' -f1 "$dir/load.txt" | paste -sd' ')"
	/usr/bin/env python3 - "$dir" "$target" "$batch" <<'PY'
import glob, json, math, os, sys
place, target, batch = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
def job(path):
    """A job's seconds for a sample, seconds to the accuracy (None: not reached), accuracy at the end, changes of plan."""
    begun, fires, looks, changes = None, [], [], 0
    for text in open(os.path.join(path, "run.jsonl")):
        m = json.loads(text)
        if m["type"] == "train":
            begun, every = m["t"], 2 * batch * m["workers"]
        elif m["type"] == "fire":
            fires.append((m["samples"], m["t"] - begun))
        elif m["type"] == "plan":
            changes += 1
        elif m["type"] == "eval":
            looks.append((m["samples"], m["accuracy"]))
    # Jobs look when an epoch is handed out, the simulator when it is applied, a round later: between two looks accuracy goes by a straight line.
    at, tta = [], None
    for samples in range(every, looks[-1][0] + 1, every):
        (x, a), (y, b) = next(((l, r) for l, r in zip(looks, looks[1:]) if l[0] <= samples <= r[0]), (looks[0], looks[0]))
        at.append(a + (b - a) * (samples - x) / max(y - x, 1))
        if tta is None and len(at) > 2 and sum(at[-3:]) / 3 >= target:
            tta = next(t for used, t in fires if used >= samples)
    return fires[-1][1] / fires[-1][0], tta, looks[-1][1], changes
def spread(xs):
    if not xs:
        return "–"
    mean = math.exp(sum(map(math.log, xs)) / len(xs))
    return "%.3f (%.3f to %.3f)" % (mean, min(xs), max(xs))
print("| trace | method | learning rate | 64 samples, virtual | real over virtual | to the accuracy, virtual | real over virtual | accuracy at the end, virtual | real | changes of plan, virtual | real |")
print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
paces, times, ratio = [], [], {}
for file in sorted(glob.glob(os.path.join(place, "*.json"))):
    results = json.load(open(file))
    by = {}
    for r in results:
        path = os.path.join(place, "%s-%s-%d" % (r["scenario"], r["method"], r["seed"]))
        if os.path.exists(path + ".done"):
            by.setdefault(r["method"], []).append((r, job(path)))
    for m, pairs in by.items():
        n = len(pairs)
        mean = lambda f: sum(f(r, j) for r, j in pairs) / n
        pace = [j[0] / (r["run_s"] / r["samples"]) for r, j in pairs]
        tta = [j[1] / r["tta_s"] for r, j in pairs if j[1] and r["tta_s"]]
        both = "" if len(tta) == n else " (%d of %d)" % (len(tta), n)
        reached = [r["tta_s"] for r, j in pairs if r["tta_s"]]
        paces += pace
        times += tta
        ratio[file, m] = (sum(map(math.log, pace)) / n, sum(map(math.log, tta)) / len(tta) if tta else 0)
        r = pairs[0][0]
        print("| %s | %s | %g | %.3f s | %s | %s | %s%s | %.1f %% | %.1f %% | %.1f | %.1f |" % (r["scenario"], m, r["lr"], mean(lambda r, j: r["run_s"] / r["samples"]) * 64,
              spread(pace), "%.1f s" % (sum(reached) / len(reached)) if reached else "–", spread(tta), both, 100 * mean(lambda r, j: r["final_accuracy"]), 100 * mean(lambda r, j: j[2]),
              mean(lambda r, j: r["switches"]), mean(lambda r, j: j[3])))
for what, xs, k, goal in ("pace", paces, 0, 0.05), ("time to the accuracy", times, 1, 0.10):
    rows = [math.exp(r[k]) for r in ratio.values()]
    within = sum(abs(x - 1) <= goal for x in rows)
    print("\n- Real over virtual, %s: %s in single runs; %d of %d means within %.0f %%." % (what, spread(xs), within, len(rows), 100 * goal), end="")
print()
PY
	printf '\n<!-- confirm: end -->\n'
} >"$dir/section.md"
cat "$dir/section.md"
[ -n "$write" ] || exit 0
awk -v section="$dir/section.md" '
	/^<!-- confirm: begin/ { while ((getline line < section) > 0) print line; skip = 1 }
	!skip { print }
	/^<!-- confirm: end/ { skip = 0 }' "$here/RESULTS.md" >"$dir/results.md"
cp "$dir/results.md" "$here/RESULTS.md"
