#!/usr/bin/env bash
# What modes take on slow links, in real processes: a server and four workers in network namespaces, each worker behind a link of its own of RATE in each
# direction (tc tbf), the fourth with three times the computing time of the others (each step sleeps for STEP ms, so that other programs on the machine
# count little).
#
#	bench/wan.sh [MODE …]        STAR=star ARCH=ps RATE=20mbit SAMPLES=6400 STEP=50 MODEL=mlp:hidden=1024 BATCH=16 DATA=digits:n=4000,test=500 OPTIMIZER="momentum --lr 0.02" SEEDS=1 FALL= COMMAND=
#
# With ARCH=allreduce the workers are the members of a ring, and the server only its coordinator.
# With COMMAND each worker is that program (docs/python.md) instead of MODEL, DATA and OPTIMIZER.
# With FALL="20 60" the links are slow only from 20 s to 60 s after the job has begun, and have no limit before and after.
# A CSV line for each mode and seed: mode, seed, seconds, accuracy, loss, the modes that auto has taken; with FALL also after how many seconds, and updates,
# from the last change of the links. Needs root, ip and tc.
set -euo pipefail
star=${STAR:-star} rate=${RATE:-20mbit} step=${STEP:-50}
tag=wan$$ out=$(mktemp -d)
spaces=("$tag"s "$tag"w0 "$tag"w1 "$tag"w2 "$tag"w3)
trap 'for s in "${spaces[@]}"; do ip netns del "$s" 2>/dev/null || true; done; [ -n "${KEEP:-}" ] && cp -r "$out" "$KEEP"; rm -rf "$out"' EXIT
for s in "${spaces[@]}"; do ip netns add "$s"; ip -n "$s" link set lo up; done
ip -n "$tag"s link add br0 type bridge
ip -n "$tag"s addr add 10.81.0.1/24 dev br0
ip -n "$tag"s link set br0 up
for w in 0 1 2 3; do
	ip link add eth0 netns "$tag"w$w type veth peer name p$w netns "$tag"s
	ip -n "$tag"w$w addr add 10.81.0.1$w/24 dev eth0
	ip -n "$tag"w$w link set eth0 up
	ip -n "$tag"s link set p$w master br0 up
done
slow_links() {
	for w in 0 1 2 3; do
		tc -n "$tag"w$w qdisc replace dev eth0 root tbf rate "$rate" burst 32kb latency 2s
		tc -n "$tag"s qdisc replace dev p$w root tbf rate "$rate" burst 32kb latency 2s
	done
}
fast_links() {
	for w in 0 1 2 3; do
		tc -n "$tag"w$w qdisc del dev eth0 root
		tc -n "$tag"s qdisc del dev p$w root
	done
}
[ -n "${FALL:-}" ] || slow_links
# fall RUN_LOG: makes the links slow and fast again, and prints when, as times of the system.
fall() {
	local from to
	read -r from to <<<"$FALL"
	while ! grep -qs '"type":"train"' "$1"; do sleep 0.1; done
	sleep "$from" && slow_links && date +%s.%N
	sleep $((to - from)) && fast_links && date +%s.%N
}
export STAR_TOKEN=wan OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # as star run does for workers of one host
arch=${ARCH:-ps} common=(--http off --log-format json --arch "$arch") rule=() command=() servers=()
[ "$arch" = allreduce ] || servers=(--servers 1)
if [ -n "${COMMAND:-}" ]; then
	read -ra command <<<"-- $COMMAND"
else
	read -ra rule <<<"--optimizer ${OPTIMIZER:-momentum --lr 0.02}"
	[ "$arch" != allreduce ] || common+=("${rule[@]}") # members make the updates
	rule+=(--samples "${SAMPLES:-6400}")
	common+=(--dataset "${DATA:-digits:n=4000,test=500}" --model "${MODEL:-mlp:hidden=1024}" --batch "${BATCH:-16}")
fi
job() { # MODE SEED
	local dir=$out/$2-${1//[^a-z0-9]/-} slow=$step pids=()
	for w in 0 1 2 3; do
		[ $w = 3 ] && slow=$((3 * step))
		ip netns exec "$tag"w$w "$star" worker --rank $w --coordinator 10.81.0.1:7070 --slow "$w:+${slow}ms" --seed "$2" --out "$dir/w$w" "${common[@]}" "${command[@]}" >"$out/w$w.txt" 2>&1 &
		pids+=($!)
	done
	[ -z "${FALL:-}" ] || { fall "$dir/run.jsonl" >"$out/fall" & pids+=($!); }
	ip netns exec "$tag"s "$star" ps --rank 0 --listen 10.81.0.1:7070 "${servers[@]}" --workers 4 --join-timeout 5m --mode "$1" --seed "$2" "${rule[@]}" \
		--eval-every 1000000 --json --out "$dir" "${common[@]}" >"$out/result" 2>"$out/err" || { tail -n 5 "$out/err" "$out"/w*.txt >&2; exit 1; }
	wait "${pids[@]}"
	/usr/bin/env python3 -c '
import datetime, json, os, sys
mode, seed, result, log, fall = sys.argv[1:]
r = json.load(open(result))
lines = [json.loads(l) for l in open(log)]
begin = datetime.datetime.fromisoformat(lines[0]["time"][:26].rstrip("Z") + "+00:00").timestamp()
links = [float(l) - begin for l in open(fall)] if os.path.exists(fall) else []
plans, updates = [(l["t"], l["plan"]) for l in lines if l["type"] == "plan"], [l["t"] for l in lines if l["type"] == "fire"]
def since(t):
    at = max((a for a in links if a < t), default=None)
    return "" if at is None else " after %.1f s and %d updates" % (t - at, sum(at < u <= t for u in updates))
loss = r["test_loss"] if r.get("test_loss") is not None else float("nan")
print("%s,%s,%.1f,%.4f,%.4f,%s" % (mode, seed, r["wall_s"], r["test_accuracy"], loss, " then ".join(p + since(t) for t, p in plans)))' "\"$1\"" "$2" "$out/result" "$dir/run.jsonl" "$out/fall"
}
[ $# -gt 0 ] || set -- auto ssgd "ssgd local=16" "ssgd local=32 outer=nesterov(0.5,0.7)" "ssgd local=32 steps=speed outer=nesterov(0.5,0.7)"
echo "mode,seed,seconds,accuracy,loss,changes"
for seed in $(seq "${SEEDS:-1}"); do
	for mode; do job "$mode" "$seed"; done
done
