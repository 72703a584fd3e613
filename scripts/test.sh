#!/usr/bin/env bash
# Runs the tests. Arguments are those of pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
"$BASH" scripts/setup.sh
# One process more than processors, as some wait for a build or for time to pass.
processors=$(nproc 2>/dev/null || echo 2)
# By turns, so that tests that share a build are mostly run by one process.
exec .venv/bin/python -m pytest -n "$((processors < 8 ? processors + 1 : 8))" --dist worksteal "$@"
