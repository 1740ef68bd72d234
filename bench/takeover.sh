#!/usr/bin/env bash
# Kills the process that coordinates a real job, again and again (star-chaos --coordinators 9: four of each job), until that was taken over often enough. Prints how long no update was
# made, from the last one of the coordinator before to the first one of the next, and whether every promise was kept; exits with 1 if one was not, or a pause is over 6 s.
#
#   bench/takeover.sh      CHAOS=path/of/star-chaos KILLS=50 MODE=asgd STEPS=12000 FAULT=coordinator
#
# FAULT=hand-over tells the process to leave instead. COORDINATORS=3 FOR=100s STEPS=90000 kills fewer at a time and more of a job: other processes get the places of those that were
# killed meanwhile.
set -euo pipefail
chaos=${CHAOS:-} kills=${KILLS:-50} mode=${MODE:-asgd} steps=${STEPS:-12000} fault=${FAULT:-coordinator} coordinators=${COORDINATORS:-9} long=${FOR:-14s}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
if [ -z "$chaos" ]; then
	chaos=$work/star-chaos
	go build -C "$(dirname "$0")/.." -o "$chaos" ./cmd/star-chaos
fi
seed=0 bad=0
: >"$work/pauses"
while [ "$(wc -l <"$work/pauses")" -lt "$kills" ]; do
	seed=$((seed + 1))
	rm -rf "$work/out"
	if ! "$chaos" --json --progress off --log-level error --out "$work/out" --coordinators "$coordinators" --faults "$fault" --fault-seed $seed \
		--every 3s --for "$long" --steps "$steps" --mode "$mode" --eval-every 0 >"$work/result" 2>"$work/log"; then
		bad=1
		tail -n 3 "$work/log" >&2
	fi
	/usr/bin/env python3 - "$work/result" "$work/pauses" $seed <<'END' || bad=1
import json, sys
r = json.load(open(sys.argv[1]))
with open(sys.argv[2], "a") as f:
    for p in r["takeovers_s"]:
        print(p, file=f)
broken = [v["name"] for v in r["invariants"] if not v["ok"]]
print(f"job {sys.argv[3]:>3s}  {'BROKEN: ' + ', '.join(broken) if broken else 'kept'}  {r['updates']} updates; pauses " + ", ".join(f"{p:.2f} s" for p in r["takeovers_s"]))
sys.exit(bool(broken))
END
	[ $seed -lt "$kills" ] || break
done
/usr/bin/env python3 - "$work/pauses" "$kills" <<'END' || bad=1
import sys
p = sorted(float(x) for x in open(sys.argv[1]))
print(f"{len(p)} coordinators were lost and succeeded: median {p[len(p)//2]:.2f} s, longest {p[-1]:.2f} s without an update")
sys.exit(p[-1] > 6 or len(p) < int(sys.argv[2]))
END
exit $bad
