#!/usr/bin/env bash
# Measures all-reduce in turns with Open MPI and PyTorch's Gloo, and steps of training with Gloo, on this
# machine, and writes the results as Markdown. Installs nothing.
#
#	bench/allreduce.sh [--write] [DIR]
#
# DIR (a new one below /tmp if not given) gets the raw results as JSON, plots as SVG, and report.md. With --write the report also
# replaces the section in bench/RESULTS.md. What is in DIR already is not measured again, so that a run that was
# broken off goes on.
#
#	ROUNDS=5   turns of each side
#	RUN=       what each measurement is started with, such as "nice" or "taskset -c 0-3"
#	STAR=      a star that is built already
#	PYTHON=/usr/bin/python3   an interpreter with PyTorch
set -euo pipefail
cd "$(dirname "$0")/.."

write=
[ "${1:-}" = --write ] && { write=1; shift; }
dir=${1:-$(mktemp -d)}
mkdir -p "$dir"
rounds=${ROUNDS:-5} python=${PYTHON:-/usr/bin/python3}
read -ra run <<<"${RUN:-}"

missing=()
command -v cc >/dev/null || missing+=(gcc)
command -v mpicc >/dev/null || missing+=(libopenmpi-dev)
command -v mpirun >/dev/null || missing+=(openmpi-bin)
"$python" -c 'import torch.distributed as d; assert d.is_available()' 2>/dev/null || missing+=(python3-torch)
if [ "${#missing[@]}" -gt 0 ]; then
	echo "bench/allreduce.sh: missing: ${missing[*]} (names of Debian packages): apt-get install ${missing[*]}" >&2
	exit 69
fi

star=${STAR:-}
if [ -z "$star" ]; then
	star=$dir/star
	go build -o "$star" ./cmd/star
fi

cores=$(getconf _NPROCESSORS_ONLN)
setting() { cat "/proc/sys/net/$1" 2>/dev/null || echo unknown; }
[ -s "$dir/conditions.md" ] || cat >"$dir/conditions.md" <<END
Measured on $(date -u +%Y-%m-%d) by \`bench/allreduce.sh\`, $rounds turns of each side, at commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown).

- $cores processors: $(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -1); $(uname -sr); load before: $(cut -d' ' -f1-3 /proc/loadavg).
- The kernel's congestion control is $(setting ipv4/tcp_congestion_control) (available: $(setting ipv4/tcp_available_congestion_control)); all sides use cubic. Loopback.
- $(go version | cut -d' ' -f3), Open MPI $(mpirun --version | sed -n '1s/.* //p') (\`--mca pml ob1 --mca btl tcp,self\`; one host: its default), PyTorch $("$python" -c 'import torch; print(torch.__version__)') (Gloo, one thread).
- Every rank is a process; float32 sum. Where ranks exceed processors, all sides share them; \`--poll\` is measured for up to $cores ranks.
END

# measure FILE COMMAND…: a result that is not there yet.
measure() {
	local file=$dir/$1
	shift
	[ -s "$file" ] && return
	echo "== $file" >&2
	"${run[@]}" "$star" bench "$@" --json >"$file.part"
	mv "$file.part" "$file"
}

# join FILE PARTS…: one list of several.
join() {
	local file=$dir/$1
	shift
	"$python" -c 'import json, sys; json.dump([r for f in sys.argv[2:] for r in json.load(open(f))], open(sys.argv[1], "w"), indent=1)' "$file" "${@/#/$dir/}"
}

parts=()
for n in 2 4; do
	measure "allreduce-$n.json" allreduce --ranks $n --rounds "$rounds" --peers openmpi-tcp,openmpi-shm,gloo --python "$python" --plot "$dir/allreduce-$n.svg"
	parts+=("allreduce-$n.json")
done
join allreduce.json "${parts[@]}"

parts=()
for n in 2 4; do
	[ $n -le "$cores" ] || continue
	measure "poll-$n.json" allreduce --poll --ranks $n --rounds "$rounds" --sizes 4B,4KiB,64KiB,1MiB --peers openmpi-tcp,openmpi-shm
	parts+=("poll-$n.json")
done
[ "${#parts[@]}" -eq 0 ] || join poll.json "${parts[@]}"

measure crowd.json allreduce --ranks 4,8 --rounds "$rounds" --sizes 1MiB,16MiB
measure step-lenet.json step --arch allreduce --against gloo --rounds "$rounds" --python "$python" --models lenet
for n in 2 4; do
	measure "step-mlp25m-$n.json" step --arch allreduce --against gloo --rounds "$rounds" --python "$python" --models mlp25m --ranks $n
done
"$python" -c 'import json, sys; json.dump({"exchange": [r for f in sys.argv[2:] for r in json.load(open(f))["exchange"]]}, open(sys.argv[1], "w"), indent=1)' \
	"$dir/step.json" "$dir/step-lenet.json" "$dir/step-mlp25m-2.json" "$dir/step-mlp25m-4.json"

"$star" bench report "$dir" >"$dir/report.md"
echo "results: $dir/report.md" >&2
if [ -n "$write" ]; then
	awk -v report="$dir/report.md" '
		/<!-- all-reduce: end -->/ { skip = 0 }
		!skip { print }
		/<!-- all-reduce: begin/ { skip = 1; print ""; while ((getline line < report) > 0) print line; print "" }
	' bench/RESULTS.md >"$dir/RESULTS.md"
	grep -q 'all-reduce: end' "$dir/RESULTS.md"
	cp "$dir/RESULTS.md" bench/RESULTS.md
fi
