"""Tests that merged successive constants give the result of binary32 step by step for values of any size. Other constants stay
separate, or are refused."""

import itertools

import ml_dtypes
import numpy as np
import onnx
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
from amaranth_tpu.sim.golden.network import run_network
from onnx_models import Builder, refused, values_of

SIZES = np.array([0, 1e-38, 1e-30, 1e-10, 1e-6, 1e-3, 0.4, 0.5, 1, 2.5, 89, 255, 1e4, 1.3e7, 1e15, 1e30, 1e36, 1e38, 3e38])
X = round_bfloat16(np.concatenate([SIZES, -SIZES]).astype(np.float32)).astype(np.float32)
ROUND = 12582912  # added to a small number, it rounds that to an integer


def constant(value):
    return np.array(value, np.float32)


def chain(*nodes, width=1):
    """Returns a builder of consecutive operators with one constant each, given as (operator, constants...[, attributes])."""
    b = Builder([None, width])
    for number, (operator, *values) in enumerate(nodes):
        attributes = values.pop() if values and isinstance(values[-1], dict) else {}
        b(operator, *map(constant, values), name=f"node{number}", **attributes)
    return b


def check(path, x, stages):
    """Checks that a model has `stages` stages and gives the same results as onnxruntime within each stage's bfloat16 rounding,
    unless an intermediate value is subnormal."""
    network = load_network(path)
    made = getattr(network, "stages", None) or network.layers
    assert len(made) == stages, [stage.name for stage in made]
    steps = values_of(path, x, [name for node in onnx.load(path).graph.node for name in node.output])
    subnormal = np.any([((value != 0) & (np.abs(value) < 2.0**-126)).any(axis=1) for value in steps.values()], axis=0)
    assert subnormal.mean() < 0.75
    x, want = x[~subnormal], list(steps.values())[-1][~subnormal]
    got = run_network(network, x).astype(np.float32)
    with np.errstate(all="ignore"):
        near = np.abs(got - want) <= (stages + 1) * 2.0**-9 * np.abs(want) + 2.0**-124
    same = near | (got == want) | np.isnan(got) & np.isnan(want)
    assert same.all(), [(x[row], want[row, column], got[row, column]) for row, column in np.argwhere(~same)[:5]]


@pytest.mark.parametrize(
    "nodes, stages",
    [
        ([("Div", 255), ("Sub", 0.5), ("Div", 0.5)], 1),  # merged, as in common preprocessing
        ([("Add", 3), ("Sub", 3), ("Add", 5)], 1),  # the sum of the constants is not 0
        ([("Mul", 1e30), ("Mul", 1e-30)], 2),  # the product overflows
        ([("Mul", 1e-20), ("Mul", 1e-20), ("Mul", 1e20)], 3),  # the product underflows
        ([("Mul", 1e-30), ("Mul", 1e30), ("Relu",)], 2),
        ([("Mul", 2.0**32), ("Mul", 2.0**32), ("Mul", 2.0**-32), ("Mul", 2.0**-32)], 2),
        ([("Gemm", [[1e36]]), ("Mul", 1e5)], 2),
        ([("Gemm", [[1e-36]]), ("Mul", 1e-5)], 2),
        ([("Mul", 1e-5), ("Gemm", [[1e-36]])], 2),
        ([("Mul", 1.39e-38)], 1),
        ([("Mul", 7.77e-37)], 1),  # close to the smallest normal number
        ([("BatchNormalization", [1], [0], [0], [1e-37], {"epsilon": 0.0})], 1),
    ],
)
def test_chains(tmp_path, nodes, stages):
    check(chain(*nodes).save(tmp_path), X[:, None], stages)


@pytest.mark.parametrize("scaled", [[("Gemm", [[1], [-1]]), ("Mul", 1.9e36)], [("Gemm", [[1], [-1]], {"alpha": 1.9e36})]])
def test_large_scale_of_a_difference(tmp_path, scaled):
    """1.9e36 times the difference of two numbers near 1,000 is finite, so the scale must not be merged into the difference's
    weights."""
    near = np.array([[1000, 1000], [1008, 1000], [0.5, 3], [3e38, 1], [1e-30, 1]], np.float32)
    check(chain(*scaled, width=2).save(tmp_path), round_bfloat16(near).astype(np.float32), stages=2)


def test_small_scales_beside_others(tmp_path):
    """A scale that needs two bfloat16 parts gives the same results as onnxruntime within rounding, beside a scale whose second
    part would be subnormal."""
    check(chain(("Mul", [1.0075 * 2.0**-126, 0.3]), width=2).save(tmp_path), np.repeat(X[:, None], 2, axis=1), stages=1)


def test_infinite_values(tmp_path):
    """Infinite inputs give ONNX's results for the constant 0.3, which becomes two weights. The constant 1 must not get a second
    weight 0, since 0 times infinity is NaN."""
    x = np.array([[np.inf] * 4, [-np.inf] * 4, [1, -2, 3, 4]], np.float32)
    check(chain(("Mul", [0.3, 1, -2, 0]), width=4).save(tmp_path), x, stages=1)


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_steep_slopes_of_each_channel(tmp_path, alpha):
    b = Builder([None, 3])
    b("PRelu", constant([8, 0.25, -3]) * np.float32(alpha))
    check(b.save(tmp_path), np.repeat(X[:, None], 3, axis=1), stages=3)


def test_infinite_product_is_not_merged(tmp_path):
    """`alpha` = 3e38 times a weight of 100 is infinite, so the two are not merged: ONNX computes 0 for an input of 0, not NaN."""
    x = np.array([[0, 0, 0], [1e-3, 0, 0], [1, 2, 3], [-1e-4, 1e-4, 0]], np.float32)
    b = Builder([None, 3])
    b("Gemm", np.full((3, 2), 100, np.float32), alpha=3e38)
    check(b.save(tmp_path), round_bfloat16(x).astype(np.float32), stages=2)


@pytest.mark.parametrize(
    "nodes, words",
    [
        ([("Add", ROUND), ("Sub", ROUND)], ("node1", "1.258e+07")),
        ([("Add", 3e38), ("Sub", 3e38)], ("node1", "3e+38")),
        ([("Add", 0.5), ("Sub", 0.5), ("Relu",)], ("node1", "0.5")),
        ([("Add", ROUND), ("Mul", 0.5), ("Sub", ROUND / 2), ("Mul", 2)], ("node3", "cancels out")),
        ([("Gemm", [[1, 2]], [ROUND, 1]), ("Sub", ROUND)], ("node1", "cancels out")),
        ([("Add", ROUND), ("Gemm", [[1, 2]], [-ROUND, -2 * ROUND])], ("node1", "cancels out")),
        ([("Add", 1000), ("Gemm", [[1, 1], [1, -1]])], ("node0", "cancels out")),
        ([("Add", 3e38), ("Add", 3e38)], ("node1", "infinite in binary32")),
        ([("Mul", 1e-40)], ("node0", "subnormal")),
        ([("Div", 3e38)], ("node0", "subnormal")),
        ([("Mul", np.inf)], ("node0", "infinite")),
        ([("Add", np.nan)], ("node0", "NaN")),
        ([("Div", 0)], ("node0", "infinite")),
        ([("PRelu", np.inf)], ("node0", "infinite in 1 of 1")),
        ([("LeakyRelu", {"alpha": np.inf})], ("node0", "alpha")),
        ([("HardSigmoid", {"beta": np.nan})], ("node0", "beta")),
        ([("Gemm", [[1]], {"alpha": np.inf})], ("node0", "infinite")),
        ([("Gemm", [[1]], [0], {"beta": np.inf})], ("node0", "NaN")),
        ([("BatchNormalization", [1], [0], [0], [0], {"epsilon": 0.0})], ("node0", "infinite")),
        ([("BatchNormalization", [1e20], [0], [1e20], [1e-37], {"epsilon": 0.0})], ("node0", "infinite in binary32")),
    ],
)
def test_refused(tmp_path, nodes, words):
    weights = next((values[0] for operator, *values in nodes if operator == "Gemm"), [[1]])
    refused(chain(*nodes, width=len(weights)).save(tmp_path), *words)


def several(*shape):
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape) / 8


#: (shape of the input, operator, constants, attributes)
WITH_CONSTANTS = [
    ((2,), "Gemm", [several(2, 3), several(3)], {}),
    ((2,), "MatMul", [several(2, 3)], {}),
    ((2,), "Einsum", [several(2, 3)], {"equation": "bk,kn->bn"}),
    ((2, 4, 4), "Conv", [several(3, 2, 3, 3), several(3)], {}),
    ((2, 4, 4), "ConvTranspose", [several(2, 3, 3, 3), several(3)], {}),
    ((2, 4), "BatchNormalization", [several(2)] * 4, {}),
    ((2, 4), "InstanceNormalization", [several(2)] * 2, {}),
    ((2, 4), "LayerNormalization", [several(4)] * 2, {}),
    ((2, 4), "PRelu", [several(2, 1)], {}),
    *(((2,), operator, [several(2)], {}) for operator in ("Add", "Sub", "Mul", "Div", "Sum")),
]


@pytest.mark.parametrize("shape, operator, constants, attributes", WITH_CONSTANTS, ids=[case[1] for case in WITH_CONSTANTS])
def test_constants_that_are_not_finite(tmp_path, shape, operator, constants, attributes):
    """One rule for all constants: one value that is NaN or infinite is refused, and accepted once it is finite."""

    def model(constants):
        b = Builder([None, *shape], opset=17)
        b(operator, *constants, name="odd", **attributes)
        return b.save(tmp_path)

    load_network(model(constants))
    for place, wrong in itertools.product(range(len(constants)), (np.nan, np.inf, -np.inf)):
        changed = constants[place].copy()
        changed.flat[1] = wrong
        said = f"constant 'c{place}' is {'NaN' if np.isnan(wrong) else 'infinite'} in 1 of {changed.size}"
        if (operator, wrong) == ("Add", -np.inf):  # a mask
            said = "must be added directly before a Softmax"
        refused(model([*constants[:place], changed, *constants[place + 1 :]]), "'odd'", said)


def test_bounds_that_leave_nothing(tmp_path):
    for bounds in ([np.inf], [0, -np.inf], [3.4e38]):
        refused(chain(("Clip", *bounds)).save(tmp_path), "node0", "bound")
    for operator, bound in (("Max", np.inf), ("Min", -np.inf), ("Max", np.nan), ("Min", np.nan)):
        refused(chain((operator, bound)).save(tmp_path), "node0", "NaN" if np.isnan(bound) else "leave no bfloat16 number")
    check(chain(("Min", np.inf), ("Max", -np.inf), ("Clip", -np.inf, np.inf), ("Mul", 2)).save(tmp_path), X[:, None], stages=1)


@pytest.mark.parametrize("factor, least", [(0.999, None), (0.9, None), (1, None), (-2, None), (0.9999999, "1.192e-07")])
@pytest.mark.parametrize("before", [None, "Abs"])
def test_copies_of_the_same_values(tmp_path, factor, least, before):
    """The difference x - 0.999 x is computed within its own rounding error, although it is much smaller than bfloat16's rounding
    of x."""
    b = Builder([None, 3])
    first = "x" if before is None else b(before)
    b.node("Mul", [first, constant(factor)])
    b.node("Sub", [first, b.last], name="odd")
    b("Add", constant(0))
    path = b.save(tmp_path)
    if least:
        refused(path, "'odd'", least)
    else:
        check(path, np.stack([X, -X, X / 2], axis=1), stages=1 + bool(before))


def test_sums_that_share_a_shift(tmp_path):
    """The sum of two layers whose large biases cancel is refused, because binary32 rounds each sum."""
    b = Builder([None, 2])
    first = b("Gemm", np.eye(2, dtype=np.float32), constant([ROUND, 1]))
    b.node("Gemm", ["x", 2 * np.eye(2, dtype=np.float32), constant([-ROUND, 1])])
    b("Add", first, name="odd")
    refused(b.save(tmp_path), "'odd'", "cancels out")


@pytest.mark.parametrize(
    "opset, scale, zero, attributes",
    [
        (13, [0.1, 0.2, 0.05], [1, 200, 3], {"axis": 0}),
        (13, [0.1, 0.2, 0.05, 7, 1e-3], None, {}),
        (19, [0.1, 0.2, 0.05, 7, 1e-3], [0, 1, 2, 3, 255], {"axis": -1}),
        (13, 0.1, 128, {}),
        (13, [0.1], [128], {}),
        (10, 0.1, None, {}),
        (21, [[0.1, 0.2, 0.05, 7, 1e-3]] * 2, [[0, 1, 2, 3, 255]] * 2, {"axis": 0, "block_size": 2}),
        (21, [[0.1], [0.2], [0.05]], None, {"axis": -1, "block_size": 5}),
    ],
)
def test_quantised_weights(rng, tmp_path, opset, scale, zero, attributes):
    """8-bit weights and 32-bit biases are dequantized, and int8 values beyond bfloat16's precision are rounded as other weights
    are."""
    b = Builder([None, 3], opset=opset)
    quantised = [rng.integers(0, 256, (3, 5)).astype(np.uint8), constant(scale)]
    quantised += [] if zero is None else [np.array(zero, np.uint8)]
    kernel = b.node("DequantizeLinear", quantised, **attributes)
    bias = b.node("DequantizeLinear", [rng.integers(-(10**6), 10**6, 5).astype(np.int32), constant(1e-4)])
    b.node("Gemm", ["x", kernel, bias])
    path, x = b.save(tmp_path), rng.normal(size=(4, 3)).astype(np.float32)
    (wanted,) = values_of(path, x, [b.last]).values()
    weights = values_of(path, x, [kernel])[kernel]
    np.testing.assert_allclose(
        run_network(load_network(path), x), wanted, atol=2.0**-7 * np.abs(x).max() * abs(weights).sum(0).max()
    )
    exact = np.eye(3, dtype=np.float32)
    made = values_of(path, exact, [b.last, bias])
    got = run_network(load_network(path), exact)
    np.testing.assert_array_equal(got, round_bfloat16(weights).astype(np.float32) + made[bias])


@pytest.mark.parametrize(
    "opset, scale, zero, attributes",
    [
        (13, [0.1, 0.2], None, {}),
        (13, [0.1, 0.2, 0.3], None, {"axis": 2}),
        (10, [0.1] * 5, None, {}),
        (13, 0.1, [1, 2, 3], {"axis": 0}),
        (21, [[0.1] * 5], None, {"axis": 0, "block_size": 2}),
        (21, [0.1] * 5, None, {"axis": 1, "block_size": 1}),
    ],
)
def test_quantised_weights_refused(tmp_path, opset, scale, zero, attributes):
    b = Builder([None, 3], opset=opset)
    quantised = [np.ones((3, 5), np.int8), constant(scale), *([] if zero is None else [np.array(zero, np.int8)])]
    b.node("MatMul", ["x", b.node("DequantizeLinear", quantised, name="odd", **attributes)])
    refused(b.save(tmp_path), "operator DequantizeLinear, node 'odd'", "scale")


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int4", "uint4", "int8"])
def test_weights_of_few_bits_are_exact(rng, tmp_path, kind):
    """With scales that are powers of two they are read exactly, and stored in a format of the core, unless they have five bits
    of exponent."""
    b, dtype = Builder([None, 64], opset=23), np.dtype(getattr(ml_dtypes, kind, kind))
    values = rng.normal(size=(64, 8)).astype(np.float32)
    stored = (values if dtype.kind == "V" else abs(values) * 3 if kind == "uint4" else np.clip(values * 3, -8, 7)).astype(dtype)
    scales = np.exp2(rng.integers(-6, 2, (2, 8))).astype(np.float32)
    b.node("MatMul", ["x", b.node("DequantizeLinear", [stored, scales], axis=0, block_size=32)])
    graph = load_network(b.save(tmp_path, ir_version=11))
    (weights,) = [graph.constants[term.weights] for stage in graph.stages for term in stage.terms]
    want = stored.astype(np.float32) * np.repeat(scales, 32, axis=0)
    np.testing.assert_array_equal(weights.reshape(64, 8).astype(np.float32), want)
    program = compile_network(graph, Config(n=8, weight_formats=True), 2, "fast")
    formats = {op.fields["weight_format"] for op in program.ops if op.opcode is Opcode.LOAD_WEIGHTS}
    assert formats and (kind == "float8_e5m2" or 0 not in formats)


def test_shift_of_an_image(tmp_path, rng):
    """Subtracting 128 from pixels before an edge filter is exact, although the merged constants cancel below binary32's
    resolution."""
    b = Builder([None, 2])
    b("Sub", constant(128))
    b("Gemm", constant([[1, 1], [1, -1]]))
    x = rng.integers(0, 256, (20, 2)).astype(np.float32)
    check(b.save(tmp_path), x, stages=1)
