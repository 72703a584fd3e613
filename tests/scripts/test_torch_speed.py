"""Tests of the measurement of PyTorch in another interpreter, which may lack PyTorch or fail."""

import pytest

from amaranth_tpu.scripts.benchmark.torch_speed import torch_speed


def _interpreter(tmp_path, text):
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_times_are_read(tmp_path):
    python = _interpreter(tmp_path, """echo '{"version": "2.0", "seconds": {"1": 0.5, "64": 2}}'""")
    assert torch_speed(python, [1, 64], 0) == ("2.0", {1: 0.5, 64: 2})


def test_interpreter_without_pytorch_gives_no_figures(tmp_path):
    python = _interpreter(tmp_path, "echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1")
    assert torch_speed(python, [1], 0) is None
    assert torch_speed(str(tmp_path / "missing"), [1], 0) is None


def test_failure_of_pytorch_is_reported(tmp_path):
    with pytest.raises(SystemExit, match="failed: out of memory"):
        torch_speed(_interpreter(tmp_path, "echo 'out of memory' >&2; exit 1"), [1], 0)
