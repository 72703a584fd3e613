"""What the tool and its tests leave behind: in the home, in the environment, on the network."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command import SHIPPED

ROOT = Path(__file__).parents[2]


def test_no_telemetry_of_onnxruntime(tmp_path):
    """A run that compares with onnxruntime leaves nothing in a fresh home."""
    pytest.importorskip("onnxruntime")
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-m", "amaranth_tpu.scripts.tpu", "run", "--model", SHIPPED, "--simulator", "golden"]
        + ["--images", "2", "--json"],
        env=environment | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert json.loads(done.stdout)["against_model"]["interpreter"].startswith("onnxruntime")
    assert not list(tmp_path.rglob("*"))


def test_onnxruntime_is_imported_in_one_place():
    """There its telemetry is disabled first."""
    found = [
        str(path.relative_to(ROOT))
        for folder in ("hw", "sim", "scripts")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if any(alias.name.startswith("onnxruntime") for alias in getattr(node, "names", []) if isinstance(node, ast.Import))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onnxruntime."))
    ]
    assert found == ["sim/check/onnxruntime_import.py"]
