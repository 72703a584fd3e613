"""Tests that each attribute in a file is read, has ONNX's default value, or is refused by name."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import defs
from onnx.reference import ReferenceEvaluator

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend import apply as operators  # noqa: F401 - registers them
from amaranth_tpu.sim.frontend.registry import OPERATORS
from onnx_models import Builder, refused

#: Attributes of supported operators that the reader does not read.
UNREAD = {("Resize", "exclude_outside")}


def schemas():
    every = [one for one in defs.get_all_schemas_with_history() if one.domain in ("", "ai.onnx.ml")]
    for name, known in OPERATORS.items():
        versions = sorted((one for one in every if (one.name, one.domain) == (name, known.domain)), key=lambda s: s.since_version)
        newer = [after.since_version for after in versions[1:]] + [1 << 30]
        yield from (one for one, end in zip(versions, newer) if known.handler and (end > 8 or known.domain))


def test_every_attribute_of_every_opset_is_known():
    """The attributes in ONNX's schemas that the ONNX reader does not read equal the list `UNREAD`. A new operator set may extend
    it."""
    there = {(one.name, attribute) for one in schemas() for attribute in one.attributes}
    read = {(name, attribute) for name, known in OPERATORS.items() for attribute in known.attributes if not known.domain}
    assert there - {(name, attribute) for name, known in OPERATORS.items() for attribute in known.attributes} == UNREAD
    assert {pair for pair in read if OPERATORS[pair[0]].handler} <= there


def space_to_depth(rng, mode, opset=28):
    b = Builder(["n", 2, 4, 6], opset=opset)
    b("SpaceToDepth", name="odd", blocksize=2, **mode)
    b("Conv", np.ones((3, 8, 1, 1), np.float32) * np.arange(1, 9, dtype=np.float32)[:, None, None])
    return b


@pytest.mark.parametrize("mode", [{}, {"mode": "DCR"}, {"mode": "CRD"}], ids=str)
def test_mode_of_space_to_depth(rng, tmp_path, mode):
    path = space_to_depth(rng, mode).save(tmp_path)
    x = rng.integers(-3, 4, (3, 2, 4, 6)).astype(np.float32)
    (right,) = ReferenceEvaluator(str(path)).run(None, {"x": x})
    np.testing.assert_array_equal(tpu.load(path).predict(x), right)


def test_unread_attribute(rng, tmp_path, monkeypatch):
    """The ONNX reader refuses an attribute that it does not read, and names it, unless it has ONNX's default value."""
    b = Builder(["n", 2, 4, 4], opset=19)
    b("Resize", "", np.array([1, 1, 2, 2], np.float32), name="odd", mode="nearest", exclude_outside=1)
    b("Conv", np.ones((3, 2, 1, 1), np.float32))
    refused(b.save(tmp_path), "operator Resize, node 'odd': its attribute exclude_outside of 1 is not supported; leave it out")
    monkeypatch.setitem(OPERATORS, "SpaceToDepth", replace(OPERATORS["SpaceToDepth"], attributes=("blocksize",)))
    tpu.load(space_to_depth(rng, {"mode": "DCR"}).save(tmp_path))
    refused(space_to_depth(rng, {"mode": "CRD"}).save(tmp_path), "node 'odd': its attribute mode of CRD is not supported")
