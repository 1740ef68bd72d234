#!/usr/bin/env bash
# Checks everything in Python with ruff and mypy, in a virtual environment that is kept. Exits with 77 where they cannot be had, and says so.
#
# The package and its tools are checked strictly, with the types of the system's PyTorch where it has one. Tests and scripts are checked with PyTorch
# unknown, as what its types are depends on its version: names of a module that pytest.importorskip returns are not looked up.
set -euo pipefail
cd "$(dirname "$0")/../.."
env=${TMPDIR:-/tmp}/star-lint tools=(ruff==0.17.6 mypy==2.4.1)
python=${PYTHON:-/usr/bin/python3}
[ -x "$python" ] || python=$(command -v python3) || { echo "there is no python3"; exit 77; }
export PIP_DISABLE_PIP_VERSION_CHECK=1
if [ "$(cat "$env/tools" 2>/dev/null)" != "${tools[*]}" ]; then
	rm -rf "$env"
	{ "$python" -m venv "$env" && "$env/bin/pip" install -q "${tools[@]}"; } || { echo "${tools[*]} cannot be had"; exit 77; }
	echo "${tools[*]}" >"$env/tools"
fi
"$env/bin/ruff" check --config python/pyproject.toml python bench examples
"$env/bin/ruff" format --check --config python/pyproject.toml python
known=(--ignore-missing-imports --allow-subclassing-any --no-warn-unused-ignores --no-warn-return-any)
"$python" -c 'import torch' 2>/dev/null && known=(--python-executable "$python")
(cd python && "$env/bin/mypy" "${known[@]}" star_train tools)
mypy() { "$env/bin/mypy" --config-file= --ignore-missing-imports "$@"; }
mypy --disable-error-code name-defined --disable-error-code func-returns-value --disable-error-code valid-type python/tests
mypy bench/*.py bench/peers/*.py
mypy examples/*/*.py
