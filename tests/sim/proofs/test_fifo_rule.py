"""Tests that no program with the FIFO rule of the datasheet deadlocks, up to ten instructions, and that each part of the rule is
needed."""

import pytest

from amaranth_tpu.sim.proofs.fifo_rule import RULES, deadlock_script
from amaranth_tpu.sim.proofs.smt import solve
from suites import slow


def result(length, in_flight, depth, parts=RULES):
    return solve(deadlock_script(length, in_flight=in_flight, depth=depth, parts=parts), timeout=300).result


# promise: fifo-rule
@pytest.mark.parametrize(
    "length, in_flight, depth", [(7, 4, 2), *slow((10, 8, 2), (10, 4, 2), (9, 4, 4), (9, 8, 4), (10, 16, 2))]
)
def test_rule_is_enough(length, in_flight, depth):
    assert result(length, in_flight, depth) == "unsat"


@pytest.mark.parametrize(
    "part, length, in_flight", slow(*((part, 7, 4) for part in RULES if part != "few LOAD_WEIGHTS"), ("few LOAD_WEIGHTS", 9, 8))
)
def test_each_part_is_needed(part, length, in_flight):
    assert result(length, in_flight, 2, [one for one in RULES if one != part]) == "sat"
