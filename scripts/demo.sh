#!/usr/bin/env bash
# Classifies handwritten digits on the simulated core. Arguments are those of `tpu run`. On processors that have it, the cells are
# native: several times as fast, with the same bits and cycles.
set -euo pipefail
unset CDPATH
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
"$BASH" "$here/scripts/setup.sh"
cells=()
case $(uname -m) in x86_64 | amd64 | aarch64 | arm64) cells=(--cells native) ;; esac
for word in "$@"; do
    case $word in --cells* | --simulator* | --board* | --explain | --operators | --help) cells=() ;; esac
done
if [ "${#cells[@]}" != 0 ]; then
    echo "demo: this machine's floating-point unit computes the cells' sums and products; --cells rtl simulates every gate" >&2
fi
exec "$here/.venv/bin/tpu" run "${cells[@]}" "$@"
