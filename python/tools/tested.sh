#!/usr/bin/env bash
# Runs the Python tests in a new virtual environment that has the wheel, installed without a network.
# With --system-site-packages PyTorch and pytest are the system's, else those of PyPI (TORCH: which, default "torch>=2.5"; TORCH_INDEX: another index for it).
# Exits with 77 where something is missing, and says what.
set -euo pipefail
cd "$(dirname "$0")/../.."
env=$(mktemp -d "${TMPDIR:-/tmp}/star-python-XXXXXX")
trap 'rm -rf "$env"' EXIT
python=${PYTHON:-/usr/bin/python3}
[ -x "$python" ] || python=$(command -v python3)
"$python" -m venv "$@" "$env/venv" >"$env/log" 2>&1 || { cat "$env/log"; echo "there is no venv of $python (Debian: python3-venv)"; exit 77; }
if [ "${1:-}" != --system-site-packages ]; then
	"$env/venv/bin/pip" install -q ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "${TORCH:-torch>=2.5}" && "$env/venv/bin/pip" install -q pytest || { echo "PyTorch cannot be had from PyPI"; exit 77; }
fi
for module in torch pytest; do
	"$env/venv/bin/python" -c "import $module" 2>"$env/log" || { tail -1 "$env/log"; echo "$python has no $module (Debian: python3-$module)"; exit 77; }
done
python3 python/tools/star_wheel.py --machine "$(uname -m)" --out "$env/dist"
"$env/venv/bin/pip" install -q --no-index --disable-pip-version-check "$env"/dist/*.whl
"$env/venv/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'
# shellcheck disable=SC2086
STAR_TEST_INSTALLED=1 "$env/venv/bin/python" -m pytest -q -p no:cacheprovider python/tests ${ARGS:-}
