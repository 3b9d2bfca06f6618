#!/bin/sh
# check_clients.sh PYTHON [more]
# Run clients of the server as their users do, in environments of their own, against a server that PYTHON runs.
# "more": clients that are too heavy for each run, and clients for node (20 or newer, with npm).
# None of them may ask anything of a hub; some keep connections until their process ends; one brings plugins for pytest.
cd "$(dirname "$0")/../.." || exit 1
. scripts/ci/environment.sh
export HF_ENDPOINT=http://127.0.0.1:9 HF_HUB_DISABLE_TELEMETRY=1 JAXGEN_CACHE_DIR="${TEST_CACHE_DIR:-$PWD/.venv-clients}/cache"
export LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_LOCAL_BLOG_POSTS=True OPENAI_AGENTS_DISABLE_TRACING=1
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
folder=scripts/ci/clients
[ "$2" = more ] && folder=$folder/more && { make_node_environment node || exit 1; }
[ "$2" = more ] || { make_kubectl && make_redis && make_nginx; } || exit 1
# Where npm does not answer, the tests of Anthropic's packages for node say so, and the others go on.
[ "$2" = more ] || make_node_environment anthropic_node || echo "$0: npm installs no packages here" >&2
status=0
for pins in "$folder"/*.txt; do
    name=$(basename "$pins" .txt)
    jaxgen=
    [ "$name" = ray ] && jaxgen=$1 # its processes import jaxgen
    make_client_environment "$name" "$pins" $jaxgen || exit 1
    ".venv-clients/$name/bin/python" -m pytest -q -p pytest_timeout -W ignore::ResourceWarning -m clients --durations=10 \
        --confcutdir=tests/clients tests/clients/test_"$name"*.py --server-python "$1" || status=1
done
exit $status
