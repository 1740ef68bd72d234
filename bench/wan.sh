#!/usr/bin/env bash
# What modes take on slow links, in real processes: a server and four workers in network namespaces, each worker behind a link of its own of RATE in each
# direction (tc tbf), the fourth with three times the computing time of the others (they sleep, so that other programs on the machine count little).
#
#	bench/wan.sh [MODE …]        STAR=star RATE=20mbit SAMPLES=6400 STEP=50 MODEL=mlp:hidden=1024 SEEDS=1
#
# A CSV line for each mode and seed: mode, seed, seconds, accuracy, the modes that auto has taken. Needs root, ip and tc.
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
	tc -n "$tag"w$w qdisc add dev eth0 root tbf rate "$rate" burst 32kb latency 2s
	tc -n "$tag"s qdisc add dev p$w root tbf rate "$rate" burst 32kb latency 2s
done
export STAR_TOKEN=wan
common=(--http off --log-format json --dataset "digits:n=4000,test=500" --model "${MODEL:-mlp:hidden=1024}" --batch 16)
job() { # MODE SEED
	local dir=$out/$2-${1//[^a-z0-9]/-} slow=$step pids=()
	for w in 0 1 2 3; do
		[ $w = 3 ] && slow=$((3 * step))
		ip netns exec "$tag"w$w "$star" worker --rank $w --coordinator 10.81.0.1:7070 --slow "$w:+${slow}ms" --seed "$2" --out "$dir/w$w" "${common[@]}" >"$out/w$w.txt" 2>&1 &
		pids+=($!)
	done
	ip netns exec "$tag"s "$star" ps --rank 0 --listen 10.81.0.1:7070 --servers 1 --workers 4 --mode "$1" --seed "$2" --samples "${SAMPLES:-6400}" --optimizer momentum --lr 0.02 \
		--eval-every 1000000 --json --out "$dir" "${common[@]}" >"$out/result" 2>"$out/err" || { tail -5 "$out/err" "$out"/w*.txt >&2; exit 1; }
	wait "${pids[@]}"
	/usr/bin/env python3 -c '
import json, sys
r = json.load(open(sys.argv[3]))
modes = [json.loads(l) for l in open(sys.argv[4]) if "mode changed" in l]
print("%s,%s,%.1f,%.4f,%s" % (sys.argv[1], sys.argv[2], r["wall_s"], r["test_accuracy"], " then ".join(m["to"] for m in modes)))' "\"$1\"" "$2" "$out/result" "$out/err"
}
[ $# -gt 0 ] || set -- auto ssgd "ssgd local=16" "ssgd local=32 outer=nesterov(0.5,0.7)" "ssgd local=32 steps=speed outer=nesterov(0.5,0.7)"
echo "mode,seed,seconds,accuracy,changes"
for seed in $(seq "${SEEDS:-1}"); do
	for mode; do job "$mode" "$seed"; done
done
