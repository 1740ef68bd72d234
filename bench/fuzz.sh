#!/usr/bin/env bash
# Feeds made-up bytes to every parser and prints a table: package, target, executions, time. Exits with 1 where one was wrong;
# the input is then in testdata/fuzz of its package.
#
#   bench/fuzz.sh      FUZZTIME=10000000x PACKAGES=./... TARGETS='^Fuzz' LANES=1
#
# FUZZTIME is for each: a time, or a number of executions. All targets with ten million executions each take hours. LANES targets run at a time and share the processors.
# A package that PACKAGES names and that has no target is an error.
# An input that reaches something new is made smaller in ten executions at most: go test would spend a minute on each large one, also after the end of FUZZTIME.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export time=${FUZZTIME:-10000000x} work
lanes=${LANES:-1}
export procs=$(($(getconf _NPROCESSORS_ONLN) / lanes)); [ "$procs" -gt 0 ] || procs=1

# one fuzzes a target: package, name.
one() {
	local pkg=$1 f=$2 begun=$SECONDS log n
	log=$work/${pkg//\//_}.$f
	# Go 1.26 and before sometimes take the end of a time for a failure (go.dev/issue/75804). Of a real one there is more to say than that, and an input.
	if ! go test -run '^$' -fuzz "^$f\$" -fuzztime "$time" -fuzzminimizetime 10x -parallel "$procs" "$pkg" >"$log" 2>&1 &&
		! { [[ $time != *x ]] && ! grep -q 'Failing input\|panic\|fatal error\|DATA RACE' "$log" &&
			[ "$(grep -A1 '^--- FAIL' "$log" | sed -n '2s/^ *//p')" = 'context deadline exceeded' ]; }; then
		: >"$work/bad"
		cat "$log" >&2
	fi
	n=$(sed -n 's/^fuzz: .* execs: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
	echo "${n:-0}" >>"$work/counts"
	printf '%-24s %-20s %14d %8ds\n' "$pkg" "$f" "${n:-0}" $((SECONDS - begun))
}
export -f one

printf '%-24s %-20s %14s %9s\n' package target executions time
# go test -list names the targets of a package, and then the package
names=()
while read -r word rest; do
	case $word in
	Fuzz*) names+=("$word") ;;
	ok)
		for f in ${names[@]+"${names[@]}"}; do printf '%s %s\n' "${rest%%[[:space:]]*}" "$f"; done
		names=()
		;;
	esac
done < <(go test -list "${TARGETS:-^Fuzz}" ${PACKAGES:-./...} | grep -v '^Test\|^Example\|^Benchmark') >"$work/all"
[ -s "$work/all" ] || { echo "no target" >&2; exit 1; }
if [[ ${PACKAGES:-./...} != *...* ]]; then # a package in the list has a target: a target that has moved is missed else
	comm -23 <(go list $PACKAGES | sort) <(cut -d' ' -f1 "$work/all" | sort -u) | sed 's/$/: no target/' >"$work/without"
	[ ! -s "$work/without" ] || { cat "$work/without" >&2; exit 1; }
fi
xargs -P "$lanes" -L 1 bash -c 'set -euo pipefail; one "$1" "$2"' one <"$work/all" || : >"$work/bad"
printf '%-24s %-20s %14d %8ds\n' all "$(wc -l <"$work/counts") targets" "$(awk '{ n += $1 } END { print n + 0 }' "$work/counts")" "$SECONDS"
[ ! -e "$work/bad" ]
