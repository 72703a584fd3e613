#!/usr/bin/env bash
# Runs the tests. Arguments are those of pytest.
set -euo pipefail
unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.."
"$BASH" scripts/setup.sh
# Python reads these settings before a test can replace them. tests/support/own_home.py sets the other variables.
unset "${!PYTHON@}"
export LC_ALL=C.UTF-8
# No more processes than processors: each takes four seconds for imports and for collecting all tests.
processors=$(nproc 2>/dev/null || echo 2)
# By turns, so that tests that share a build are mostly run by one process.
exec .venv/bin/python -m pytest -n "$((processors < 8 ? processors : 8))" --dist worksteal "$@"
