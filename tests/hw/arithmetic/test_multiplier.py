# amaranth: UnusedElaboratable=no
"""Tests of the multiplier against the golden model, covering all pairs of special values, both ends of the range, random pairs,
and once all 2^32 pairs."""

import numpy as np
import pytest

from amaranth_tpu.hw.arithmetic.multiplier import LEADS, Multiplier
from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.rtl.number_classes import one_of_each
from amaranth_tpu.sim.rtl.streams import SideBySide, StreamedBlock, compile_block, simulate_columns
from command import captured
from seeds import seed


def multipliers(leads=LEADS):
    return SideBySide({lead: Multiplier(lead=lead) for lead in leads})


def check(run, x, w, leads=LEADS):
    """Streams the pairs through `run(x=, w=)` and compares every output with the golden model."""
    last = np.zeros(max(leads), dtype=np.uint32)
    outputs = run(x=np.concatenate([x, last]), w=np.concatenate([w, last]))
    expected = golden.multiply(x, w)
    for lead in leads:
        found = outputs[f"o_{lead}"][lead : lead + len(x)]
        wrong = np.flatnonzero(found != expected)
        assert not len(wrong), (
            f"lead {lead}: {len(wrong)} of {len(x)} wrong, first {x[wrong[0]]:04x} * {w[wrong[0]]:04x} = "
            f"{found[wrong[0]]:08x}, not {expected[wrong[0]]:08x}"
        )


def simulated(leads=LEADS):
    return lambda **columns: simulate_columns(multipliers(leads), **columns)


def pairs(values):
    values = np.array(values, dtype=np.uint32)
    return np.repeat(values, len(values)), np.tile(values, len(values))


def edge_pairs(rng, count):
    """Returns `count` pairs of bfloat16 bits whose products are near one end of the exponent range; one pair in three is
    arbitrary."""
    total = rng.choice(np.array([125, 126, 127, 128, 129, 379, 380, 381, 382, 383]), count)
    x = rng.integers(np.maximum(total - 254, 1), np.minimum(total - 1, 254) + 1)
    significant = rng.integers(0, 1 << 7, (2, count))
    sign = rng.integers(0, 2, (2, count))
    edge = sign << 15 | np.array([x, total - x]) << 7 | significant
    anything = rng.integers(0, 1 << 16, (2, count))
    return np.where(rng.integers(0, 3, count) > 0, edge, anything).astype(np.uint32)


def test_hand_computed_products():
    """Compares multiplier and golden model with hand-computed products, so that an error in both is found too."""
    table = [
        # x       w       x * w
        (0x3FC0, 0x3FC0, 0x40100000),  # 1.5 * 1.5
        (0x3FC0, 0xC000, 0xC0400000),
        (0x3F81, 0x3F81, 0x3F820200),  # the product keeps all of its 16 significant bits
        (0xBF80, 0x0000, 0x80000000),
        (0x7F80, 0xC000, 0xFF800000),
        (0x7F80, 0x0001, 0x7FC00000),  # a subnormal operand is zero, and infinity times zero is a NaN
        (0x0001, 0xFF7F, 0x80000000),
        (0x2000, 0x2000, 0x00800000),  # 2^-63 * 2^-63: the least normal
        (0x2000, 0x9FFF, 0x80000000),  # just below it
        (0x7F7F, 0xC000, 0xFF800000),
        (0xFF81, 0x3F80, 0x7FC00000),
    ]
    x, w, expected = np.array(table, dtype=np.uint32).T
    found = simulate_columns(multipliers([0]), x=x, w=w)["o_0"]
    assert [f"{value:08x}" for value in found] == [f"{value:08x}" for value in expected]


def test_specials():
    check(simulated([0, 3]), *pairs(one_of_each(np.random.default_rng(seed()), 16, 6)), leads=[0, 3])


def test_random():
    check(simulated(), *edge_pairs(np.random.default_rng(seed()), 3000))


@pytest.mark.parametrize("lead", [-1, 4, 1.0, None])
def test_rejects(lead):
    with pytest.raises(ValueError, match=f"not {lead!r}"):
        Multiplier(lead=lead)


@pytest.mark.slow
def test_volume():
    check(StreamedBlock(multipliers()).run, *edge_pairs(np.random.default_rng([seed(), 1]), 4_000_000))


_EXHAUSTIVE = """
#include <cmath>
#include <cstdio>
#include <cstring>
#include "Vtop.h"
#include "verilated.h"

static float number(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
static uint32_t flush(uint32_t bits) { return bits & 0x7F800000 ? bits : bits & 0x80000000; }

int main() {
    VerilatedContext context;
    Vtop top{&context};
    uint64_t wrong = 0, done = 0;
    for (uint32_t x = 0; x < 65536; x++) {
        for (uint32_t w = 0; w < 65536; w++) {
            volatile float product = number(flush(x << 16)) * number(flush(w << 16));
            float result = product;
            uint32_t expected;
            memcpy(&expected, &result, 4);
            expected = (expected & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC00000 : flush(expected);
            top.x = x;
            top.w = w;
            top.eval();
            if (top.o != expected && wrong++ < 10) printf("%04x * %04x = %08x, not %08x\\n", x, w, top.o, expected);
            done++;
        }
    }
    printf("%llu checked, %llu wrong\\n", (unsigned long long) done, (unsigned long long) wrong);
    return wrong != 0;
}
"""


@pytest.mark.slow
def test_exhaustive():
    """The multiplier gives the same products as the CPU's floating-point unit for all 2^32 pairs."""
    result = captured([compile_block(Multiplier(lead=0), _EXHAUSTIVE)], timeout=600)
    assert result.returncode == 0 and result.stdout == f"{1 << 32} checked, 0 wrong\n", result.stdout
