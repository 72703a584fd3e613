"""Tests that constants computed by a small file take little memory and time, and are those of onnxruntime."""

import sys

import numpy as np
import pytest
from onnx import TensorProto

from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.frontend.static_graph import static_graph
from amaranth_tpu.sim.golden.network import run_network
from command import captured
from onnx_models import Builder, refused

_MOST = 500 << 20  # bytes of the process that reads a file of about 1 KB


def filled(b, *shape, kind=np.float32):
    return b.node("Expand", [np.ones((1,), kind), np.array(shape)])


def doubled(b, count=40):
    b.node("Concat", [b.constant(np.ones((8, 8), np.float32))] * 2, axis=0)
    for _ in range(count):
        b.node("Concat", [b.last, b.last], axis=0)


def outer(operator, kind=np.float32, size=1 << 14, **attributes):
    return lambda b: b.node(operator, [filled(b, size, 1, kind=kind), filled(b, 1, size, kind=kind)], **attributes)


def gathered(b):
    zeros = b.node("Sub", [filled(b, 1 << 14, kind=np.int64), np.array([1])])
    b.node("Gather", [filled(b, 1, 1 << 14), zeros])


def side_by_side(make, count=20):
    def build(b):
        first = filled(b, 1 << 22)
        b.node("Concat", [make(b, first) for _ in range(count)], axis=0)

    return build


LARGE = {
    "Concat": doubled,
    **{operator: outer(operator) for operator in ("Less", "Greater", "Equal", "Add", "Pow", "Max", "Mean", "PRelu", "MatMul")},
    "Where": lambda b: b.node("Where", [filled(b, 1 << 14, 1, kind=bool), filled(b, 1, 1 << 14), filled(b, 1)]),
    "Gemm": lambda b: b.node("Gemm", [filled(b, 2, 1), filled(b, 1, 2), filled(b, 1 << 22, 1, 1)]),
    "Xor": outer("Xor", kind=bool, size=1 << 15),
    "Einsum": outer("Einsum", equation="ab,bc->ac"),
    "Gather": gathered,
    "DepthToSpace": side_by_side(
        lambda b, first: b.node("DepthToSpace", [b.node("Reshape", [first, np.array([1, 4, 1024, -1])])], blocksize=2)
    ),
    "Cast": lambda b: b.node("Cast", [filled(b, 1 << 24, kind=bool)], to=TensorProto.DOUBLE),
    "Neg": side_by_side(lambda b, first: b.node("Neg", [first])),
    "ConstantOfShape": lambda b: b.node("ConstantOfShape", [np.array([1 << 31])]),
    "Expand": lambda b: filled(b, 1 << 31),
    "Tile": lambda b: b.node("Tile", [np.ones(8, np.float32), np.array([1 << 34])]),
    "Tile beyond 64 bits": lambda b: b.node("Tile", [np.ones(8, np.float32), np.array([1 << 61])]),
    "Pad": lambda b: b.node("Pad", [np.ones(8, np.float32), np.array([1 << 30, 1 << 30])]),
    "Range": lambda b: b.node("Range", [np.array(0), np.array(1 << 40), np.array(1)]),
}
LONG = {
    "Einsum": lambda b: b.node("Einsum", [filled(b, 1000, 1000) for _ in range(3)], equation="ab,cd,ef->"),
    "GatherND": lambda b: b.node("GatherND", [filled(b, 8, kind=np.float32), filled(b, 1 << 21, 1, kind=np.int64)]),
    "Erf": lambda b: b.node("Erf", [filled(b, 1 << 22)]),
}


def model(make):
    b = Builder([None, 2])
    make(b)
    largest = b.node("ReduceMax", [b.node("Cast", [b.last], to=TensorProto.FLOAT)], keepdims=0)
    b.node("Add", [b.node("MatMul", ["x", np.ones((2, 2), np.float32)]), largest])
    return b


_LIMITED = f"""
import resource, sys
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.ir.errors import ModelError

resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for path in sys.argv[1:]:
    try:
        load_network(path)
    except ModelError as error:
        print(error)
    # Not of getrusage, which counts the peak of the process that began this one.
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    assert int(peak.split()[1]) << 10 < {_MOST}, path
"""


def test_small_files_take_little_memory(tmp_path):
    """Reads each file in one process of limited time and memory. Each is refused by the node that makes too much."""
    paths = []
    for number, make in enumerate([*LARGE.values(), *LONG.values()]):
        (tmp_path / str(number)).mkdir()
        paths.append(model(make).save(tmp_path / str(number)))
        assert paths[-1].stat().st_size < 4000
    done = captured([sys.executable, "-c", _LIMITED, *map(str, paths)], check=False)
    said = done.stdout.splitlines()
    assert done.returncode == 0 and len(said) == len(paths), done.stderr
    for name, line in zip([*LARGE, *LONG], said):
        assert name.split()[0] in line, (name, line)
        assert any(text in line for text in ("too large", "does not fit", "cannot be inferred", "steps on constants")), line


def test_stored_result_is_accepted(tmp_path):
    """The remedy: what a node may not make out of a small file, a file may store."""
    refused(model(outer("Add", size=3000)).save(tmp_path), "operator Add", "too large", "store the result in the file")
    path = model(lambda b: b.node("Identity", [np.full((3000, 3000), 2, np.float32)])).save(tmp_path)
    assert run_network(load_network(path), np.array([[1, 2]], np.float32)).tolist() == [[5, 5]]


def test_room_is_free_again(tmp_path):
    """Constants that have been used make room for others, and stored constants give room for what is made of them."""
    b = Builder([None, 2])
    b("MatMul", np.ones((2, 2), np.float32))
    for _ in range(12):
        b.node("Add", [b.last, b.node("ReduceMax", [b.node("Neg", [filled(b, 1 << 21)])], keepdims=0)])
    path = b.save(tmp_path)
    assert run_network(load_network(path), np.array([[1, 2]], np.float32)).tolist() == [[-9, -9]]
    wide = model(lambda b: b.node("DequantizeLinear", [np.full((1 << 22, 2), 3, np.int8), np.array(0.5, np.float32)]))
    assert run_network(load_network(wide.save(tmp_path)), np.array([[1, 2]], np.float32)).tolist() == [[4.5, 4.5]]


_PEAK = """
import logging, sys
import numpy as np
from amaranth_tpu.sim import tpu

logging.disable(logging.CRITICAL)
model = tpu.load(sys.argv[1], effort="fast")
model.run(np.ones([size or 1 for size in model.inputs[0].shape], np.float32))
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def _attention(b):
    b.node("MatMul", [b.node("Softmax", [b.node("MatMul", ["x", b("Transpose", perm=[0, 1, 3, 2])])]), "x"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape, build",
    [
        ([1, 1, 1020, 1020], lambda b: b.node("Mul", ["x", b("GlobalAveragePool")])),
        ([1, 1020, 1020], lambda b: b.node("Concat", [b("Relu"), b.node("Sigmoid", ["x"])], axis=2)),
        ([1, 256, 64, 63], _attention),
    ],
    ids=["image", "concat", "heads"],
)
def test_just_below_the_limit_takes_little_memory(tmp_path, shape, build):
    """Reading and running a file of 1 kB with tensors as large as a small file may have takes less than 500 MB."""
    b = Builder(shape)
    build(b)
    done = captured([sys.executable, "-c", _PEAK, str(b.save(tmp_path))], timeout=300)
    assert int(done.stdout.split()[-1]) < 500e3


_INFERRED = """
import resource, sys
import onnx
from amaranth_tpu.sim.frontend.static_graph import static_graph

resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
for path in sys.argv[1:]:
    static_graph(onnx.load(path), ".")
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def _doubled_vector(b, start):
    b.node("Identity", [start])
    for _ in range(40):
        b.node("Concat", [b.last, b.last], axis=0)
    b.node("Slice", [b.last, np.array([0]), np.array([4])])


def test_inferred_shapes_take_little_memory(tmp_path):
    """ONNX takes 150 bytes for each value of a vector that it propagates to find shapes, even for unknown values."""
    starts = [lambda b: np.arange(4), lambda b: b.node("Shape", ["x"]), lambda b: b.node("Reshape", ["x", np.array([8])])]
    paths = []
    for number, start in enumerate(starts):
        (tmp_path / str(number)).mkdir()
        b = Builder([8], opset=18)
        _doubled_vector(b, start(b))
        paths.append(str(b.save(tmp_path / str(number))))
    assert int(captured([sys.executable, "-c", _INFERRED, *paths]).stdout) << 10 < _MOST


def test_inferred_shapes_have_propagated_values():
    b = Builder([8, 3, 5], opset=18)
    size = b.node("Concat", [b.node("Gather", [b.node("Shape", ["x"]), np.array([0])]), np.array([15])], axis=0)
    shaped = b.node("Reshape", ["x", size])
    b.node("Relu", [shaped])
    assert static_graph(b.model(), ".").shape(shaped) == (8, 15)
