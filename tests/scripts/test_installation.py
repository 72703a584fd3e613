"""Tests of installations into new environments, from the index that pip and uv use. They are slow and need a network."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import own_home
from command import SHIPPED, captured

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def run(*words, cwd, timeout=400, **environment):
    done = captured([*map(str, words)], cwd=cwd, env=os.environ | own_home.for_installing() | environment, timeout=timeout)
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture
def uv():
    path = Path(sys.executable).with_name("uv")
    if not path.exists():
        pytest.skip("scripts/setup.sh installs uv where it can")
    return path


def test_lowest_versions(uv, tmp_path):
    """With the lowest version of each package that pyproject.toml allows, `tpu` runs and trains networks without mismatched
    bits."""
    run(uv, "venv", "--python", sys.executable, "venv", cwd=tmp_path)
    what = f"{ROOT}[train]"
    run(uv, "pip", "install", "--python", "venv", "--resolution", "lowest-direct", what, "onnxruntime>=1.20", cwd=tmp_path)
    tpu, given = tmp_path / "venv" / "bin" / "tpu", {"cwd": tmp_path, "TPU_BUILD": str(tmp_path / "build")}
    for words in (["--help"], ["train", "--help"]):
        run(tpu, *words, **given)
    core = ["--model", SHIPPED.with_name("mnist_dense.onnx"), "--preset", "tiny", "--batch", "2", "--json"]
    figures = json.loads(run(tpu, "run", *core, "--images", "2", "--simulator", "model", **given))
    assert figures["mismatched_bits"] == 0 and figures["against_model"]["interpreter"].startswith("onnxruntime")
    if shutil.which("cc"):  # the package has the sources of the C model
        assert any((tmp_path / "build" / "libraries").glob("core-*.so"))
    rng = np.random.default_rng(1)
    np.save(tmp_path / "x.npy", rng.random((64, 1, 28, 28), np.float32))
    np.save(tmp_path / "y.npy", rng.integers(0, 10, 64))
    data = ["--input", "x.npy", "--labels", "y.npy", "--epochs", "1", "--batch", "16", "--model", "d"]
    made = ["--log", "log", "--curve", "c.svg", "--checkpoint", "checkpoint", "-o", "trained.onnx"]
    run(tpu, "train", *data, *made, **given)
    assert {path.name for path in tmp_path.iterdir()} >= {"log", "c.svg", "checkpoint", "trained.onnx"}


#: Follows the first tutorial's installation in the same shell: scripts must keep the environment and its extra.
_AFTERWARDS = """
tpu --version
python -m pip install -q -e '.[board]'
touch .venv/mine pyproject.toml
echo '# changed' >> pyproject.toml
./scripts/setup.sh
./scripts/demo.sh --simulator golden --images 2 --json > run.json
./scripts/test.sh -q -n 1 -k test_working_environment_is_kept tests/scripts/test_setup.py
ls .venv/mine
python -c 'import serial'
"""


def test_first_tutorial(tmp_path):
    """The first tutorial's commands run without an error in a fresh clone with an empty home directory, and write only pip's
    caches there."""
    page = (ROOT / "scripts" / "docs" / "tutorials" / "first-digit.md").read_text()
    [install] = re.findall(
        r'^```sh title="run by tests/scripts/test_installation.py"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL
    )
    # The working tree's sources, without untracked files.
    assert "git clone REPOSITORY" in install and "export PATH=" in install
    said = run(
        "bash", "-euo", "pipefail", "-c", install.replace("REPOSITORY", str(ROOT)) + _AFTERWARDS, cwd=tmp_path, timeout=900
    )
    assert said.startswith("amaranth-tpu ") and " passed" in said
    assert json.loads((tmp_path / "amaranth-tpu" / "run.json").read_text())["images"] == 2
    assert not list(Path(os.environ["HOME"]).rglob("*"))
