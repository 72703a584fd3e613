"""Tests of the layout of tensors in host memory, covering margins that neighbouring samples share, and packing of arrays."""

import numpy as np
import pytest

from amaranth_tpu.sim.compiler.memory.layout import layout_of, packed
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.ir.graph import Tensor, Term
from graphs import random_values


def _at(data, n, position):
    return np.frombuffer(data, "<u2").reshape(-1, n)[position]


def test_every_value_is_where_its_position_says(rng):
    layout = packed(Tensor("t", 7, 3, 4), n=4, batch=3, below=2, beside=1, lead=11)
    values = random_values(rng, (2, 3, 4, 7))
    data = layout.pack(values)
    assert len(data) == layout.size * 8
    seen = np.zeros(layout.size, bool)
    for b, y, x in np.ndindex(2, 3, 4):
        for tile in range(2):
            position = layout.position(b, y, tile, x)
            seen[position] = True
            lanes = values[b, y, x, tile * 4 : (tile + 1) * 4].view(np.uint16)
            assert np.array_equal(_at(data, 4, position), np.pad(lanes, (0, 4 - len(lanes))))
    assert not np.frombuffer(data, "<u2").reshape(-1, 4)[~seen].any()


@pytest.mark.parametrize("kernel,padding,size", [((3, 3), (1, 1), (5, 6)), ((5, 2), (2, 0), (5, 5)), ((2, 4), (0, 3), (4, 6))])
def test_margins_hold_what_a_term_reads_outside(kernel, padding, size, rng):
    """Each position that a term reads is in the layout, and holds the tensor's value or, in the margin, zero."""
    tensor = Tensor("t", 3, 5, 6)
    term = Term("t", np.zeros((*kernel, 3, 1), bfloat16), padding=padding)
    layout = layout_of(tensor, 2, 2, [(term, size)])
    values = random_values(rng, (2, 5, 6, 3))
    data = layout.pack(values)
    for b, y, x, ky, kx in np.ndindex(2, *size, *kernel):
        sy, sx = y + ky - padding[0], x + kx - padding[1]
        position = layout.position(b, sy, 0, sx)
        assert 0 <= position < layout.size
        inside = 0 <= sy < 5 and 0 <= sx < 6
        assert np.array_equal(_at(data, 2, position), values[b, sy, sx, :2].view(np.uint16) if inside else [0, 0])


def test_without_padding_there_is_no_margin():
    layout = layout_of(Tensor("t", 3, 5, 6), 2, 2, [(Term("t", np.zeros((3, 3, 3, 1), bfloat16)), (3, 4))])
    assert layout.size == 2 * 5 * 6 * 2


def test_unpack_is_the_inverse_in_binary32(rng):
    layout = packed(Tensor("t", 5, 2, 3), n=4, batch=2, beside=1, lead=3)
    whole = rng.normal(size=(layout.size, 4)).astype("<f4")
    got = layout.unpack(whole.tobytes())
    for b, y, x, c in np.ndindex(2, 2, 3, 5):
        assert got[b, y, x, c] == whole[layout.position(b, y, c // 4, x), c % 4]


def test_wrong_samples_are_refused():
    layout = packed(Tensor("t", 2), n=4, batch=2)
    with pytest.raises(TypeError, match="bfloat16"):
        layout.pack(np.zeros((1, 1, 1, 2), np.float32))
    with pytest.raises(ValueError, match="of shape"):
        layout.pack(np.zeros((3, 1, 1, 2), bfloat16))
