"""Tests that each operator test of the onnx package is computed as ONNX expects, or refused with a reason."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.sim.check import node_tests as suite
from amaranth_tpu.sim.check.node_tests import PASSED, REFUSED, TRACEBACK, WRONG, Reading, groups, outcome, readings
from suites import slow

PARTS = 8
#: Tests that gave wrong results or did not end in earlier versions.
ONCE_WRONG = {
    "test_lstm_defaults": PASSED,
    "test_lstm_with_initial_bias": PASSED,
    "test_gru_defaults": PASSED,
    "test_gru_seq_length": PASSED,
    "test_dropout_default_mask": REFUSED,
    "test_argmax_keepdims_example": PASSED,
    "test_convtranspose_autopad_same": PASSED,
    "test_spacetodepth_example": PASSED,
    "test_flatten_axis0": PASSED,
}


@functools.cache
def cases():
    return {case.name: case for case in suite.node_tests()}


@pytest.mark.parametrize("part", slow(*range(PARTS)))
def test_none_is_wrong(part):
    for case in list(cases().values())[part::PARTS]:
        for one in readings(case):
            assert one.outcome in (PASSED, REFUSED), one
            assert (one.outcome == REFUSED) == bool(one.reason) and "\n" not in one.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", ONCE_WRONG)
def test_once_wrong(name):
    assert outcome(readings(cases()[name]))[0] == ONCE_WRONG[name]


@pytest.mark.slow
def test_other_numbers_or_shapes_are_wrong(monkeypatch):
    """An operator test counts as wrong if the expected values differ by 0.2 %, in shape, or in order."""
    case = cases()["test_gemm_default_no_bias"]
    ((inputs, (right,)),) = case.data_sets
    assert outcome(readings(case))[0] == PASSED
    for other in (right * np.float32(1.002), right[None], np.roll(right, 1)):
        assert outcome(readings(replace(case, data_sets=[(inputs, [other])])))[0] == WRONG
    monkeypatch.setattr(suite, "run_graph", lambda network, rows: 1 / 0)
    assert outcome(readings(case))[0] == TRACEBACK


def test_refusals_are_grouped_by_reason():
    """Refusals are grouped by reason, regardless of node names and numbers. A test passes if one of its readings passes and none
    is wrong."""
    reasons = [f"operator Pad, node (unnamed, makes 'y{n}'): pads with {n}; only 0 is" for n in (1, 2.5)]
    found = [Reading("t", ("x",), REFUSED, reason) for reason in reasons]
    assert groups(found) == [("pads with #", 2)]
    assert outcome([found[0], Reading("t", ("x", "y"), PASSED)])[0] == PASSED
    assert outcome([found[0], Reading("t", ("x", "y"), PASSED), Reading("t", ("y",), WRONG, "why")])[0] == WRONG
