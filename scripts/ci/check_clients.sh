#!/bin/sh
# check_clients.sh PYTHON
# Run clients of the server as their users do, each in an environment of its own, against `PYTHON -m jaxgen.server.cli serve`.
# None of them may ask anything of a hub; some keep connections until their process ends; one brings plugins for pytest.
cd "$(dirname "$0")/../.." || exit 1
. scripts/ci/environment.sh
export HF_ENDPOINT=http://127.0.0.1:9 HF_HUB_DISABLE_TELEMETRY=1 JAXGEN_CACHE_DIR="$PWD/.venv-clients/cache"
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
status=0
for pins in scripts/ci/clients/*.txt; do
    name=$(basename "$pins" .txt)
    make_client_environment "$name" || exit 1
    ".venv-clients/$name/bin/python" -m pytest -q -p pytest_timeout -W ignore::ResourceWarning -m clients --durations=10 \
        --confcutdir=tests/clients "tests/clients/test_$name.py" --server-python "$1" || status=1
done
exit $status
