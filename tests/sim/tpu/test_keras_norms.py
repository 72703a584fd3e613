"""Tests that normalizations of Keras over channels are trained, with their scales and shifts."""

import os

import numpy as np
import pytest

from amaranth_tpu.sim import tpu

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks

NORMS = {
    "LayerNormalization": lambda layers: layers.LayerNormalization(),
    "LayerNormalization without a scale": lambda layers: layers.LayerNormalization(scale=False),
    "RMSNormalization": lambda layers: layers.RMSNormalization(),
    "GroupNormalization": lambda layers: layers.GroupNormalization(2, trainable=False),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms(rng, name):
    """A Relu follows, so that a shift changes the results. GroupNormalization is refused, and trained once it is frozen."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="needs the packages keras and torch")
    pytest.importorskip("onnxscript", reason="needs the packages keras, torch and onnxscript")
    layers, norm = keras.layers, NORMS[name](keras.layers)
    net = keras.Sequential([layers.Input((6, 8)), layers.Dense(8), norm, layers.ReLU(), layers.Flatten(), layers.Dense(4)])
    for one in norm.weights:
        one.assign(rng.uniform(0.5, 1.5, one.shape))
    before = [np.array(keras.ops.convert_to_numpy(one)) for one in norm.weights]
    x, y = rng.normal(0, 1, (64, 6, 8)).astype(np.float32), rng.integers(0, 4, 64)
    given = {"learning_rate": 0.02, "check_steps": 1, "core": tpu.Config(n=4), "verbose": False}
    if name == "GroupNormalization":
        norm.trainable = True
        with pytest.raises(tpu.ModelError, match="gamma.*beta are constants of the network.*; freeze them.*trainable=False"):
            tpu.from_keras(net).fit(x, y, **given)
        norm.trainable = False
    model = tpu.from_keras(net)
    assert model.fit(x, y, **given).core["mismatched_bits"] == 0
    moved = [(keras.ops.convert_to_numpy(one) != other).any() for one, other in zip(norm.weights, before)]
    assert before and all(moved) == norm.trainable and any(moved) == norm.trainable
    np.testing.assert_allclose(model.predict(x), net.predict(x, verbose=0), atol=0.06)
