# Sourced by the other scripts, after they have changed to the repository root:
# make_environment EXTRA makes .venv, or brings it up to date, with the pinned dependencies of that extra ("" for none).
# make_aot_environment VERSION makes .venv-aot-VERSION, or again where the pins have changed, to compile for GPUs that are
# not there with that version of jax.
# make_client_environment NAME REQUIREMENTS [PYTHON] makes .venv-clients/NAME likewise, for clients of the server; with
# PYTHON it has that one's packages as well, after its own.
# make_node_environment NAME makes .venv-clients/NAME_packages, of npm's packages that tests/clients/NAME/ pins.
# make_browser installs Chromium by apt for the tests of the page, where there is none, on CI and as root alone.
# make_kubectl installs kubectl likewise, for the tests of docs/kubernetes/, make_redis a redis-server for KV tiers, and
# make_nginx a proxy.

find_python() {
    # VERSIONS CANDIDATES: a pyenv shim can be found and still fail, so each candidate is tried by running it.
    versions=$1
    shift
    for candidate in "$@"; do
        if [ -n "$candidate" ] && "$candidate" -c "import sys, venv, ensurepip; assert $versions" 2>/dev/null; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

create_venv() {
    directory=$1
    if python=$(find_python 'sys.version_info >= (3, 12)' "${JAXGEN_PYTHON:-}" python3 python3.14 python3.13 python3.12 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python3); then
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
    wanted=$(cat pyproject.toml scripts/ci/constraints.txt | cksum)
    # The environment of the tests serves as well.
    for stamp in .venv/.installed-test ".venv/.installed-${extra:-run}"; do
        if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && .venv/bin/python -c '' 2>/dev/null; then
            return 0
        fi
    done
    .venv/bin/python -c '' 2>/dev/null || { rm -rf .venv && create_venv .venv || return 1; }
    echo "installing jaxgen's dependencies into .venv (once) ..." >&2
    # The build has an environment of its own, whose tools are pinned by variables alone: the second since pip 25.3.
    PIP_CONSTRAINT="$PWD/scripts/ci/constraints.txt" PIP_BUILD_CONSTRAINT="$PWD/scripts/ci/constraints.txt" \
        .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --constraint scripts/ci/constraints.txt --editable ".${extra:+[$extra]}" >&2 || return 1
    printf '%s' "$wanted" >"$stamp"
}

make_aot_environment() {
    directory=.venv-aot-$1
    is_installed "$directory" scripts/ci/aot_constraints.txt && return 0
    create_venv "$directory" || return 1
    echo "installing the compiler for GPUs into $directory (once, 1.5 GB) ..." >&2
    JAX_VERSION=$1 install_exactly "$directory" scripts/ci/aot_constraints.txt
}

make_client_environment() {
    directory=.venv-clients/$1
    is_installed "$directory" "$2" && return 0
    if [ -n "${3:-}" ]; then
        "$3" -m venv --without-pip "$directory" || return 1
        "$3" -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
            >"$(echo "$directory"/lib/python3*/site-packages)/others.pth" || return 1
        echo "installing $1 into $directory (once) ..." >&2
        install_exactly "$directory" "$2"
        return
    fi
    # The wheel of torch for this one is small: that for others brings CUDA.
    if ! python=$(find_python 'sys.version_info[:2] == (3, 11)' python3.11 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.11*/bin/python3); then
        echo "$0: no Python 3.11 with venv found, which the clients are pinned for: install one (for example" \
            "'apt install python3.11 python3.11-venv' or 'pyenv install 3.11') and run this again" >&2
        return 1
    fi
    "$python" -m venv --without-pip "$directory" || return 1
    echo "installing $1 into $directory (once) ..." >&2
    install_exactly "$directory" "$2"
}

make_node_environment() {
    directory=.venv-clients/$1_packages
    wanted=$(cat tests/clients/"$1"/package*.json | cksum)
    [ "$(cat "$directory/.installed" 2>/dev/null)" = "$wanted" ] && return 0
    rm -rf "$directory"
    mkdir -p "$directory" && cp tests/clients/"$1"/package*.json "$directory" || return 1
    echo "installing clients into $directory (once) ..." >&2
    (cd "$directory" && timeout 300 npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) >&2 || return 1
    printf '%s' "$wanted" >"$directory/.installed"
}

is_installed() { # DIRECTORY REQUIREMENTS: whether it has what they pin; else it is removed
    [ "$(cat "$1/.installed" 2>/dev/null)" = "$(cksum <"$2")" ] && "$1/bin/python" -c '' 2>/dev/null && return 0
    rm -rf "$1"
    return 1
}

install_exactly() { # DIRECTORY REQUIREMENTS, which name everything; what is imported is compiled then, most never is
    # uv comes with the tests and takes a tenth of pip's seconds. It does not know pip's settings, by which a machine may have
    # a torch without CUDA: pip installs that, and what uv cannot.
    [ -x .venv/bin/uv ] && ! grep -q '^torch==' "$2" && sed "s/\${JAX_VERSION}/${JAX_VERSION:-}/" "$2" |
        .venv/bin/uv pip install --quiet --no-deps --python "$1/bin/python" --requirement - >&2 ||
        { "$1/bin/python" -m ensurepip >/dev/null &&
            "$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --requirement "$2" >&2; } || return 1
    cksum <"$2" >"$1/.installed"
}

make_browser() {
    for name in "${CHROMIUM:-}" chromium chromium-browser google-chrome; do
        [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 && return 0
    done
    install_by_apt Chromium chromium fonts-dejavu-core
}

make_kubectl() {
    command -v kubectl >/dev/null 2>&1 || install_by_apt kubectl kubernetes-client
}

make_nginx() {
    PATH=$PATH:/usr/sbin command -v nginx >/dev/null 2>&1 || install_by_apt nginx nginx-light
}

make_redis() {
    command -v redis-server >/dev/null 2>&1 || install_by_apt redis-server redis-server
}

install_by_apt() { # WHAT PACKAGES
    # Elsewhere the tests themselves say how: what is installed on somebody's machine is theirs to decide.
    [ "${CI:-}" = true ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 0
    echo "installing $1 by apt (once) ..." >&2
    shift
    apt-get -qq update >&2 && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends "$@" >&2
}
