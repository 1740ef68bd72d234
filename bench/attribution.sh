#!/usr/bin/env bash
# Does STAR find the right worker, and the right cause? Real jobs of four workers, one of them injured on purpose, another one each time; then jobs
# in which nobody is. Asks the detector for its verdicts over each run log: the worker counts as found when its first verdict comes within 20 iterations of the
# warm-up, the cause when the last word on it is right. A quota needs root; a link needs namespaces, so it is not here.
#
#   bench/attribution.sh      STAR=path/of/star RUNS=10 (of each kind) CLEAN=20
set -euo pipefail
star=${STAR:-} runs=${RUNS:-10} clean=${CLEAN:-20}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
if [ -z "$star" ]; then
	star=$work/star
	go build -C "$(dirname "$0")/.." -o "$star" ./cmd/star
fi
kinds=(data stop add)
[ "$(id -u)" = 0 ] && kinds+=(quota)
one() { # kind worker seed
	local how=()
	case $1 in
	data) how=(--slow "$2:data=60ms") ;;
	stop) how=(--slow "$2:stop=60ms/200ms") ;;
	add) how=(--slow "$2:+60ms") ;;
	quota) how=(--slow "$2:4x" --straggler-by quota) ;;
	none) how=(--slow none) ;;
	esac
	"$star" run --listen 127.0.0.1:0 --mode ssgd --model lenet --batch 64 --workers 4 --threads 1 --steps "${STEPS:-80}" --dataset digits:n=4000,test=100 --seed "$3" \
		--out "$work/out" --progress off --log-level error --json "${how[@]}" >/dev/null 2>"$work/err" || { cat "$work/err" >&2; return 1; }
	"$star" predictor verdicts --json "$work/out/run.jsonl" >"$work/$1-$3.json"
	rm -rf "$work/out"
	echo "$1 $2 $3" >>"$work/list"
}
for k in "${kinds[@]}"; do for s in $(seq "$runs"); do one "$k" $((s % 4)) "$s"; done; done
for s in $(seq "$clean"); do one none 0 "$s"; done
/usr/bin/env python3 - "$work" <<'P'
import collections, json, sys
work = sys.argv[1]
right = {"data": {"data"}, "stop": {"pauses"}, "add": {"compute"}, "quota": {"quota"}}
n, worker, cause, said, false = (collections.Counter() for _ in range(5))
for line in open(work + "/list"):
    kind, rank, seed = line.split()
    vs = [v for v in json.load(open(f"{work}/{kind}-{seed}.json")) if v["event"] in ("slow", "changed")]
    n[kind] += 1
    if kind == "none":
        worker[kind] += not vs
        continue
    mine = [v for v in vs if v["worker"] == int(rank)]
    false[kind] += any(v["worker"] != int(rank) for v in vs)
    if mine and mine[0]["step"] <= 3 + 20:
        worker[kind] += 1
    if mine:
        said[kind, mine[-1]["cause"]] += 1
        cause[kind] += mine[-1]["cause"] in right[kind]
print("%-8s %5s %14s %12s %14s  %s" % ("injury", "runs", "worker in time", "right cause", "others blamed", "causes given"))
for k in n:
    if k == "none":
        print("%-8s %5d %14s" % (k, n[k], f"{worker[k]} silent"))
    else:
        print("%-8s %5d %14d %12d %14d  %s" % (k, n[k], worker[k], cause[k], false[k], ", ".join(f"{c} {m}" for (q, c), m in said.items() if q == k)))
P
