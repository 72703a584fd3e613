"""The command `tpu` in a separate process, and small models and digits for it."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHIPPED = Path(__file__).parents[2] / "sim" / "models" / "mnist_mlp.onnx"
SMALL = ("--simulator", "icarus", "--preset", "tiny")


def captured(words, timeout=60, **options):
    """Runs a command, and returns its status and its outputs as texts."""
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, **options)


def tpu(*arguments, cwd=None, environment=None, timeout=300):
    words = [sys.executable, "-m", "amaranth_tpu.scripts.tpu", *map(str, arguments)]
    return captured(words, timeout, cwd=cwd, env=os.environ | {"COLUMNS": "200"} | (environment or {}))


#: Limits files to 300 bytes: the system refuses longer ones, as on a full disk.
_FULL_DISK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
from amaranth_tpu.scripts import tpu
from amaranth_tpu.scripts.cli import train_job
from amaranth_tpu.sim.golden.sums import Sums
train_job.fastest_sums = Sums  # numba would keep what it compiles
tpu.main()
"""


def tpu_on_full_disk(*arguments):
    """Runs :func:`tpu` with a limit of 300 bytes per file. Bytecode is disabled, because Python would write truncated bytecode
    files and later treat them as complete."""
    words = [sys.executable, "-c", _FULL_DISK, *map(str, arguments)]
    return captured(words, env=os.environ | {"COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"})


def refused(done, *said):
    """Checks that a command failed without output and with one line `error: ...` that contains each text of `said`."""
    assert done.returncode != 0 and not done.stdout, done.stdout
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    for text in said:
        assert text in lines[0], lines[0]


def write_idx(folder, images, labels, split="t10k"):
    folder.mkdir(exist_ok=True)
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
        (folder / f"{split}-{name}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))
    return folder


def write_model(path, inputs=16, outputs=3, operator="Gemm"):
    rng = np.random.default_rng(5)
    weights = [
        numpy_helper.from_array(rng.standard_normal((inputs, outputs)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal(outputs).astype(np.float32), "b"),
    ]
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="dense")]
    nodes.append(helper.make_node("Relu" if operator == "Gemm" else operator, ["h"], ["y"], name="last"))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", outputs])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path
