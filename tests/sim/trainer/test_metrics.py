"""Tests of metrics, with counts that loops compute."""

import numpy as np
import pytest

from amaranth_tpu.sim.data.labels import PADDING
from amaranth_tpu.sim.trainer.metric_names import parse_metric
from amaranth_tpu.sim.trainer.metrics import measured


def test_metrics_of_positions(rng):
    """Padding does not count; a class that never occurs has neither precision nor recall."""
    vectors, labels = rng.normal(size=(20, 3, 5)), rng.integers(0, 4, (20, 3))
    vectors[..., 4] -= 100
    labels[rng.random((20, 3)) < 0.3] = PADDING
    found = measured(["top-1", "top-3", "confusion", "perplexity"], vectors, labels)
    confusion, best, top, logs = np.zeros((5, 5), int), 0, 0, []
    pairs = [(vector, label) for vector, label in zip(vectors.reshape(-1, 5), labels.reshape(-1)) if label != PADDING]
    for vector, label in pairs:
        order = np.argsort(-vector).tolist()
        confusion[label, order[0]] += 1
        best, top = best + (label == order[0]), top + (label in order[:3])
        logs.append(-vector[label] + np.log(np.exp(vector).sum()))
    assert found["top-1"] == pytest.approx(best / len(pairs)) and found["top-3"] == pytest.approx(top / len(pairs))
    assert found["confusion"] == confusion.tolist() and found["perplexity"] == pytest.approx(np.exp(np.mean(logs)))
    assert found["recall"][4] is found["precision"][4] is None
    assert found["recall"][0] == pytest.approx(confusion[0, 0] / confusion[0].sum())
    assert found["precision"][0] == pytest.approx(confusion[0, 0] / confusion[:, 0].sum())


@pytest.mark.parametrize("text", ["top", "top-0", "top-x", "f1", "accuracy"])
def test_other_metrics_are_refused(text):
    with pytest.raises(ValueError, match="is not a metric; write top-5"):
        parse_metric(text)
