# amaranth: UnusedElaboratable=no
"""The larger of two sums, against the order of sign and magnitude."""

import itertools
import random

import numpy as np
from seeds import seed

from hw.maximum import Maximum
from sim.bench_activation_unit import TIES, largest, number
from sim.vectors import simulate


def test_maximum():
    rng = random.Random(seed())
    pairs = [*itertools.product(TIES, repeat=2), *((number(rng), number(rng)) for _ in range(2000))]
    a, b = np.array(pairs, np.uint32).T
    found = simulate(Maximum(), a=a, b=b)["o"]
    assert [hex(bits) for bits in found] == [hex(largest(pair)) for pair in pairs]


def test_by_hand():
    nan = 0x7FC00000
    table = [(0x3F800000, 0xBF800000, 0x3F800000), (0xBF800000, 0xC0000000, 0xBF800000), (0, 0x80000000, 0),
             (0x80000000, 0, 0), (nan, 0x7F800000, nan), (0xFF800000, nan, nan), (0x80000000, 0x80000000, 0x80000000)]
    a, b, expected = np.array(table, np.uint32).T
    assert (simulate(Maximum(), a=a, b=b)["o"] == expected).all()
