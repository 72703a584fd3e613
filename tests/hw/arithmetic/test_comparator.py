# amaranth: UnusedElaboratable=no
"""Tests of the comparator that returns the larger of two sums, against the order by sign and magnitude."""

import itertools
import random

import numpy as np
import pytest

from amaranth_tpu.hw.arithmetic.comparator import Comparator
from amaranth_tpu.sim.benches.activation_model import canonical, largest, sums
from amaranth_tpu.sim.rtl.number_classes import one_of_each
from amaranth_tpu.sim.rtl.streams import simulate_columns
from seeds import seed


# promise: maximum-order
@pytest.mark.parametrize("strict", [False, True])
def test_larger(strict):
    rng = random.Random(seed())
    each = canonical(one_of_each(np.random.default_rng(seed()), count=2)).tolist()
    pairs = [*itertools.product(each, repeat=2), *zip(*sums(rng, (2, 2000)).tolist())]
    pairs += [(a ^ 1 << rng.randrange(32), a) for a, _ in pairs]
    a, b = np.array([pair for pair in pairs if strict or pair[0] != pair[1]], np.uint32).T
    found = simulate_columns(Comparator(strict=strict), a=a, b=b)["o"]
    assert found.tolist() == [int(pair[0] != pair[1] and largest(pair) == pair[0]) for pair in zip(a.tolist(), b.tolist())]


# promise: maximum-order
@pytest.mark.parametrize("strict", [False, True])
def test_hand_sorted_values(strict):
    """The comparator finds the larger of each pair from a hand-sorted list of binary32 values. If `strict`, equal values are not
    larger."""
    order = [0xFF800000, 0xC0000000, 0xBF800000, 0x80800000, 0x80000000, 0x00000000, 0x00800000, 0x3F800000]
    order = np.array([*order, 0x7F7FFFFF, 0x7F800000, 0x7FC00000], np.uint32)
    a, b = np.array([(x, y) for x, y in itertools.product(range(len(order)), repeat=2) if strict or x != y]).T
    assert simulate_columns(Comparator(strict=strict), a=order[a], b=order[b])["o"].tolist() == (a > b).tolist()
