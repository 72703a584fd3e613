"""Tests of results as HTML: well-formed, with the figures, and without markup from names."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.tpu.html import LayerTable, Tensors, curve
from amaranth_tpu.sim.tpu.layer_costs import LayerCost
from training_runs import clusters, write_dense_model


def _cells(html):
    """Returns the texts of all cells, and the points of curves. Fails if the HTML is not well-formed."""
    tree = ElementTree.fromstring(f"<p>{html}</p>")
    return [cell.text or "" for cell in tree.iter("td")], [line.get("points") for line in tree.iter("polyline")]


@pytest.fixture
def model():
    return tpu.load("d")


def test_estimate(model):
    estimate = model.estimate("tiny", batch=3)
    cells, _ = _cells(estimate._repr_html_())
    assert f"{estimate.cycles:,}" in cells and f"{estimate.bound:,}" in cells
    assert all(layer.name in cells and f"{layer.cycles:,}" in cells for layer in estimate.layers)


def test_history(rng, tmp_path):
    x, y = clusters(rng, 40)
    small = tpu.load(write_dense_model(tmp_path / "small.onnx", rng))
    done = small.fit(x, y, epochs=2, batch_size=10, validation_split=0.5, verbose=False)
    shown = replace(done, core={"mismatched_bits": 0})._repr_html_()
    cells, (points,) = _cells(shown)
    assert f"{done.history['val_loss'][1]:.4g}" in cells and "0 bits differ" in shown
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert len(heights) == 4 and np.argmin(heights) == np.argmax(done.step_losses)  # larger losses are higher up


def test_trace_and_layers(model, rng):
    tensors = model.trace(rng.random((2, 784)))
    cells, _ = _cells(tensors._repr_html_())
    assert all(name in cells for name in model.layers)
    layer = LayerCost("<b>&", "dense", (1, 1, 3), "", 6, 2, 10, 3, 0.5, 1, 1, {"bus": 7})
    assert _cells(LayerTable([layer])._repr_html_())[0][:3] == ["<b>&", "dense", "1x1x3"]
    assert _cells(Tensors({"<i>": np.zeros(2)})._repr_html_())[0][0] == "<i>"


def test_curves_of_few_or_equal_numbers():
    assert curve([1.0], "loss") == "" and "nan" not in curve([2.0, 2.0], "loss")
