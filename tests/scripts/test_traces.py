"""Tests that `tpu` leaves no unexpected files (home, temporary folders, current folder) and opens no network connections."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from command import captured
from suites import slow
from training_runs import write_dense_model, write_samples

ROOT = Path(__file__).parents[2]
_TINY = "--preset tiny --json"
_PREDICT = """
from amaranth_tpu.sim import tpu
import numpy as np
model, x = tpu.load("model.onnx"), np.load("samples.npy")
model.predict(x, on="model", core="tiny")
assert model.compare(x).error is None
"""
#: Arguments of `tpu` (or a program), and the files that it must leave in the current folder.
VERBS = [
    ("run --model model.onnx --input samples.npy --simulator golden --output y.npy --json", {"y.npy"}),
    *slow(
        (
            "train --model model.onnx --input samples.npy --labels labels.npy --epochs 1 --batch 16 -o new.onnx --json",
            {"new.onnx"},
        ),
        (f"run --model model.onnx --input samples.npy --simulator icarus {_TINY}", set()),
        (f"compile --model model.onnx --batch 2 -o net {_TINY}", {"net"}),
        (f"generate -o tpu.v {_TINY}", {"tpu.v"}),
        (f"synth --target ecp5-25 --n 2 -o report {_TINY}", {"report"}),
        ("sweep --model model.onnx --n 2,4 --batch 1 --workers 1 --json", set()),
        (_PREDICT, set()),
    ),
]


@pytest.fixture(scope="module")
def no_network(tmp_path_factory):
    if sys.platform != "linux":
        pytest.skip("a library is preloaded in Linux' way")
    library = tmp_path_factory.mktemp("library") / "no_network.so"
    source = ROOT / "tests" / "support" / "no_network.cpp"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=120)
    return library


@pytest.fixture
def place(tmp_path, no_network, rng):
    """Returns a function that runs Python with the given words in a folder with a model and samples. Home, temporary and build
    folders are private to the test."""
    for name in ("home", "temporary", "work"):
        (tmp_path / name).mkdir()
    write_dense_model(tmp_path / "work" / "model.onnx", np.random.default_rng(5))
    rows, labels = write_samples(tmp_path / "work", rng, 32)
    rows.rename(tmp_path / "work" / "samples.npy")
    labels.rename(tmp_path / "work" / "labels.npy")
    environment = {name: value for name, value in os.environ.items() if name not in ("MPLCONFIGDIR", "ORT_DISABLE_TELEMETRY")}
    environment |= {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temporary"), "TPU_BUILD": str(tmp_path / "build")}
    environment |= {"LD_PRELOAD": str(no_network), "NO_NETWORK_LOG": str(tmp_path / "network.log")}

    def run(*words):
        return captured([sys.executable, *words], cwd=tmp_path / "work", env=environment, timeout=900)

    return run


@pytest.mark.parametrize("words, left", VERBS)
def test_command_leaves_only_its_output(place, tmp_path, words, left):
    """A `tpu` command connects to no other machine, writes nothing to the home directory, and leaves only its output. Only Dask
    leaves its folder with locks among the temporary files."""
    before = {path.name for path in (tmp_path / "work").iterdir()}
    done = place("-c", words) if "\n" in words else place("-m", "amaranth_tpu.scripts.tpu", *words.split())
    assert done.returncode == 0 and not done.stderr, done.stderr
    if words.startswith("run"):
        assert json.loads(done.stdout)["against_model"]["interpreter"].startswith("onnxruntime")
    assert not (tmp_path / "network.log").exists(), (tmp_path / "network.log").read_text()
    assert not list((tmp_path / "home").rglob("*"))
    assert {path.name for path in (tmp_path / "work").iterdir()} - before == left
    known = {"dask-scratch-space", "global.lock", "purge.lock"} if "--workers" in words else set()
    assert {path.name for path in (tmp_path / "temporary").rglob("*")} <= known


def test_connections_are_logged(place, tmp_path):
    """The preloaded library logs connections and name look-ups of native code, too, and allows connections to this machine."""
    code = """
import ctypes, socket
for place in ("192.0.2.1", "127.0.0.1"):
    try:
        socket.socket().connect((place, 9))
    except OSError:
        pass
ctypes.CDLL(None).getaddrinfo(b"example.org", None, None, ctypes.byref(ctypes.c_void_p()))
"""
    done = place("-c", code)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "network.log").read_text().splitlines() == ["connect 192.0.2.1", "getaddrinfo example.org"]


def test_onnxruntime_is_imported_in_one_place():
    """Only `sim/check/onnxruntime_import.py` imports onnxruntime, because it disables the telemetry first."""
    found = [
        str(path.relative_to(ROOT))
        for folder in ("hw", "sim", "scripts")
        for path in (ROOT / folder).rglob("*.py")
        if "onnxruntime" in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        if any(alias.name.startswith("onnxruntime") for alias in getattr(node, "names", []) if isinstance(node, ast.Import))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onnxruntime."))
    ]
    assert found == ["sim/check/onnxruntime_import.py"]
