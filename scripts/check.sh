#!/usr/bin/env bash
# Lint, format, types and English, in seconds, as CI checks them. Settings and their reasons are in pyproject.toml.
set -euo pipefail
unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.."
"$BASH" scripts/setup.sh
.venv/bin/ruff check
.venv/bin/ruff format --check
# The folders are packages of amaranth_tpu only where they are installed; the type checker finds them by this link.
mkdir -p build/types
ln -sfn "$PWD" build/types/amaranth_tpu
.venv/bin/mypy
# English: the rates of phrases that hide the subject of a sentence.
.venv/bin/python -m amaranth_tpu.scripts.english
