# amaranth: UnusedElaboratable=no
"""Tests that the fields of footprints and operations are as narrow as the depth of their memory allows."""

import pytest

from amaranth_tpu.hw.activation.row_walker import RowWalker
from amaranth_tpu.hw.config import PRESETS, Config
from amaranth_tpu.hw.control.description import decoded_layout, footprint_layout
from amaranth_tpu.hw.spec.operations import activate_layout


@pytest.mark.parametrize("config", [*PRESETS.values(), Config(training=True, ring=True)], ids=str)
def test_places_have_the_bits_of_their_memory(config):
    depths = {"buffer": config.unified_buffer_depth, "acc": config.accumulator_depth, "bias": config.bias_depth}
    for space, depth in depths.items():
        span = footprint_layout(config)[space].shape
        assert {1 << span[end].width for end in ("first", "last")} == {depth}


def test_operations_carry_only_their_slot():
    """The offset of an instruction is stored once, by slot, and not in the queues and registers of its unit."""
    config, others = Config(training=True, ring=True), ("halt", "pc", "footprint")
    tags = {kind: dict(field.shape)["tag"].shape for kind, field in decoded_layout(config) if kind not in others}
    assert len(tags) == 4 and {tuple(dict(tag)) for tag in tags.values()} == {("slot",)}


def test_row_walker_has_no_port_of_operands():
    assert "operand" not in RowWalker(activate=activate_layout(Config(training=True))).signature.members
