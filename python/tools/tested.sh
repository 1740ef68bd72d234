#!/usr/bin/env bash
# Runs the Python tests in a new virtual environment that has the wheel, installed without a network.
#
#	tested.sh system    PyTorch and pytest are the system's
#	tested.sh torch2    PyTorch, Lightning and transformers are PyPI's (TORCH: which, "torch>=2.5"; TORCH_INDEX: an index that has it, such as the one of builds for processors)
#	tested.sh jax       JAX is PyPI's, and only its tests run
#	tested.sh backend   PyTorch is PyPI's without the libraries of CUDA; only tests of backend="star", of workers of several processes and of their checkpoints run,
#	                    and PyTorch's own ones over star (SUITE: options of backend_suite.py, "--star-only")
#
# ARGS: more for pytest. SHORT: not empty: cases of modes that resemble others are left out. LIMIT: for how long each run of it may take (40m); behind that pytest is interrupted, and says what it was at. Exits with 77 where something is missing, and says what.
set -euo pipefail
cd "$(dirname "$0")/../.."
env=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$env"' EXIT
python=${PYTHON:-/usr/bin/python3}
[ -x "$python" ] || python=$(command -v python3) || { echo "there is no python3"; exit 77; }
options=() module=torch tests=python/tests packages=() more=()
case ${1:-} in
system) options=(--system-site-packages) ;;
torch2) packages=("${TORCH:-torch>=2.5}") more=("lightning>=2.6,<3" "transformers>=5.24,<6" "accelerate>=1.15,<2") ;;
jax) packages=(jax) module=jax tests=python/tests/test_jax.py ;;
backend) more=("${TORCH:-torch>=2.10}" numpy msgpack pytest expecttest "lightning>=2.6,<3" "transformers>=5.24,<6" "accelerate>=1.15,<2") tests="python/tests/test_backend*.py python/tests/test_replica*.py python/tests/test_dcp.py" ;;
*) echo "usage: tested.sh system|torch2|jax|backend"; exit 2 ;;
esac
"$python" -m venv "${options[@]}" "$env/venv" >"$env/log" 2>&1 || { cat "$env/log"; echo "there is no venv of $python (Debian: python3-venv)"; exit 77; }
export PIP_DISABLE_PIP_VERSION_CHECK=1
if [ "${#packages[@]}" -gt 0 ]; then
	{ timeout 15m "$env/venv/bin/pip" install -q ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "${packages[@]}" && timeout 15m "$env/venv/bin/pip" install -q pytest ${more[@]+"${more[@]}"}; } ||
		{ echo "${packages[*]} cannot be had from PyPI"; exit 77; }
fi
if [ "$1" = backend ]; then
	begin=$SECONDS
	timeout 15m "$env/venv/bin/python" python/tools/torch_for_cpu.py "${more[@]}" || { echo "PyTorch 2 cannot be had from PyPI, or not be used without CUDA"; exit 77; }
	echo "PyTorch was installed in $((SECONDS - begin)) s"
fi
for needed in "$module" pytest; do
	"$env/venv/bin/python" -c "import $needed" 2>"$env/log" || { tail -1 "$env/log"; echo "$python has no $needed (Debian: python3-$needed)"; exit 77; }
done
"$python" python/tools/star_wheel.py --machine "$(uname -m)" --out "$env/dist"
"$env/venv/bin/pip" install -q --no-index "$env"/dist/*.whl
"$env/venv/bin/python" -c "import $module; print('$module', $module.__version__)"
export STAR_TEST_INSTALLED=1
tests() { timeout --signal INT --kill-after 1m "${LIMIT:-40m}" "$env/venv/bin/python" -m pytest -v --durations 10 -p no:cacheprovider "$@"; }
suite=0
if [ "$1" = backend ]; then # PyTorch's own tests mostly wait: the others go on beside them
	"$env/venv/bin/python" python/tools/backend_suite.py ${SUITE---star-only} >"$env/suite" 2>&1 &
	suite=$!
fi
finish() {
	[ "$suite" = 0 ] && exit
	tail --lines +1 --follow --pid "$suite" "$env/suite"
	wait "$suite"
	exit
}
# shellcheck disable=SC2086
tests $tests ${ARGS:-} | tee "$env/log" && finish
# What failed runs a second time, alone: a test can fail because the machine is busy.
mapfile -t failed < <(sed -nE 's/ - .*//; s/^(FAILED|ERROR) //p' "$env/log")
[ "${#failed[@]}" -gt 0 ] || exit 1
echo "second try of what failed: ${failed[*]}"
[ -z "${SECOND_CHANCES:-}" ] || echo "${failed[*]}" >>"$SECOND_CHANCES"
LIMIT=10m tests "${failed[@]}"
finish
