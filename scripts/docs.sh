#!/usr/bin/env bash
# Builds the documentation site. Arguments are those of `python -m amaranth_tpu.scripts.docs`.
set -euo pipefail
unset CDPATH
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
"$BASH" "$here/scripts/setup.sh"
exec "$here/.venv/bin/python" -m amaranth_tpu.scripts.docs "$@"
