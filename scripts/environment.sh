# Sourced by the other scripts, after they have changed to the repository root:
# make_environment EXTRA makes .venv, or brings it up to date, with the pinned dependencies of that extra ("" for none).
# make_aot_environment VERSION makes .venv-aot-VERSION, or anew where the pins have changed, to compile for GPUs that are
# not there with that version of jax.

find_python() {
    # A pyenv shim can be found and still fail, so each candidate is tried by running it.
    for candidate in "${JAXGEN_PYTHON:-}" python3 python3.14 python3.13 python3.12 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python3; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys, venv; assert sys.version_info >= (3, 12)' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

create_venv() {
    directory=$1
    if python=$(find_python); then
        "$python" -m venv "$directory"
    elif command -v uv >/dev/null 2>&1; then
        uv venv --quiet --seed --python '>=3.12' "$directory"
    else
        echo "$0: no Python 3.12 or newer found: install one (for example 'apt install python3.12 python3.12-venv'," \
            "'pyenv install 3.12' or 'uv python install 3.12') and run this again" >&2
        return 1
    fi
}

make_environment() {
    extra=$1
    wanted=$(cat pyproject.toml scripts/constraints.txt | cksum)
    # The environment of the tests serves as well.
    for stamp in .venv/.installed-test ".venv/.installed-${extra:-run}"; do
        if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && .venv/bin/python -c '' 2>/dev/null; then
            return 0
        fi
    done
    .venv/bin/python -c '' 2>/dev/null || { rm -rf .venv && create_venv .venv || return 1; }
    echo "installing jaxgen's dependencies into .venv (once) ..." >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --constraint scripts/constraints.txt --editable ".${extra:+[$extra]}" >&2 || return 1
    printf '%s' "$wanted" >"$stamp"
}

make_aot_environment() {
    directory=.venv-aot-$1
    wanted=$(cksum <scripts/aot_constraints.txt)
    if [ "$(cat "$directory/.installed" 2>/dev/null)" = "$wanted" ] && "$directory/bin/python" -c '' 2>/dev/null; then
        return 0
    fi
    rm -rf "$directory"
    create_venv "$directory" || return 1
    echo "installing the compiler for GPUs into $directory (once, 1.5 GB) ..." >&2
    JAX_VERSION=$1 "$directory/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        --requirement scripts/aot_constraints.txt >&2 || return 1
    printf '%s' "$wanted" >"$directory/.installed"
}
