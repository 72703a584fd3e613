"""Tests that every mixed random graph is either refused or gives onnxruntime's results."""

import numpy as np
import pytest

from seeds import seed
from suites import slow

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("wanted", [3, *slow(6, 1000)])
def test_accepted_graphs_are_correct(tmp_path, wanted):
    """Draws random graphs until `wanted` are accepted (about every second one), and compares each accepted one with
    onnxruntime."""
    from mixed_graphs import check

    accepted = 0
    for trial in range(10 * wanted):
        accepted += check(np.random.default_rng([seed(), trial]), tmp_path) == "accepted"
        if accepted == wanted:
            return
    raise AssertionError(f"{accepted} accepted of {10 * wanted}")
