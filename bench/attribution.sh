#!/usr/bin/env bash
# Does STAR find the right worker, and the right cause? Real jobs of four workers, one of them injured on purpose, another one in each: a late data
# loader, a CPU quota, a link of 20 Mbit/s (out in every other job, in in the others), a process that is stopped for half of the time, a longer
# computation; and jobs in which nobody is injured. Injuries begin with the job. A job counts where the detector says the right thing of the right worker
# before that worker's 20th iteration: worker, the first one that it names; cause, what it says last before then.
#
# Each worker sleeps FLOOR in an iteration, as one that waits for its accelerator: four that compute all the time on fewer processors are
# slow now and then by themselves. A quota needs root, a link namespaces and tc as well; without root they are left out.
#
#   bench/attribution.sh      STAR=path/of/star RUNS=10 (of each kind) CLEAN=20 KINDS="data quota link stop add none" FROM=1 FLOOR=70ms STEPS=40
#                             KEEP=folder of run logs, to which a later call with another FROM or other KINDS adds; the table is of all in it
set -euo pipefail
star=${STAR:-} runs=${RUNS:-10} clean=${CLEAN:-20} from=${FROM:-1} floor=${FLOOR:-70ms} steps=${STEPS:-40}
work=$(mktemp -d); tag=sa$$
root=$([ "$(id -u)" = 0 ] && echo yes || true)
finish() {
	for p in $(jobs -p); do kill "$p" 2>/dev/null || true; done
	for n in "${tag}a" "${tag}b"; do ip netns del "$n" 2>/dev/null || true; done
	rm -rf "$work"
}
trap finish EXIT
keep=${KEEP:-$work/keep}
mkdir -p "$keep"
if [ -z "$star" ]; then
	star=$work/star
	go build -C "$(dirname "$0")/.." -o "$star" ./cmd/star
fi
kinds=${KINDS:-data ${root:+quota link} stop add none}
job=(--mode ssgd --model lenet --batch 128 --workers 4 --threads 1 --steps "$steps" --epochs 100000 --dataset digits:n=4000,test=100 --log-level error --out "$work/out")
for r in 0 1 2 3; do job+=(--slow "$r:+$floor"); done

# cable makes two hosts with a cable between them: 10.79.0.1 and 10.79.0.2.
cable() {
	ip netns list | grep -q "^${tag}a" && return
	ip netns add "${tag}a"; ip netns add "${tag}b"
	ip link add eth0 netns "${tag}a" type veth peer name eth0 netns "${tag}b"
	ip -n "${tag}a" addr add 10.79.0.1/24 dev eth0; ip -n "${tag}b" addr add 10.79.0.2/24 dev eth0
	for n in "${tag}a" "${tag}b"; do ip -n "$n" link set lo up; ip -n "$n" link set eth0 up; done
}

# linked runs a job whose worker $1 is on a host of its own, behind a thin cable; by seed $2 its way out or its way in is thin.
linked() {
	cable
	local on all=("${job[@]}" --seed "$2" --servers 2 --token secret --coordinator 10.79.0.1:7070 --http off --progress off) pids=()
	if [ $(($2 % 2)) = 0 ]; then
		all+=(--slow "$1:20mbit" --straggler-by tc)
	else
		ip netns exec "${tag}a" tc qdisc add dev eth0 root tbf rate 20mbit burst 25kb latency 400ms
	fi
	for s in 0 1; do
		ip netns exec "${tag}a" "$star" ps --rank $s --listen ":707$((5 * s))" "${all[@]}" >/dev/null 2>>"$work/err" & pids+=($!)
	done
	for r in 0 1 2 3; do
		on=${tag}a; [ "$r" = "$1" ] && on=${tag}b
		ip netns exec "$on" "$star" worker --rank $r "${all[@]}" >/dev/null 2>>"$work/err" & pids+=($!)
	done
	for p in "${pids[@]}"; do wait "$p" || return 1; done
	ip netns exec "${tag}a" tc qdisc del dev eth0 root 2>/dev/null || true
}
one() { # kind worker seed
	local how=() name=$1
	case $1 in
	data) how=(--slow "$2:data=60ms") ;;
	stop) how=(--slow "$2:stop=150ms/300ms") ;;
	add) how=(--slow "$2:+60ms") ;;
	quota) how=(--slow "$2:8x" --straggler-by quota) ;;
	link) name=$([ $(($3 % 2)) = 0 ] && echo link-out || echo link-in) ;;
	none) ;;
	*) echo "KINDS: $1 is none of data, quota, link, stop, add, none" >&2; return 2 ;;
	esac
	: >"$work/err"
	if [ "$1" = link ]; then
		linked "$2" "$3" || { cat "$work/err" >&2; return 1; }
	else
		"$star" run --listen 127.0.0.1:0 "${job[@]}" --seed "$3" --progress off --json "${how[@]}" >/dev/null 2>"$work/err" || { cat "$work/err" >&2; return 1; }
	fi
	mv "$work/out/run.jsonl" "$keep/$name-$2-$3.jsonl"
	rm -rf "$work/out"
}
for k in $kinds; do
	n=$runs; [ "$k" = none ] && n=$clean
	for s in $(seq "$from" $((from + n - 1))); do one "$k" $((s % 4)) "$s"; done
done
for f in "$keep"/*.jsonl; do "$star" predictor verdicts --json "$f" >"$work/$(basename "$f" .jsonl).json"; done
/usr/bin/env python3 - "$work" <<'P'
import collections, glob, json, os, sys
right = {"data": {"data"}, "stop": {"pauses"}, "add": {"compute"}, "quota": {"quota"}, "link-out": {"network-out"}, "link-in": {"network-in"}}
n, worker, cause, others, when, said = (collections.Counter() for _ in range(6))
for f in glob.glob(sys.argv[1] + "/*-*-*.json"):
    kind, rank, seed = os.path.basename(f)[:-5].rsplit("-", 2)
    vs = [v for v in json.load(open(f)) if v["event"] in ("slow", "changed")]
    n[kind] += 1
    if kind == "none":
        others[kind] += bool(vs)
        continue
    mine = [v for v in vs if v["worker"] == int(rank) and v["step"] < 20]
    others[kind] += any(v["worker"] != int(rank) for v in vs)
    worker[kind] += bool(mine) and mine[0] is next(v for v in vs if v["event"] == "slow")
    if mine:
        cause[kind] += mine[-1]["cause"] in right[kind]
        when[kind] = max(when[kind], mine[0]["step"])
        said[kind, mine[-1]["cause"]] += 1
print("%-9s %5s %13s %12s %14s %14s  %s" % ("injury", "runs", "right worker", "right cause", "others blamed", "latest verdict", "causes given"))
for k in sorted(n, key=lambda k: (k == "none", k)):
    if k == "none":
        print("%-9s %5d %13s %12s %14d" % (k, n[k], "", "", others[k]))
    else:
        print("%-9s %5d %13d %12d %14d %14s  %s" % (k, n[k], worker[k], cause[k], others[k], "it %d" % when[k], ", ".join(f"{c} {m}" for (q, c), m in said.items() if q == k)))
hurt = sum(v for k, v in n.items() if k != "none")
print("%-9s %5d %13d %12d" % ("together", hurt, sum(worker.values()), sum(cause.values())))
P
