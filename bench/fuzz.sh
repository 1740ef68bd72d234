#!/usr/bin/env bash
# Feeds made-up bytes to every parser, one after the other, and prints a table: package, target, executions, time. Exits with 1 where one was wrong;
# the input is then in testdata/fuzz of its package.
#
#   bench/fuzz.sh      FUZZTIME=10000000x PACKAGES=./... TARGETS='^Fuzz' TURN=
#
# FUZZTIME is for each: a time, or a number of executions. All targets with ten million executions each take hours. TURN is a number that grows, such as that of the commits: one
# target gets a minute, another one for each TURN.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp); trap 'rm -f "$log"' EXIT
bad=0 total=0 count=0

time_of() { if [ -n "${TURN:-}" ] && [ "$1" = $((TURN % $2)) ]; then echo 1m; else echo "${FUZZTIME:-10000000x}"; fi; }

# Go 1.26 and before sometimes take the end of a time for a failure (go.dev/issue/75804). Of a real one there is more to say than that, and an input.
just_over() {
	[[ $time != *x ]] && ! grep -q 'Failing input\|panic\|fatal error\|DATA RACE' "$log" &&
		[ "$(grep -A1 '^--- FAIL' "$log" | sed -n '2s/^ *//p')" = 'context deadline exceeded' ]
}
printf '%-24s %-20s %14s %9s\n' package target executions time
# go test -list names the targets of a package, and then the package
all=() names=()
while read -r word rest; do
	case $word in
	Fuzz*) names+=("$word") ;;
	ok)
		for f in ${names[@]+"${names[@]}"}; do all+=("${rest%%[[:space:]]*} $f"); done
		names=()
		;;
	esac
done < <(go test -list "${TARGETS:-^Fuzz}" ${PACKAGES:-./...} | grep -v '^Test\|^Example\|^Benchmark')
for target in ${all[@]+"${all[@]}"}; do
	pkg=${target% *} f=${target#* } time=$(time_of "$count" "${#all[@]}") begun=$SECONDS
	if ! go test -run '^$' -fuzz "^$f\$" -fuzztime "$time" "$pkg" >"$log" 2>&1 && ! just_over; then
		bad=1
		cat "$log" >&2
	fi
	n=$(sed -n 's/^fuzz: .* execs: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
	printf '%-24s %-20s %14d %8ds\n' "$pkg" "$f" "${n:-0}" $((SECONDS - begun))
	total=$((total + ${n:-0})) count=$((count + 1))
done
printf '%-24s %-20s %14d %8ds\n' all "$count targets" "$total" "$SECONDS"
[ "$count" -gt 0 ] || { echo "no target" >&2; exit 1; }
exit $bad
