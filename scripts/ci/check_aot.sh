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
compile_for() {
    target=$1
    shift
    JAX_PLATFORMS=cpu ".venv-aot-$version/bin/python" -m pytest -q --durations=10 --confcutdir=tests/aot tests/aot \
        --target "$target" "$@"
}

# Two at a time, of which the first has as much to do as all others. Its words come when it is done.
status=0
words=$(mktemp)
compile_for h200 "$@" >"$words" 2>&1 &
for target in a100 b200 rtx5090; do
    compile_for "$target" "$@" || status=1
done
wait $! || status=1
cat "$words"
rm "$words"
exit $status
