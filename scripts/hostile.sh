#!/usr/bin/env bash
# Runs the demo on the golden model, and a few tests, in environments that users have: no variables, other terminals, languages
# and homes, closed permissions, a user that is not root. They share one .venv. The demo's results must be the same in each.
set -euo pipefail
unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.."
"$BASH" scripts/setup.sh
tests=(tests/sim/host/test_smoke.py tests/scripts/test_progress.py
    tests/sim/compiler/test_program_cache.py::test_bar_is_shown_once_the_search_takes_long)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -m 777 "$work/home" "$work/home with spaces" "$work/other's home" "$work/results" "$work/scripts"
mkdir -m 555 "$work/read-only home"
chmod 755 "$work"

# Root becomes a user without a name. It may read all files where the system allows that: the project may be in root's home.
user=(env)
if [ "$(id -u)" = 0 ]; then
    for capabilities in "-all,+dac_read_search" "-all"; do
        user=(setpriv --reuid=65534 --regid=65534 --clear-groups "--inh-caps=$capabilities" "--ambient-caps=$capabilities")
        ! "${user[@]}" .venv/bin/python -c "import numpy, amaranth_tpu.hw" 2>/dev/null || break
        user=()
    done
fi

try() { # a title, and the words that start a command in the environment
    local title=$1 log="$work/$1.log"
    shift
    if { "$@" "$BASH" scripts/demo.sh --simulator golden --output "$work/results/$title.npy" &&
        "$@" "$BASH" scripts/test.sh -q -n 0 "${tests[@]}"; } >"$log" 2>&1; then
        echo "hostile: $title: right"
    else
        tail -n 40 "$log"
        echo "hostile: $title: FAILED"
        touch "$work/failed"
    fi
}

# Each environment has several properties, as a run takes seconds. The last two share what Python and the compiler make.
bare=(env -i PATH="$PATH")
{
    try "no variables" "${bare[@]}" HOME="$work/home"
    (umask 077 && try "umask 077, CDPATH, dumb terminal" "${bare[@]}" HOME="$work/home with spaces" CDPATH="$work" TERM=dumb)
    try "narrow terminal, C locale without colours" \
        "${bare[@]}" HOME="$work/home" TERM=xterm COLUMNS=40 LANG=C LC_ALL=C NO_COLOR=1
} &
if [ "${#user[@]}" = 0 ]; then
    echo "hostile: other user: not tried, it cannot read $PWD or the Python of .venv"
else
    try "other user with colours" "${user[@]}" "${bare[@]}" HOME="$work/other's home" TERM=xterm COLUMNS=40 FORCE_COLOR=1
    try "other user, read-only home" \
        "${user[@]}" "${bare[@]}" HOME="$work/read-only home" TPU_BUILD="$work/other's home/.cache/amaranth-tpu"
fi
wait
[ "$(sha256sum "$work"/results/*.npy | cut -d ' ' -f 1 | uniq | wc -l)" = 1 ] || { echo "hostile: results differ"; exit 1; }
[ ! -e "$work/failed" ]
