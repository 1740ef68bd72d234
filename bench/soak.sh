#!/usr/bin/env bash
# Real jobs that are broken while they train (star chaos), for as long as wanted. Prints a line for each job; exits with 1 where a promise was broken.
#
#   kills       a worker is killed about every 400 ms, in SSGD, where everybody waits for it: no update is further than 1 s from the one before
#   stop and go workers are stopped for 800 ms of each second: nobody is taken out of the job
#   seeds       all kinds of faults, a job for each seed
#
# Processes that live through a job of 20 s or longer say what they held in the second quarter of their lives and in the last: where memory (over 64 MiB: 5 %; below: 5 % and
# 4 MiB) or descriptors (8, for workers that come and go) have grown by more, it is broken too. Ten minutes: KILLS=3m STOPS=3m SEEDS="1 2" FOR=2m; steps by the machine.
#
#   bench/soak.sh      STAR=path/of/star KILLS=40s STOPS=60s SEEDS="1 2 3 4 5 6" FOR=20s STEPS=6000
set -euo pipefail
star=${STAR:-} kills=${KILLS:-40s} stops=${STOPS:-60s} for=${FOR:-20s} steps=${STEPS:-6000}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
if [ -z "$star" ]; then
	star=$work/star
	go build -C "$(dirname "$0")/.." -o "$star" ./cmd/star
fi
bad=0
run() { # name, flags
	local name=$1; shift
	rm -rf "$work/out"
	if ! "$star" chaos --json --progress off --log-level error --out "$work/out" "$@" >"$work/result" 2>"$work/log"; then
		bad=1
		tail -n 3 "$work/log" >&2
	fi
	/usr/bin/env python3 - "$name" "$work/result" "$work/out" <<'END' || bad=1
import collections, json, glob, os, sys
name, path, out = sys.argv[1:]
r = json.load(open(path))
faults = collections.Counter(f["kind"] for f in r["faults"] if f["done"])
left = back = 0
for log in glob.glob(os.path.join(out, "run*.jsonl")):
    trained = False
    for line in open(log):
        kind = line[9:20]
        trained = trained or kind.startswith('train"')
        left += kind.startswith('leave"')
        back += trained and kind.startswith('join"')
ok = all(v["ok"] for v in r["invariants"])
if name == "stop and go" and left:
    ok = False
held = []
for p in r.get("processes") or []:
    (m, n), (d, e) = p["memory_bytes"], p["descriptors"]
    if n > m * 1.05 + (4 << 20 if m < 64 << 20 else 0) or e > d + 8:
        ok = False
    if p["name"].startswith("ps") or n > m * 1.05 or e > d + 8:
        held.append(f"{p['name']} {m / 2**20:.1f} to {n / 2**20:.1f} MiB, {d} to {e} descriptors in {p['age_s']:.0f} s")
print(f"{name:12s} {'kept  ' if ok else 'BROKEN'}  {sum(faults.values()):3d} faults ({', '.join(f'{n} {k}' for k, n in faults.items())}), {left} left, {back} came back, "
      f"{r['updates']} updates in {r['lives']} lives, {r['wall_s']:.0f} s, longest gap {r['worst_stall_s']:.3f} s" + "".join("\n             " + h for h in held), flush=True)
sys.exit(not ok)
END
}
run kills --faults kill --every 400ms --for "$kills" --mode ssgd --slow 0:+5ms --steps "$((steps * 2))" --stall 1s
run "stop and go" --faults stop-and-go --every 3s --longest 10s --for "$stops" --mode asgd --steps "$((steps * 3))"
for seed in ${SEEDS:-1 2 3 4 5 6}; do
	run "seed $seed" --fault-seed "$seed" --every 700ms --for "$for" --steps "$steps"
done
exit $bad
