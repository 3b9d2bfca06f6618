#!/bin/sh
# Build the wheel, install it into an environment of its own, and use its console script from another folder.
set -e
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export JAXGEN_CACHE_DIR="${TEST_CACHE_DIR:-$work}/cache"
.venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work" .
.venv/bin/python -m venv "$work/venv"
# What is imported is compiled then: that is the smaller part of it.
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --constraint scripts/ci/constraints.txt "$work"/jaxgen-*.whl
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
small = dict(max_model_len=512, token_budget=32, max_num_seqs=4, single_shape=True)
for template in (None, "chatml", "llama3", "plain"):
    print(LLM(chat_template=template, **small).chat(prompt, few)[0])'
venv/bin/python -c '
import threading, time, urllib.request, uvicorn
from starlette.applications import Starlette
from jaxgen.server.web_ui.site_routes import page_routes
routes = page_routes()
server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), port=0, log_level="error"))
thread = threading.Thread(target=server.run, daemon=True)
thread.start()
while not server.started: time.sleep(0.01)
address = "http://127.0.0.1:%d" % server.servers[0].sockets[0].getsockname()[1]
for path in ("/", "/docs", "/app.js", "/play/play.js", "/live/live.js", "/vendor/preact.js",
             "/vendor/highlight/core.js", "/vendor/Temml.woff2"):
    assert urllib.request.urlopen(address + path).status == 200, path
# A process that ends while its event loop runs may crash.
server.should_exit = True
thread.join()'
echo "wheel: ok"
