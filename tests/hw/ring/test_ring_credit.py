# amaranth: UnusedElaboratable=no
"""Tests that the proof of the ring unit's credits holds on the netlist, and fails for units with a bug."""

import pytest

from amaranth_tpu.hw.ring import ring_unit
from amaranth_tpu.sim.proofs.ring_credit import unit_circuit, unit_claims
from amaranth_tpu.sim.proofs.smt import solve
from amaranth_tpu.sim.rtl.ring_buckets import ring_core
from suites import slow

TIMEOUT = 300


def refuted(claims):
    results = {claim.text: solve(claim.script, timeout=TIMEOUT).result for claim in claims}
    assert set(results.values()) <= {"sat", "unsat"}
    return [text for text, result in results.items() if result == "sat"]


# promise: ring-no-deadlock
@pytest.mark.parametrize("depth, stages", slow((4, 3), (8, 1), (64, 5), (8, 9)))
def test_unit(depth, stages):
    config = ring_core(ring_depth=depth, cell_stages=stages)
    circuit = unit_circuit(config)
    assert refuted(unit_claims(circuit, config)) == []
    (bound,) = (claim for claim in unit_claims(circuit, config, too_low=1) if claim.text.startswith("sent - consumed <= m"))
    assert refuted([bound])


class TakesNothing(ring_unit.RingSequencer):
    """A faulty sequencer in which no task waits for received vectors."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.o.p.receive.eq(0)
        return m


class AlwaysSends(ring_unit.RingSequencer):
    """A faulty sequencer that sends in the last step too, where it must not."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.o.p.send.eq(1)
        return m


class EndsEarly(ring_unit.RingSequencer):
    """A faulty sequencer that signals the end of an operation before its last task is done."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.o.p.end.eq(1)
        return m


@pytest.mark.parametrize("wrong", slow(TakesNothing, AlwaysSends, EndsEarly))
def test_wrong_unit(monkeypatch, wrong):
    monkeypatch.setattr(ring_unit, "RingSequencer", wrong)
    config = ring_core(ring_depth=4)
    assert refuted(unit_claims(unit_circuit(config), config)) == ["a cycle of a run keeps it"]
