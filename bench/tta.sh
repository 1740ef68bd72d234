#!/usr/bin/env bash
# Time to accuracy with momentum on the scenarios that are held out: measures it, and with --write puts the tables between their marks in RESULTS.md.
#
#   bench/tta.sh [--write] DATA JOURNAL [SETTING OF star bench tta …]        STAR=path/of/star
#
# Finished runs are kept in JOURNAL, so that it can be made in several parts. COMMIT says what STAR was built from; without it that is the present commit.
set -euo pipefail
write=
[ "${1:-}" = --write ] && { write=1; shift; }
[ $# -ge 2 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 64; }
data=$1 journal=$2; shift 2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
star=${STAR:-}
if [ -z "$star" ]; then
	star=$work/star
	go build -C "$here/.." -o "$star" ./cmd/star
fi
settings=(--tasks mlp --momentum 0.9 --optimizer dana --arch ps --scenarios held --methods ssgd,auto,lb-bsp,lgc,sync-switch --seeds 20 "$@")
{
	printf '<!-- momentum: begin (written by bench/tta.sh --write) -->\n\nMeasured on %s at commit %s by\n\n```\nstar bench tta --data FOLDER %s --markdown\n```\n' \
		"$(date -u +%F)" "${COMMIT:-$(git -C "$here" rev-parse --short HEAD)}" "${settings[*]}"
	"$star" bench tta --data "$data" --out "$journal" "${settings[@]}" --markdown
	printf '\n<!-- momentum: end -->\n'
} >"$work/section.md"
cat "$work/section.md"
[ -n "$write" ] || exit 0
awk -v section="$work/section.md" '
	/^<!-- momentum: begin/ { while ((getline line < section) > 0) print line; skip = 1 }
	!skip { print }
	/^<!-- momentum: end/ { skip = 0 }' "$here/RESULTS.md" >"$work/results.md"
cp "$work/results.md" "$here/RESULTS.md"
