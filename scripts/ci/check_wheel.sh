#!/bin/sh
# Build the wheel, install it into an environment of its own, and use its console script from another folder.
set -e
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
.venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work" .
.venv/bin/python -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint scripts/ci/constraints.txt "$work"/jaxgen-*.whl
cd "$work"
venv/bin/jaxgen serve --help >/dev/null
venv/bin/jaxgen convert-weights --help >/dev/null
# Of a project with packages of these names neither side must see the other's.
mkdir server weights
echo 'MINE = True' | tee server/__init__.py >weights/__init__.py
venv/bin/python -c 'import server, weights, jaxgen.server.app, sys; assert server.MINE and weights.MINE and "jax" not in sys.modules'
venv/bin/python -c '
from jaxgen import LLM, SamplingParams
prompt, few = [{"role": "user", "content": "hello"}], SamplingParams(max_tokens=4)
for template in (None, "chatml", "llama3", "plain"):
    print(LLM(chat_template=template).chat(prompt, few)[0])'
echo "wheel: ok"
