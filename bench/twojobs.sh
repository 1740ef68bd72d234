#!/usr/bin/env bash
# Two jobs that share three hosts: how much slower does job a (SSGD) become when job b leaves SSGD?
#
# Hosts are network namespaces behind a switch, each with a link of RATE both ways (tc tbf) and CPU processors (quota of a control
# group). Both jobs train perceptrons with gradients that cost more to move than to compute; the slowest worker of b sleeps, so that its link is
# idle in SSGD and is not without it. SHARE percent of a link are declared as usable: beyond that queues delay all workers. Rows:
#
#   off        both servers on the first host, workers on the others in turn; no service is asked
#   admission  the same, but b asks the resource service (star cluster serve) before it leaves SSGD
#   both       processes are where star place puts them, and b asks
#
# Each run measures a's iterations while b runs SSGD by hand, then b is let go (star ctl mode auto), and once it has left SSGD or was refused,
# a's iterations again. The table has medians over REPEATS. Exit code 1 if a is not slowed by 20 % at least in row off, or by more than 5 % in
# row both, or if b does not leave SSGD in row off. Needs root, ip, tc, python3. Takes 50 s or so for each run.
#
#   bench/twojobs.sh [DIR]     STAR=path/of/star REPEATS=3 ROWS="off admission both" RATE=100mbit SHARE=60 CPU=0.65 SETTLE=8 PHASE=9
#                              RUN=what each run is started with KEEP=folder of run logs
#                              DIR gets the results (ROW-N.json); existing results are not measured again
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
star=${STAR:-} repeats=${REPEATS:-3} rows=${ROWS:-off admission both} rate=${RATE:-100mbit} cpu=${CPU:-0.65} phase=${PHASE:-9} share=${SHARE:-60} settle=${SETTLE:-8}

fail() { echo "bench/twojobs.sh: $*" >&2; exit 69; }
[ "$(id -u)" = 0 ] || fail "network namespaces and quotas need root"
for p in ip tc python3; do command -v $p >/dev/null || fail "needs $p"; done

# The jobs. Model, batch and sleeps are what decides how full the links are.
common=(--batch 8 --threads 1 --servers 1 --steps 100000000 --epochs 100000000 --eval-every 0 --dataset digits:n=2000,test=100 --http off --progress off --log-level warn --log-format json)
joba=(--job a --mode ssgd --model mlp:hidden=256 --workers 2 --slow 0:+200ms --slow 1:+200ms)
jobb=(--job b --mode auto --predictor none --model mlp:hidden=256 --workers 6 --slow 0:+40ms --slow 1:+40ms --slow 2:+40ms --slow 3:+40ms --slow 4:+40ms --slow 5:+800ms)

if [ "${1:-}" != --one ]; then
	dir=${1:-$(mktemp -d)}
	mkdir -p "$dir"
	if [ -z "$star" ]; then
		star=$dir/star
		go build -C "$here/.." -o "$star" ./cmd/star
	fi
	read -ra run <<<"${RUN:-}"
	for n in $(seq "$repeats"); do
		for row in $rows; do
			[ -s "$dir/$row-$n.json" ] && continue
			STAR=$star RATE=$rate CPU=$cpu PHASE=$phase SHARE=$share SETTLE=$settle KEEP=${KEEP:-} "${run[@]}" "$here/twojobs.sh" --one "$row" "$n" "$dir/$row-$n.json"
		done
	done
	exec python3 - "$dir" $rows <<'P'
import glob, json, statistics, sys
need = {"off": (20, None), "both": (None, 5)}
print("| row | job a before | job a after | slower by (median) | of each run | job b | what happened |")
print("|---|---|---|---|---|---|---|")
bad = []
for row in sys.argv[2:]:
    rs = [json.load(open(f)) for f in sorted(glob.glob(f"{sys.argv[1]}/{row}-*.json"))]
    med = lambda k: statistics.median(r[k] for r in rs)
    slower = statistics.median(r["slower_percent"] for r in rs)
    said = sorted({r["happened"] for r in rs})
    print("| %s | %.0f ms | %.0f ms | %+.1f %% | %s | %.0f → %.0f samples/s | %s |" % (
        row, med("a_before_ms"), med("a_after_ms"), slower, ", ".join("%+.1f" % r["slower_percent"] for r in rs),
        med("b_before_rate"), med("b_after_rate"), "; ".join(said)))
    low, high = need.get(row, (None, None))
    if low is not None and slower < low:
        bad.append(f"row {row}: job a is slowed by {slower:.1f} %, and not by {low} % at least: the test says nothing")
    if high is not None and slower > high:
        bad.append(f"row {row}: job a is slowed by {slower:.1f} %, more than {high} %")
    if row == "off" and any(r["b_mode"].startswith("ssgd") for r in rs):
        bad.append("row off: job b did not leave SSGD in every run")
print()
for b in bad:
    print(b, file=sys.stderr)
if not bad:
    print("held: at least 20 % without, at most 5 % with placement and admission")
sys.exit(1 if bad else 0)
P
fi

# One run.
row=$2 n=$3 result=$4
work=$(mktemp -d) tag=tj$$
export STAR_TOKEN=secret-of-the-test
if [ -d /sys/fs/cgroup/cpu ]; then groups=/sys/fs/cgroup/cpu/$tag version=1; else groups=/sys/fs/cgroup/$tag version=2; fi
pids=()
finish() {
	for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
	for _ in $(seq 50); do
		[ -z "$(cat "$groups"/h*/cgroup.procs 2>/dev/null)" ] && break
		sleep 0.1
	done
	for p in $(cat "$groups"/h*/cgroup.procs 2>/dev/null); do kill -9 "$p" 2>/dev/null || true; done
	for h in s h1 h2 h3; do ip netns del "$tag$h" 2>/dev/null || true; done
	sleep 0.2
	rmdir "$groups"/h* "$groups" 2>/dev/null || true
	if [ -n "${KEEP:-}" ]; then
		mkdir -p "$KEEP/$row-$n"
		cp "$work"/*.err "$work"/*.yaml "$work"/*.json "$KEEP/$row-$n" 2>/dev/null || true
		for j in a b; do cp "$work/$j/run.jsonl" "$KEEP/$row-$n/$j.jsonl" 2>/dev/null || true; done
	fi
	rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

ip netns add ${tag}s
ip -n ${tag}s link add br0 type bridge
ip -n ${tag}s addr add 10.83.0.254/24 dev br0
ip -n ${tag}s link set br0 up
ip -n ${tag}s link set lo up
mkdir -p "$groups"
[ $version = 1 ] || { echo +cpu >/sys/fs/cgroup/cgroup.subtree_control; echo +cpu >"$groups/cgroup.subtree_control"; }
for i in 1 2 3; do
	h=${tag}h$i
	ip netns add $h
	ip link add eth0 netns $h type veth peer name p$i netns ${tag}s
	ip -n $h addr add 10.83.0.$i/24 dev eth0
	ip -n $h link set lo up
	ip -n $h link set eth0 up
	ip -n ${tag}s link set p$i master br0
	ip -n ${tag}s link set p$i up
	ip netns exec $h tc qdisc add dev eth0 root tbf rate "$rate" burst 64kb latency 200ms
	ip netns exec ${tag}s tc qdisc add dev p$i root tbf rate "$rate" burst 64kb latency 200ms
	mkdir "$groups/h$i"
	quota=$(python3 -c 'import sys; print(int(1e5*float(sys.argv[1])))' "$cpu")
	if [ $version = 1 ]; then echo "$quota" >"$groups/h$i/cpu.cfs_quota_us"; else echo "$quota 100000" >"$groups/h$i/cpu.max"; fi
done

# on HOST NAME COMMAND…: a process on a host.
on() {
	local h=$1 name=$2
	shift 2
	(
		[ "$h" = s ] || echo $BASHPID >"$groups/$h/cgroup.procs"
		exec ip netns exec "$tag$h" "$@"
	) >>"$work/$name.out" 2>>"$work/$name.err" &
	pids+=($!)
}
# ctl JOB ARGUMENTS…
ctl() {
	local j=$1 addr=$aaddr
	shift
	[ "$j" = b ] && addr=$baddr
	ip netns exec ${tag}s "$star" ctl --job "$j" --coordinator "$addr" "$@"
}
until_() { # what, seconds, command…
	local what=$1 end=$((SECONDS + $2))
	shift 2
	until "$@" 2>/dev/null; do
		if [ $SECONDS -ge $end ]; then
			grep -h '"level":"\(ERROR\|WARN\)"\|^star' "$work"/*.err | grep -v 'straggler injection' | tail -5 >&2 || true
			fail "row $row, run $n: waited too long until $what"
		fi
		sleep 0.3
	done
}

net=$((${rate%mbit} * share / 100))Mbit/s
cat >"$work/cluster.yaml" <<END
hosts:
  - {name: h1, address: 10.83.0.1, cpu: $cpu, net: $net}
  - {name: h2, address: 10.83.0.2, cpu: $cpu, net: $net}
  - {name: h3, address: 10.83.0.3, cpu: $cpu, net: $net}
END
# What the jobs want without SSGD, from a run of row off.
cat >"$work/jobs.yaml" <<END
jobs:
  - name: a
    servers: {count: 1, cpu: 0.05, net: 3.1MB/s}
    workers: {count: 2, cpu: 0.05, net: 1.55MB/s}
  - name: b
    servers: {count: 1, cpu: 0.1, net: 7.2MB/s}
    workers: {count: 6, cpu: 0.05, net: 1.2MB/s}
END
declare -A at
if [ "$row" = both ]; then
	"$star" place "$work/cluster.yaml" "$work/jobs.yaml" --json >"$work/place.json"
	while read -r task host; do at[$task]=$host; done < <(python3 -c '
import json, sys
for x in json.load(open(sys.argv[1]))["assignments"]: print(x["job"] + "-" + x["task"].replace(" ", "-"), x["host"])' "$work/place.json")
else
	at=([a-ps-0]=h1 [b-ps-0]=h1 [a-worker-0]=h2 [a-worker-1]=h3 [b-worker-0]=h2 [b-worker-1]=h3 [b-worker-2]=h2 [b-worker-3]=h3 [b-worker-4]=h2 [b-worker-5]=h3)
fi
aaddr=10.83.0.${at[a-ps-0]#h}:7070 baddr=10.83.0.${at[b-ps-0]#h}:7080

if [ "$row" != off ]; then
	on s service "$star" cluster serve --cluster lab --listen 10.83.0.254:7072 --gossip off --hosts "$work/cluster.yaml" --log-format json
	common+=(--cluster lab@10.83.0.254:7072)
fi
on ${at[a-ps-0]} a-ps "$star" ps --listen :7070 --host-id ${at[a-ps-0]} --out "$work/a" "${common[@]}" "${joba[@]}"
on ${at[b-ps-0]} b-ps "$star" ps --listen :7080 --host-id ${at[b-ps-0]} --out "$work/b" "${common[@]}" "${jobb[@]}"
for r in 0 1; do on ${at[a-worker-$r]} a-w$r "$star" worker --rank $r --coordinator $aaddr --host-id ${at[a-worker-$r]} "${common[@]}" "${joba[@]}"; done
for r in 0 1 2 3 4 5; do on ${at[b-worker-$r]} b-w$r "$star" worker --rank $r --coordinator $baddr --host-id ${at[b-worker-$r]} "${common[@]}" "${jobb[@]}"; done

training() { ctl "$1" status --json | python3 -c 'import json, sys; s = json.load(sys.stdin); sys.exit(not (s["phase"] == "training" and s["version"] >= 1))'; }
until_ "job b trains" 40 training b
ctl b mode ssgd >/dev/null # by hand, until it is let go
until_ "job a trains" 40 training a
sleep "$settle"

mark() { # a file with the status of both jobs
	ctl a status --json >"$work/$1-a.json"
	ctl b status --json >"$work/$1-b.json"
}
mark 0; sleep "$phase"; mark 1
ctl b mode auto >/dev/null
gone() { ctl b status --json | python3 -c 'import json, sys; sys.exit(json.load(sys.stdin)["mode"].startswith("ssgd"))'; }
decided() { gone || grep -q '"type":"admission".*"granted":false' "$work/b/run.jsonl"; }
until_ "job b has left SSGD, or was refused" 40 decided
sleep 3
mark 2; sleep "$phase"; mark 3
if [ "$row" != off ]; then
	ip netns exec ${tag}s "$star" cluster status --cluster lab@10.83.0.254:7072 --json >"$work/cluster.json"
fi
ctl a stop >/dev/null
ctl b stop >/dev/null
ended() { ! kill -0 "${pids[@]}" 2>/dev/null; }
[ "$row" = off ] || kill "${pids[0]}"
until_ "all processes have ended" 20 ended || true
python3 - "$work" "$row" "$result" <<'P'
import json, sys
work, row, result = sys.argv[1:]
s = {(m, j): json.load(open(f"{work}/{m}-{j}.json")) for m in "0123" for j in "ab"}
def per(j, k, m, n): return (s[n, j][k] - s[m, j][k]) / (s[n, j]["elapsed_s"] - s[m, j]["elapsed_s"])
before, after = 1 / per("a", "version", "0", "1"), 1 / per("a", "version", "2", "3")
lines = [json.loads(l) for l in open(f"{work}/b/run.jsonl")]
adm = [l for l in lines if l["type"] == "admission"]
plans = [l for l in lines if l["type"] == "plan" and l["plan"] != "ssgd"]
mode = s["3", "b"]["mode"]
left = [l["plan"] for l in plans if not l["plan"].startswith("ssgd")]
happened = f"b runs {mode}" if not mode.startswith("ssgd") else f"b ran {left[-1]}, taken back" if left else "b stays in SSGD"
if adm:
    happened += ", %s: %s" % ("granted" if adm[-1]["granted"] else "no", adm[-1]["why"])
out = {"row": row, "a_before_ms": 1e3 * before, "a_after_ms": 1e3 * after, "slower_percent": 100 * (after / before - 1),
    "b_before_rate": per("b", "samples", "0", "1"), "b_after_rate": per("b", "samples", "2", "3"), "b_mode": mode, "happened": happened,
    "admissions": adm, "plans": plans}
try:
    c = json.load(open(f"{work}/cluster.json"))
    out["hosts"] = c["hosts"]
    out["jobs"] = [{k: j.get(k) for k in ("job", "state", "granted", "delay_s", "early", "for", "use", "extra")} for j in c["jobs"]]
except FileNotFoundError:
    pass
json.dump(out, open(result, "w"), indent=1)
print("%-9s %s: a %.0f -> %.0f ms (%+.1f %%), b %.0f -> %.0f samples/s; %s" % (row, result.rsplit("-", 1)[1][:-5], 1e3 * before, 1e3 * after,
    out["slower_percent"], out["b_before_rate"], out["b_after_rate"], happened), file=sys.stderr)
P
