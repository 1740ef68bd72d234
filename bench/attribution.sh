#!/usr/bin/env bash
# Does STAR name the right worker and the right cause, once, and no worker where none is slow? Real jobs of four workers and two servers. One worker of each is
# injured on purpose, another one in each job, every other job with two busy loops beside it:
#
#   data     its loader is 60 ms late, from the beginning to the end
#   add      it computes 60 ms longer (it sleeps), from the beginning to the end
#   quota    its control group gets 2 ms of a processor in each 50 ms for a while  (root, control groups of version 1)
#   contention it shares a control group, which gets as much as one thread, with twenty busy loops for a while: each gets less than the worker needs  (root, control groups of version 1)
#   stop     it is stopped for 150 of each 300 ms for a while
#   link     it is on a host of its own, with a link of 20 Mbit/s for a while; out in every other pair of jobs, in in the others  (root, namespaces, tc)
#   none     no worker is injured
#   demo     as star run starts it: no FLOOR, short iterations, the last worker 3x slower from the beginning to the end
#   demoquota  the same, with a tenth of a processor for a while instead  (root)
#   demonone the same, no worker injured
#
# "A while" begins CALM seconds after the training and lasts HURT seconds; the job goes on for as long as CALM again. A job counts:
#   worker    the first worker that the detector names while the injury lasts is the injured one
#   cause     what it says of that one at last while the injury lasts
#   episodes  verdicts "slow", of whomever, in the whole job: 1 is right
#
# Each worker but those of demo sleeps FLOOR in an iteration, as one that waits for its accelerator: four that compute all the time on fewer processors are
# slow by turns.
#
# PYTHON=/usr/bin/python3 has workers that are scripts of PyTorch (attribution.py), without the kinds demo…: data is then in __getitem__, add really computes,
# quota and contention get agent and script, and of a worker that is stopped the agent goes on.
#
#   bench/attribution.sh      STAR=path/of/star RUNS=10 (of each kind) CLEAN=20 KINDS="data add quota contention stop link none demo demoquota demonone" FROM=1
#                             PYTHON= FLOOR=70ms CALM=3 HURT=6
#                             KEEP=folder of run logs, to which a later call with another FROM or other KINDS adds; the table is of all in it. KINDS=" ": the table only
set -euo pipefail
star=${STAR:-} python=${PYTHON:-} runs=${RUNS:-10} clean=${CLEAN:-20} from=${FROM:-1} floor=${FLOOR:-70ms} calm=${CALM:-3} hurt=${HURT:-6}
work=$(mktemp -d) tag=sa$$ busy=() pids=() group=/sys/fs/cgroup/cpu/$(printf sa%d $$)
root=$([ "$(id -u)" = 0 ] && echo yes || true)
release() { # everything that an injury holds
	[ ${#busy[@]} = 0 ] || kill "${busy[@]}" 2>/dev/null || true
	busy=()
	for n in "${tag}a" "${tag}b"; do ip netns exec "$n" tc qdisc del dev eth0 root 2>/dev/null || true; done
}
finish() {
	release
	for p in $(jobs -p); do kill -CONT "$p" 2>/dev/null || true; kill "$p" 2>/dev/null || true; done
	wait 2>/dev/null || true
	for n in "${tag}a" "${tag}b"; do ip netns del "$n" 2>/dev/null || true; done
	rmdir "$group" 2>/dev/null || true
	rm -rf "$work"
}
trap finish EXIT
here=$(cd "$(dirname "$0")" && pwd)
keep=${KEEP:-$work/keep}
mkdir -p "$keep"
if [ -z "$star" ]; then
	star=$work/star
	go build -C "$here/.." -o "$star" ./cmd/star
fi
[ -w /sys/fs/cgroup/cpu/cgroup.procs ] && groups=yes || groups= # version 1
kinds=data\ add\ ${groups:+quota contention }stop\ ${root:+link }none
[ -n "$python" ] || kinds+=" demo ${groups:+demoquota} demonone"
kinds=${KINDS:-$kinds}

# cable makes two hosts with a cable between them: 10.79.0.1 and 10.79.0.2.
cable() {
	ip netns list | grep -q "^${tag}a" && return
	ip netns add "${tag}a"; ip netns add "${tag}b"
	ip link add eth0 netns "${tag}a" type veth peer name eth0 netns "${tag}b"
	ip -n "${tag}a" addr add 10.79.0.1/24 dev eth0; ip -n "${tag}b" addr add 10.79.0.2/24 dev eth0
	for n in "${tag}a" "${tag}b"; do ip -n "$n" link set lo up; ip -n "$n" link set eth0 up; done
}
loops() { # how many, with which command before them
	local n=$1; shift
	for _ in $(seq "$n"); do "$@" sh -c 'while :; do :; done' & busy+=($!); done
}

# job runs one: kind, load (quiet or busy), worker, seed.
job() {
	local kind=$1 load=$2 w=$3 seed=$4 name=$1 on=() host=127.0.0.1 port=$((20000 + RANDOM % 10000)) long= hurts=
	local all=(--mode ssgd --workers 4 --join-timeout 5m --epochs 100000 --log-level error --token secret --http off --progress off --seed "$seed" --servers 2 --out "$work/out")
	[ -n "$python" ] || all+=(--model lenet --batch 128 --threads 1 --dataset digits:n=4000,test=100)
	case $kind in
	demo*) all=(--mode auto --model lenet --workers 4 --epochs 100000 --dataset digits --log-level error --token secret --http off --progress off --seed "$seed" --servers 2 --out "$work/out") ;;
	*) [ -n "$python" ] || for r in 0 1 2 3; do all+=(--slow "$r:+$floor"); done ;;
	esac
	case ${python:+py-}$kind in
	py-data | py-add) long=yes ;;
	data) all+=(--slow "$w:data=60ms"); long=yes ;;
	add) all+=(--slow "$w:+60ms"); long=yes ;;
	demo) all+=(--slow "$w:3x"); long=yes ;;
	link | py-link) cable; host=10.79.0.1; name=$([ $((seed / 2 % 2)) = 0 ] && echo link-out || echo link-in) ;;
	quota | contention | stop | none | demoquota | demonone | py-quota | py-contention | py-stop | py-none) ;;
	*) echo "KINDS: unknown kind $kind; want data, add, quota, contention, stop, link, none, demo, demoquota, demonone" >&2; return 2 ;;
	esac
	rm -rf "$work/out"
	all+=(--coordinator "$host:$port")
	[ "$load" = quiet ] || loops 2
	[ "$kind" != link ] || on=(ip netns exec "${tag}a")
	pids=()
	for s in 0 1; do
		"${on[@]}" "$star" ps --rank $s --listen "$host:$((port + s))" "${all[@]}" >/dev/null 2>>"$work/err" & pids+=($!)
	done
	for r in 0 1 2 3; do
		[ "$kind" != link ] || on=(ip netns exec "$([ $r = "$w" ] && echo "${tag}b" || echo "${tag}a")")
		hurts=$([ $r != "$w" ] || echo "$kind")
		FLOOR=$(awk "BEGIN { print ${floor%ms} / 1000 }") HURT=$hurts OMP_NUM_THREADS=1 PYTHONPATH=$here/../python \
			"${on[@]}" "$star" worker --rank $r "${all[@]}" ${python:+-- "$python" "$here/attribution.py"} >/dev/null 2>>"$work/err" & pids+=($!)
	done
	for _ in $(seq 3000); do
		[ "$(grep -c '"record"' "$work/out/run.jsonl" 2>/dev/null || true)" -ge 8 ] 2>/dev/null && break
		sleep 0.1
	done
	local agent=${pids[$((2 + w))]} began=0 ended=1e18
	sleep "$calm"
	if [ -z "$long" ]; then
		began=$(date +%s.%N)
		injure "$kind" "$agent" "$seed" ${python:+$(pgrep -P "$agent")}
		ended=$(date +%s.%N)
		sleep "$calm"
	else
		sleep "$hurt"
	fi
	[ "$kind" = link ] && on=(ip netns exec "${tag}a") || on=()
	"${on[@]}" "$star" ctl stop --coordinator "$host:$port" --token secret --timeout 20s >/dev/null 2>>"$work/err" || { cat "$work/err" >&2; return 1; }
	for p in "${pids[@]}"; do wait "$p" || { cat "$work/err" >&2; return 1; }; done
	rmdir "$group" 2>/dev/null || true
	release
	mv "$work/out/run.jsonl" "$keep/$name-$load-$w-$seed.jsonl"
	echo "$began $ended" >"$keep/$name-$load-$w-$seed.span"
}

# injure does to the worker of process $2, and of its script $4 if it has one, what kind $1 says, for HURT seconds.
injure() {
	local until=$((SECONDS + hurt)) n script=${4:-}
	case $1 in
	quota | demoquota)
		[ "$1" = quota ] && set -- "$1" "$2" 50000 2000 || set -- "$1" "$2" 100000 10000
		mkdir -p "$group"; echo "$3" >"$group/cpu.cfs_period_us"; echo "$4" >"$group/cpu.cfs_quota_us"
		for p in "$2" $script; do echo "$p" >"$group/cgroup.procs"; done
		sleep "$hurt"
		echo -1 >"$group/cpu.cfs_quota_us" ;;
	contention)
		mkdir -p "$group"
		n=${#busy[@]}
		loops 20
		for p in "$2" $script "${busy[@]:$n}"; do echo "$p" >"$group/cgroup.procs"; done
		sleep "$hurt"
		kill "${busy[@]:$n}"; busy=("${busy[@]:0:$n}")
		for p in "$2" $script; do echo "$p" >"${group%/*}/cgroup.procs"; done ;;
	stop)
		while [ $SECONDS -lt $until ]; do kill -STOP "${script:-$2}"; sleep 0.15; kill -CONT "${script:-$2}"; sleep 0.15; done ;;
	link)
		n=$([ $(($3 / 2 % 2)) = 0 ] && echo "${tag}b" || echo "${tag}a")
		ip netns exec "$n" tc qdisc add dev eth0 root tbf rate 20mbit burst 25kb latency 400ms
		sleep "$hurt"
		ip netns exec "$n" tc qdisc del dev eth0 root ;;
	*) sleep "$hurt" ;;
	esac
}

for k in $kinds; do
	n=$runs; [ "$k" = none ] && n=$clean
	for s in $(seq "$from" $((from + n - 1))); do
		w=$((s % 4)); case $k in demo*) w=3 ;; esac
		job "$k" "$([ $((s % 2)) = 0 ] && echo busy || echo quiet)" "$w" "$s" || echo "$k $s: the job failed, and does not count" >&2
		release
	done
done
for f in "$keep"/*.jsonl; do "$star" predictor verdicts --json "$f" >"$work/$(basename "$f" .jsonl).json"; done
/usr/bin/env python3 - "$work" "$keep" "${VERBOSE:-}" <<'P'
import collections, datetime, glob, json, os, sys
work, keep, verbose = sys.argv[1:4]
right = {"data": "data", "stop": "pauses", "add": "compute", "quota": "quota", "link-out": "network-out", "link-in": "network-in", "contention": "contention", "demo": "compute", "demoquota": "quota"}
C = collections.Counter
n, worker, cause, episodes, turns, others, when, said = C(), C(), C(), C(), C(), C(), collections.defaultdict(list), C()
for f in sorted(glob.glob(work + "/*-*-*.json")):
    name = os.path.basename(f)[:-5]
    kind, load, rank, seed = name.rsplit("-", 3)
    rank, key = int(rank), (kind, load)
    at = {}
    for line in open(f"{keep}/{name}.jsonl"):
        e = json.loads(line)
        if e["type"] == "start":
            t0 = datetime.datetime.fromisoformat(e["time"][:26].rstrip("Z") + "+00:00").timestamp()
        if e["type"] == "record":
            at[e["worker"], e["step"]] = e["t"]
    on, off = (float(x) - t0 for x in open(f"{keep}/{name}.span").read().split())
    vs = [dict(v, t=at.get((v["worker"], v["step"]), 0)) for v in json.load(open(f)) if v["event"] in ("slow", "changed", "recovered")]
    slow = [v for v in vs if v["event"] == "slow"]
    n[key] += 1
    episodes[key] += len(slow)
    turns[key] += sum(v["event"] == "changed" for v in vs)
    good = kind not in right and not slow
    if kind in right:
        during = [v for v in slow if on <= v["t"] <= off]
        hit = bool(during) and during[0]["worker"] == rank
        worker[key] += hit
        others[key] += any(v["worker"] != rank for v in slow)
        mine = [v for v in vs if v["worker"] == rank and on <= v["t"] <= off and v["event"] != "recovered"]
        if mine:
            said[key, mine[-1]["cause"]] += 1
            cause[key] += mine[-1]["cause"] == right[kind]
            when[key].append(mine[0]["t"] - max(on, min(at.values())))
            good = hit and mine[-1]["cause"] == right[kind] and len(slow) == 1
    else:
        others[key] += bool(slow)
    if verbose and not good:
        print(f"{name}: worker {rank}, from {on:.1f} to {off:.1f} s")
        for v in vs:
            print(f"   {v['t']:6.1f} s  {v['text']}")
print("%-20s %5s %7s %7s %9s %8s %8s %8s  %s" % ("injury", "jobs", "worker", "cause", "episodes", "changes", "others", "named", "causes given"))
def row(name, keys, extra=""):
    ts = sorted(t for k in keys for t in when[k])
    s = lambda c: sum(c[k] for k in keys)
    hurt = any(k[0] in right for k in keys)
    print("%-20s %5d %7s %7s %9d %8d %8d %8s  %s" % (name, s(n), s(worker) if hurt else "", s(cause) if hurt else "", s(episodes), s(turns), s(others), "%.1f s" % ts[len(ts) // 2] if ts else "", extra))
demo = lambda k: k[0].startswith("demo")
for k in sorted(n, key=lambda k: (demo(k), k[0] not in right, k)):
    row(" ".join(k), [k], ", ".join(f"{c} {m}" for (q, c), m in sorted(said.items()) if q == k))
for load in "quiet", "busy":
    if keys := [k for k in n if k[0] in right and not demo(k) and k[1] == load]:
        row("injured, " + load, keys)
row("injured", [k for k in n if k[0] in right and not demo(k)])
row("not injured", [k for k in n if k[0] == "none"])
P
