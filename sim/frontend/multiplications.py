"""The number of multiplications of ONNX nodes, from the shapes of their operands. They weigh the parts of a divided model."""

from math import prod

from onnx import helper

__all__ = ["WINDOWS", "multiplications"]


def multiplications(graph, node):
    """Returns the number of multiplications of a node of a :class:`.StaticGraph`. Unknown shapes and operators other than sums of
    products count 0."""
    count = _COUNTS.get(node.op_type)
    shapes = [graph.shape(name) if name else () for name in node.input]
    result = graph.shape(node.output[0])
    if count is None or result is None or None in shapes:
        return 0
    return count(shapes, result, {one.name: helper.get_attribute_value(one) for one in node.attribute})


def _matmul(shapes, result, attributes):
    return prod(result) * shapes[0][-1] if shapes[0] else 0


def _gemm(shapes, result, attributes):
    return prod(result) * shapes[0][0 if attributes.get("transA", 0) else -1]


def _windows(place):
    return lambda shapes, result, attributes=None: prod(result) * prod(shapes[place][1:])


def _transposed(shapes, result, attributes=None):
    return prod(shapes[0]) * prod(shapes[1][1:])


def _einsum(shapes, result, attributes):
    terms = attributes["equation"].decode("utf-8", "replace").replace(" ", "").partition("->")[0].split(",")
    sizes = {letter: size for term, shape in zip(terms, shapes) if "." not in term for letter, size in zip(term, shape)}
    return prod(sizes.values()) if len(terms) > 1 else 0


def _recurrent(shapes, result, attributes):
    steps, batch, width = shapes[0]
    directions, gates, hidden = shapes[2]
    return steps * batch * directions * gates * (width + hidden)


def _attention(shapes, result, attributes):
    rows = prod(shapes[0][:-1])
    return 2 * rows * shapes[1][-2] * shapes[0][-1]


#: {convolution: its number of multiplications, of the shapes of its operands and of its result}.
WINDOWS = {
    **dict.fromkeys(("Conv", "FusedConv", "ConvInteger"), _windows(1)),
    "QLinearConv": _windows(3),
    "ConvTranspose": _transposed,
}

_COUNTS = {
    **WINDOWS,
    **dict.fromkeys(("MatMul", "MatMulInteger"), _matmul),
    "QLinearMatMul": _matmul,
    **dict.fromkeys(("Gemm", "FusedGemm"), _gemm),
    "Einsum": _einsum,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "Attention": _attention,
}
