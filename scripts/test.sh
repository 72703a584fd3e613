#!/usr/bin/env bash
# Runs the tests. Arguments are those of pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
"$BASH" scripts/setup.sh
# By turns, so that tests that share a build are mostly run by one process.
exec .venv/bin/python -m pytest -n 2 --dist worksteal "$@"
