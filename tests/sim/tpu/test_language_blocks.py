"""Tests of a block of SmolLM2-135M: results, and cycles of 64 tokens at once and of one token after 63."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.models.llama import Llama, block_model, masked, rotary
from onnx_models import close, weights

_SMOLLM2 = Llama(1, 576, 1536, 9, 3, 64, 8192, 49152, 1e-5, 1e5)
_PAST = {"x": (1, 48), "past_keys": (3, 6, 16), "past_values": (3, 6, 16)}


def _compared(rng, tokens, past):
    own = {
        name: (np.ones(shape) if len(shape) == 1 else rng.normal(0, shape[1] ** -0.5, shape)).astype(np.float32)
        for name, shape in _SMOLLM2.shapes().items()
    }
    proto = block_model(_SMOLLM2, own, tokens, past)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    x = {one.name: rng.normal(size=(1, *one.shape[1:])).astype(np.float32) for one in session.get_inputs()}
    cos, sin = rotary(_SMOLLM2, past + np.arange(tokens))
    x |= {"mask": masked(_SMOLLM2, past, past, tokens)[None], "cos": cos[None, None], "sin": sin[None, None]}
    model, wanted = tpu.load(proto, effort="fast"), session.run(None, x)
    made = model.predict(x, check=False)
    for one, values in zip(session.get_outputs(), wanted, strict=True):
        error = np.sqrt(np.square(made[one.name] - values).mean() / np.square(values).mean())
        assert error < 0.02, one.name
    return model, x


def test_inputs_of_the_past(rng):
    """Keys and values of the past have a head's 16 values as channels, so that tiles are full. The results are right."""
    block = """<ir_version: 8, opset_import: ["" : 17]>
    block (float[n, 1, 48] x, float[n, 3, 6, 16] past_keys, float[n, 3, 6, 16] past_values) => (float[n, 3, 1, 16] y)
    <int64[4] split = {0, 1, 3, 16}> {
        a = MatMul (x, weights)
        b = Reshape (a, split)
        own = Transpose <perm = [0, 2, 1, 3]> (b)
        keys = Concat <axis = 2> (past_keys, own)
        values = Concat <axis = 2> (past_values, own)
        turned = Transpose <perm = [0, 1, 3, 2]> (keys)
        scores = MatMul (own, turned)
        shares = Softmax <axis = -1> (scores)
        y = MatMul (shares, values)
    }"""
    proto = onnx.parser.parse_model(block)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights(rng, 48, 48), "weights"))
    x = {name: rng.normal(size=(2, *shape)).astype(np.float32) for name, shape in _PAST.items()}
    model = tpu.load(proto, effort="fast")
    assert all(model.network.tensors[name].channels == 16 for name in ("past_keys", "past_values"))
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, x)
    close(model.predict(x, on="model", core=from_preset("transformer", n=16), check=False), wanted)


@pytest.mark.parametrize("turned", [False, True])
def test_input_as_second_operand_is_not_copied(rng, turned):
    """Samples with partial tiles follow each other in memory, and rows of padding change no sum."""
    rows, inner, columns = (int(rng.integers(2, 19)) for _ in range(3))
    shape, read = (
        (f"{columns}, {inner}", "Transpose <perm = [0, 2, 1]> (b)") if turned else (f"{inner}, {columns}", "Identity (b)")
    )
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        product (float[n, {rows}, 16] x, float[n, {shape}] b) => (float[n, {rows}, {columns}] y)
        {{ a = MatMul (x, weights)  read = {read}  y = MatMul (a, read) }}"""
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights(rng, 16, inner), "weights"))
    x = {"x": rng.normal(size=(3, rows, 16)), "b": rng.normal(size=(3, *map(int, shape.split(","))))}
    x = {name: values.astype(np.float32) for name, values in x.items()}
    model = tpu.load(proto, effort="fast")
    assert "b" in {term.weights for stage in model.network.stages for term in stage.terms}
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, x)
    core = from_preset("transformer", n=int(rng.choice([4, 8, 16])))
    close(model.predict(x, on="model", core=core, batch=2, check=False), wanted)


@pytest.mark.slow
@pytest.mark.search
@pytest.mark.parametrize("tokens, past, least, bus", [(64, 0, 0.6, 0), (1, 63, 0, 0.95)])
def test_cycles(rng, tokens, past, least, bus):
    """64 tokens at once fill 60 % of the array, and no stage that only moves, scales or adds values takes 2 % of the cycles. One
    token after 63 takes at most 5 % longer than the words on the bus."""
    model, _ = _compared(rng, tokens, past)
    found = model.estimate(from_preset("transformer", n=16), batch=1)
    assert found.utilisation > least and found.bound > bus * found.cycles
    assert past or max(layer.cycles for layer in found.layers if layer.macs < 1e5) < 0.02 * found.cycles


@pytest.mark.slow
def test_bits_of_the_core(rng):
    """One token after 15, on the RTL with 16 x 16 cells. Cells in the simulator's own arithmetic take a third of the time."""
    model, x = _compared(rng, 1, 15)
    run = model.run(x, on=tpu.Simulator("verilator", cells="native"), core=from_preset("transformer", n=16))
    assert run.check().result.mismatched_bits == 0
