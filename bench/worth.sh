#!/usr/bin/env bash
# Is star plan --worth right? Jobs of two workers that compute for 50 ms (they sleep, so that other programs on the machine count little), over a loopback
# of less or more bandwidth in a network namespace of their own, beside a job of one worker alone without a network.
#
#	bench/worth.sh [STAR]
#
# A CSV line for each bandwidth: Mbit/s, samples/s of the job, of the one alone, what star plan --worth says, what is so, and whether the job's log has the
# line "one worker alone would be as fast" where it should. Exits with 1 if one is not right. Needs root, ip and tc.
set -euo pipefail
star=${1:-star}
space=star-worth-$$ out=$(mktemp -d)
trap 'ip netns del "$space" 2>/dev/null || true; rm -rf "$out"' EXIT
ip netns add "$space"
ip netns exec "$space" ip link set lo up mtu 1500
wrong=0
# job NAME WORKERS STEPS SLOW: a job in the namespace, with its log at $out/NAME
job() {
	ip netns exec "$space" "$star" run --listen 127.0.0.1:7070 --http off --out "$out/$1" --model lenet --dataset digits:n=2000,test=100 --workers "$2" --batch 16 \
		--mode ssgd --steps "$3" --slow "$4" --eval-every 1000000 --progress off >"$out/$1.txt" 2>"$out/$1.err" || { cat "$out/$1.err"; exit 1; }
	sed -n 's|^trained.* (\([0-9]*\) samples/s).*|\1|p' "$out/$1.txt"
}
alone=$(job alone 1 60 0:+50ms)
echo "mbit_per_s,together,alone,says,is,logged"
for rate in 10 16 24 32 48 160 240 400 800 2000; do
	ip netns exec "$space" tc qdisc replace dev lo root tbf rate "${rate}mbit" burst 32kb latency 2s
	together=$(job "$rate" 2 60 0:+50ms,1:+50ms)
	ip netns exec "$space" tc qdisc del dev lo root
	says=$("$star" plan --worth "$out/$rate" --json | sed -n 's/.*"worth":\([a-z]*\).*/\1/p')
	is=$([ "$together" -gt "$alone" ] && echo true || echo false)
	logged=$(grep -q "one worker alone would be as fast" "$out/$rate.err" && echo true || echo false)
	echo "$rate,$together,$alone,$says,$is,$logged"
	{ [ "$says" = "$is" ] && [ "$logged" != "$is" ]; } || wrong=1
done
exit $wrong
