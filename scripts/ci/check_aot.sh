#!/bin/sh
# check_aot.sh [--jax VERSION] [ARGUMENTS OF PYTEST]
# Compile the kernels and the whole step for GPUs that are not there, in an environment of its own: with the CUDA plugin
# in .venv every start on a CPU would print a traceback. One process for each GPU: after one, the code of another may
# compile that a fresh process refuses.
cd "$(dirname "$0")/../.." || exit 1
. scripts/ci/environment.sh
version=0.11.2
if [ "$1" = --jax ]; then
    version=$2
    shift 2
fi
make_aot_environment "$version" || exit 1
status=0
for target in h200 a100 b200 rtx5090; do
    JAX_PLATFORMS=cpu ".venv-aot-$version/bin/python" -m pytest -q --confcutdir=tests/aot tests/aot --target "$target" "$@" ||
        status=1
done
exit $status
