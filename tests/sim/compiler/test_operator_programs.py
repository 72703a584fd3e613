"""Tests that compiled programs of ONNX operators match the golden model bit for bit on the instruction-level model."""

import pytest

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.sim.frontend.load import load_network
from graphs import check
from onnx_models import Builder, weights
from suites import all_but, slow

_GATES = {"GRU": 3, "LSTM": 4}
_WAYS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def _recurrent(rng, operator, direction, steps, inputs, hidden):
    """Returns a builder of a recurrent layer with several steps, up to the outputs of all steps."""
    rows, ways = _GATES[operator] * hidden, _WAYS[direction]
    b = Builder(["n", steps, inputs], opset=14)
    b("Transpose", perm=[1, 0, 2])
    given = weights(rng, ways, rows, inputs) * 2, weights(rng, ways, rows, hidden) * 2, weights(rng, ways, 2 * rows)
    b(operator, *given, hidden_size=hidden, direction=direction)
    b("Transpose", perm=[2, 0, 1, 3])
    return b


@pytest.mark.parametrize(
    "operator, direction, n",
    all_but([("LSTM", "forward", 4), ("LSTM", "reverse", 16), ("GRU", "bidirectional", 4)], _GATES, _WAYS, (4, 8, 16)),
)
@pytest.mark.parametrize("most", [3, *slow(8)])
def test_recurrent_layers(rng, tmp_path, operator, direction, n, most):
    """Recurrent layers of several steps, whose stages need two function tables, match the golden model bit for bit. `most` is the
    largest number of steps."""
    steps, inputs, hidden = (int(rng.integers(least, end)) for least, end in ((2, most + 1), (1, most + 4), (2, 2 * most + 1)))
    graph = load_network(_recurrent(rng, operator, direction, steps, inputs, hidden).save(tmp_path))
    check(graph, from_preset("default", n=n), int(rng.integers(1, 4)), rng)
