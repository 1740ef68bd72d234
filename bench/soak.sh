#!/usr/bin/env bash
# Real jobs that are broken while they train (star-chaos), for as long as wanted. Prints a line for each job; exits with 1 where a promise was broken.
#
#   kills       a worker is killed about every 400 ms, in SSGD, where all workers wait for it: no update is further than 1 s from the one before
#   stop and go workers are stopped for 800 ms of each second: no worker is removed from the job
#   seeds       all kinds of faults, a job for each seed
#
#   long        with LONG: a job of that length, slowed down so that it takes little of the machine, with a fault about every 15 s, of all kinds but those that end its servers
#
# Memory, descriptors and goroutines must stay (docs/chaos.md, star-chaos), and the loss must go on falling: no twentieth of a job may have a mean loss that is half as much
# again, and 0.05 more, as that of the one before. Ten minutes: KILLS=3m STOPS=3m SEEDS="1 2" FOR=2m; steps by the machine. An hour: KILLS= STOPS= SEEDS= LONG=1h.
#
#   bench/soak.sh      CHAOS=path/of/star-chaos KILLS=40s STOPS=60s SEEDS="1 2 3 4 5 6" FOR=20s STEPS=6000 LONG= OUT=folder that keeps the run logs
set -euo pipefail
chaos=${CHAOS:-} kills=${KILLS-40s} stops=${STOPS-60s} for=${FOR:-20s} steps=${STEPS:-6000} long=${LONG:-}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
if [ -z "$chaos" ]; then
	chaos=$work/star-chaos
	go build -C "$(dirname "$0")/.." -o "$chaos" ./cmd/star-chaos
fi
bad=0
run() { # name, flags
	local name=$1; shift
	local out=$work/out
	if [ -n "${OUT:-}" ]; then out=$OUT/${name// /-}; fi
	rm -rf "$work/out"
	if ! "$chaos" --json --progress off --log-level error --out "$out" "$@" >"$work/result" 2>"$work/log"; then
		bad=1
		tail -n 3 "$work/log" >&2
	fi
	/usr/bin/env python3 - "$name" "$work/result" "$out" <<'END' || bad=1
import collections, json, glob, os, sys
name, path, out = sys.argv[1:]
r = json.load(open(path))
faults = collections.Counter(f["kind"] for f in r["faults"] if f["done"])
left = back = 0
losses = []
for log in glob.glob(os.path.join(out, "run*.jsonl")):
    trained = False
    for line in open(log):
        kind = line[9:20]
        trained = trained or kind.startswith('train"')
        left += kind.startswith('leave"')
        back += trained and kind.startswith('join"')
        if kind.startswith('record"'):
            losses += [x for x in [json.loads(line).get("loss")] if isinstance(x, float)]
ok = all(v["ok"] for v in r["invariants"])
if name == "stop and go" and left:
    ok = False
held = [f"broken: {v['name']}: {v['detail']}" for v in r["invariants"] if not v["ok"]]
n = len(losses) // 20
curve = [sum(losses[i * n:(i + 1) * n]) / n for i in range(20)] if n and r["lives"] == 1 else []
if any(b > 1.5 * a + 0.05 for a, b in zip(curve, curve[1:])) or curve and curve[-1] >= curve[0]:
    ok = False
    held.append("broken: the loss does not go on falling")
if curve:
    held.append("loss " + " ".join(f"{x:.3f}" for x in curve[::3] + curve[-1:]))
processes = r.get("processes") or []
eldest = max([p["age_s"] for p in processes], default=0)
for p in processes:
    (m, n), (d, e), (g, h) = p["memory_bytes"], p["descriptors"], p["goroutines"]
    if p["name"].startswith("ps") or p["age_s"] > eldest / 2:
        held.append(f"{p['name']} {m / 2**20:.1f} to {n / 2**20:.1f} MiB, {d} to {e} descriptors, {g} to {h} goroutines in {p['age_s']:.0f} s")
print(f"{name:12s} {'kept  ' if ok else 'BROKEN'}  {sum(faults.values()):3d} faults ({', '.join(f'{n} {k}' for k, n in faults.items())}), {left} left, {back} came back, "
      f"{r['updates']} updates in {r['lives']} lives, {r['wall_s']:.0f} s, longest gap {r['worst_stall_s']:.3f} s" + "".join("\n             " + h for h in held), flush=True)
sys.exit(not ok)
END
}
if [ -n "$kills" ]; then run kills --faults kill --every 400ms --for "$kills" --mode ssgd --slow 0:+5ms --steps "$((steps * 2))" --stall 1s; fi
if [ -n "$stops" ]; then run "stop and go" --faults stop-and-go --every 3s --longest 10s --for "$stops" --mode asgd --steps "$((steps * 3))"; fi
for seed in ${SEEDS-1 2 3 4 5 6}; do
	run "seed $seed" --fault-seed "$seed" --every 700ms --for "$for" --steps "$steps"
done
if [ -n "$long" ]; then
	seconds=$(python3 -c 'import re, sys; print(sum(int(n) * {"h": 3600, "m": 60, "s": 1}[u] for n, u in re.findall(r"([0-9]+)([hms])", sys.argv[1])))' "$long")
	run long --every 15s --for "$long" --steps "$((seconds * ${RATE:-9}))" --slow 0:+100ms,1:+100ms,2:+100ms --mode "${MODE:-auto}" --lr "${LR:-0.00001}" \
		--faults kill,term,pause,stop-and-go,cut,silence,slow-link,corrupt --min-workers 1 --dead-after 15s --checkpoint-every 10s --keep 5
fi
exit $bad
