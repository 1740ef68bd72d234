#!/usr/bin/env bash
# Compares what must not change with what bench/freeze has recorded, and prints "no difference", or the differences, and exits with 1.
#
#   bench/freeze.sh             compare
#   bench/freeze.sh --record    record: read the diff of bench/freeze before it is committed
#
#   api.txt       the documentation of the public packages, with all exported names
#   help.txt      --help of every command, --help-all where there is one
#   settings.txt  every setting of every command, with its default
#   names.txt     exit codes, lines of the run log and their keys, metrics and their labels
#   json.txt      what commands print on fixed inputs, and how they end: keys and a hash where that is long
#   jobs.txt      hashes of the checkpoints of jobs of real processes, and of the result of a rehearsal of copies with takeovers
#   virtual.txt   hashes of the parameters of jobs in virtual time (TestReferenceJobs)
#   tests.txt     hashes of wire vectors and of recorded logs, which tests of their packages hold the code to
#
# Packages that move are the same packages: see moves. Hashes of parameters hold for processors with the same kernels, and are left out on others.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C GOFLAGS="${GOFLAGS:--trimpath}"
for v in $(compgen -e STAR_); do unset "$v"; done

# moves: what a package was called, and what it is called now, below the module's path.
moves='
checkpoint              train/checkpoint
cmd/internal/doctor     observe/doctor
cmd/internal/explain    observe/explain
cmd/internal/export     observe/export
cmd/internal/ports      internal/ports
cmd/internal/schedule   sched/service
cmd/internal/watch      observe/watch
cmd/internal/whatif     observe/whatif
compress                internal/compress
dtype                   internal/dtype
election                coord/election
engine                  coord/engine
exactsum                internal/exactsum
exitcode                internal/exitcode
flightrecorder          internal/flightrecorder
internal/combinations   job/combinations
internal/configure      worker/configure
internal/inject         worker/inject
internal/inventory      cluster/inventory
internal/options        job/options
internal/pilot          coord/pilot
internal/process        job/process
internal/schedsim       sched/schedsim
internal/tenant         job/tenant
launch                  worker/launch
member                  job
placement               cluster/placement
poison                  internal/poison
replica                 ps/replica
resource                cluster/resource
trace                   sim/trace
train/kernel            internal/kernel
unpack                  internal/unpack
vector                  internal/vector
web                     observe/web
'
public='worker worker/foreign worker/launch server job train train/data train/net train/optim train/traintest'

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$work/now
mkdir "$out" "$work/bin" "$work/inputs"

# plain writes packages by their new names. Columns that gofmt aligns are not compared.
while read -r old new; do
	[ -n "$old" ] || continue
	echo "s#\\bstar/$old\\b#star/$new#g"
	if [ "${old##*/}" != "${new##*/}" ]; then
		echo "s#\\b([Pp]ackage) ${old##*/}\\b#\\1 ${new##*/}#g; s#\\b${old##*/}\\.([A-Z])#${new##*/}.\\1#g"
	fi
done <<<"$moves" >"$work/moves.sed"
plain() { sed -E -f "$work/moves.sed" -e 's/[ \t]+/ /g; s/ $//' "$1"; }

# input NAME: a file of the repository, wherever it is.
input() { git ls-files | grep -E "(^|/)$1\$" || { echo "freeze: no file $1" >&2; exit 1; }; }

api() {
	local p old
	for p in $public; do
		if [ ! -d "$p" ]; then
			old=$(awk -v p="$p" '$2 == p { print $1 }' <<<"$moves")
			p=$old
		fi
		echo "== star/$p"
		go doc -all "./$p"
	done
}

# walk COMMAND…: its help, and that of the commands below.
walk() {
	local c
	echo "== $*"
	"$@" --help >"$work/help"
	cat "$work/help"
	if grep -q -e ' --help-all ' "$work/help"; then
		echo "== $* --help-all"
		"$@" --help-all
	fi
	for c in $(sed -n '/^Available Commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' "$work/help"); do
		[ "$c" = help ] || walk "$@" "$c"
	done
}

# Some commands want arguments before they say what their settings are.
settings() {
	local c args
	sed -nE 's/^== (star( [^-]*)?|star-[a-z]*)$/\1/p' "$out/help.txt" | while read -r c; do
		$c --help >"$work/help"
		grep -q -e ' --print-config ' "$work/help" || continue
		echo "== $c"
		for args in '' 'x' 'x x'; do
			if $c $args --print-config >"$work/said" 2>"$work/err"; then break; fi
		done
		grep -q '^SETTING' "$work/said" || { cat "$work/err" >&2; exit 1; }
		sed -E "s#$HOME#~#g; s/ +/ /g" "$work/said"
	done
}

# The pages are written by tests, or held to the code by them.
names() {
	local exits
	exits=$(go list ./... | grep '/exitcode$')
	echo "== exit codes"
	go doc -all "$exits" | sed -nE 's/^\t([A-Z][a-zA-Z]+) += ([0-9]+).*/\1 \2/p'
	echo "== run log"
	sed -n '/<!-- run log: begin/,/<!-- run log: end/p' docs/files.md | sed -nE 's/^(`[a-z]+`) .*/\1/p; s/^\| (`[^|`]*`)\?? \|.*/  \1/p'
	echo "== metrics"
	sed -nE 's/^\| (`star_[a-z_0-9]+`) \| ([^|]*) \|.*/\1 \2/p' docs/monitoring.md
}

# say COMMAND…: what it prints, and its exit code; of much, its keys and a hash. Times that were measured are left out.
say() {
	local code=0
	echo "\$ $*"
	(cd "$work/inputs" && "$@") >"$work/said" 2>"$work/err" || code=$?
	sed -E -i 's/"(wall_s|simulated_in_s|seconds|created)":("[^"]*"|[0-9.e+-]+)/"\1":0/g' "$work/said"
	[ "$code" = 0 ] || echo "exit $code"
	if [ "$(wc -c <"$work/said")" -lt 1500 ]; then
		cat "$work/said"
	else
		grep -oE '"[a-zA-Z_0-9]+":' "$work/said" | sort | uniq -c | awk '{ printf "%s%s ", $2, $1 }' || true
		sha256sum <"$work/said" | cut -c1-32
	fi
}

commands() {
	local i log
	for i in sched match place predictor sim whatif; do
		mkdir -p "$work/inputs/$i"
		(cd "$work/inputs/$i" && awk '/^-- .* --$/ { f = $2; if (split(f, dir, "/") > 1) system("mkdir -p " dir[1]); printf "" > f; next } f { print > f }') <"$(input "testdata/script/$i.txt")"
	done
	cp $(input 'runlog/testdata/ssgd.jsonl') $(input 'runlog/testdata/ring.jsonl') $(input 'runlog/testdata/queue.jsonl') $(input 'testdata/explain.jsonl.gz') bench/freeze/auto.jsonl.gz "$work/inputs"
	for log in ssgd.jsonl ring.jsonl queue.jsonl explain.jsonl.gz; do
		say star explain "$log" --json
		say star explain "$log"
		say star predictor verdicts --json "$log"
		say star place --describe "$log"
		say star export "$log" --csv "csv.$log" --perfetto "$log.trace.json"
		say sh -c "cat csv.$log/*.csv $log.trace.json"
	done
	say star sched scaling explain.jsonl.gz --json --most 4
	say star replay auto.jsonl.gz --json
	say star replay ssgd.jsonl --json
	say star report explain.jsonl.gz
	say star sim --from explain.jsonl.gz --mode ssgd,x=3,auto --even 2 --json
	say star sim --from whatif/steps.csv --mode ssgd --without 1 --noise-scale 128 --batch 64 --json
	say star sim --baseline all --seeds 1 --json sim/noisy.yaml
	say star sim --mode ssgd,x=3,asgd,auto --seeds 2 --regret --json sim/noisy.yaml
	say star sim --mode ssgd,asgd --seeds 1 --json sim/hosts.yaml
	say star sim --seeds 1 --json sim/ring.yaml
	say star plan --times 600ms,600ms,1200ms --compute 540ms,540ms,1140ms --batch 128 --noise-scale 480 --json
	say star plan --arch allreduce --times 600ms,600ms,1200ms --batch 128 --noise-scale 480 --json
	say star plan --times 600ms,600ms,600ms,1200ms --batch 128 --noise-scale 480 --capacity-cpu 3 --model-prior vgg16 --json
	say star match match/edges.txt --json
	say star match match/negative.txt --perfect --min-weight --json
	say star place place/cluster.yaml place/jobs.yaml --json
	say star place place/gpus.yaml place/heavy.yaml --json
	say star sched sim sched/jobs.csv --cluster n1g4 --policy srtf --json
	say star sched sim sched/jobs.csv --cluster n1g4 --policy fifo,sjf,srtf --jobs -
	say star sched sim sched/due.csv --cluster n1g4 --json
	say star sched sim sched/one.csv --cluster n1g4 --policy srtf --revoke trace:sched/losses.csv --events -
	say sh -c 'star sched gen --jobs 40 --seed 7 >gen.csv && cat gen.csv'
	say star sched sim gen.csv --cluster n2g8 --policy fifo,srtf,tiresias,themis --slot 60s --jobs -
	say star sched sim sched/elastic.csv --format elasticflow --throughputs sched/th --cluster sched/cluster.csv --policy edf,ef --slot 60s --jobs -
	say star sched estimate sched/times.log --epochs 100 --first .25 --truth 270 --json
	say star sched market forecast --samples 1000 --rates 1:10 --revoke rate:1000,notice=0s --json
	say star models --json
	say star datasets --json
	say star bench tta --model softmax --dataset digits:n=400,test=100 --scenarios one-3x --methods 'ssgd,asgd,ssgd queue=4,auto,dc-asgd' --optimizer dana --seeds 1 --search 1 \
		--rates 0.05 --rounds 10 --json
	say star bench scale --nothing
	say star explain nowhere.jsonl
	say star explain sim/noisy.yaml
	say star replay sched/jobs.csv
	say star sim sim/typo.yaml
	say star ctl status --coordinator 127.0.0.1:1 --timeout 1s
	say star run --mode quick
	say star-ps --rank x
	say star-worker --batch 0
}

# job NAME SETTINGS…: the hash of the checkpoint that a job of real processes ends with.
job() {
	local name=$1
	shift
	star run --progress off --log-level error --listen 127.0.0.1:0 --dataset digits:n=400,test=100 --workers 3 --model softmax --batch 8 --steps 40 --eval-every 0 --slow none \
		--out "$work/jobs/$name" "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
	echo "$name: $(cat "$work/jobs/$name"/checkpoints/*/shard-* | sha256sum | cut -c1-32)"
}

jobs() {
	local rule
	head -n 1 "$out/virtual.txt"
	for rule in sgd dana adam; do
		job "servers, $rule" --mode ssgd --shards 2 --optimizer $rule
		job "ring, $rule" --arch allreduce --shards 0 --optimizer $rule --lr 0.01
	done
	job 'servers, a tree' --mode 'tree=0(1,2)' --shards 2
	job 'servers, copies' --mode ssgd --shards 2 --replicas 2
	mkdir -p "$work/inputs"
	say star-chaos --simulate --seeds 200 --json
	say star-chaos --simulate --arch allreduce --seeds 50 --json
	star checkpoint ls "$work/jobs/servers, dana" --json | sed -E "s#$work##; s/\"created\":\"[^\"]*\"/\"created\":0/"
}

tests() {
	git ls-files '*/testdata/*' transport/wire | grep -E '/(barrier|shard|scheduler|ring|copies|takeover|live|runlog|transport)/(testdata/)?[^/]*\.(txt|jsonl)$|/testdata/.*\.(txt|jsonl)$' | grep -v /script/ |
		while read -r f; do echo "$(sed -E 's#^(.*/)?([^/]+/testdata/)#\2#' <<<"$f") $(sha256sum <"$f" | cut -c1-32)"; done | sort
}

go build -o "$work/bin/" ./cmd/...
PATH=$work/bin:$PATH
go test ./bench -run "^TestReferenceJobs$" -count 1 -reference "$out/virtual.txt" >"$work/log" || { cat "$work/log" >&2; exit 1; }
api >"$out/api.txt"
{ walk star; walk star-ps; walk star-worker; walk star-chaos; } >"$out/help.txt"
settings >"$out/settings.txt"
names >"$out/names.txt"
commands >"$out/json.txt"
jobs >"$out/jobs.txt"
tests >"$out/tests.txt"

if [ "${1:-}" = --record ]; then
	for f in "$out"/*.txt; do sed -E 's/[ \t]+$//' "$f" >"bench/freeze/${f##*/}"; done
	exit
fi
same=true
for f in "$out"/*.txt; do
	name=${f##*/}
	case $name in
	jobs.txt | virtual.txt)
		if [ "$(head -n 1 "$f")" != "$(head -n 1 "bench/freeze/$name")" ]; then
			echo "bench/freeze.sh: $name is not compared: it was recorded with $(head -n 1 "bench/freeze/$name"), this processor has $(head -n 1 "$f")" >&2
			continue
		fi
		;;
	esac
	diff -u --label "recorded/$name" --label "now/$name" <(plain "bench/freeze/$name") <(plain "$f") || same=false
done
$same && echo "no difference"
