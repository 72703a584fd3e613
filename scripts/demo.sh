#!/usr/bin/env bash
# Classifies handwritten digits on the simulated core. Arguments are those of `tpu run`.
set -euo pipefail
unset CDPATH
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
"$BASH" "$here/scripts/setup.sh"
exec "$here/.venv/bin/tpu" run "$@"
