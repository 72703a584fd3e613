# amaranth: UnusedElaboratable=no
"""Tests that faster netlists give Amaranth's own text, and find the same combinational cycles."""

import contextlib

import pytest
from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.hdl._nir import CombinationalCycle
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from amaranth_tpu.hw.activation.function_table import FunctionTable
from amaranth_tpu.hw.ring.ring_unit import RingUnit
from amaranth_tpu.hw.verilog import export
from amaranth_tpu.sim.rtl.ring_buckets import ring_core


class Stored(wiring.Component):
    """A memory with initial contents, whose address is a sum."""

    a: In(3)
    o: Out(5)

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=5, depth=6, init=[0, 31, 7, 16, 1, 9])
        port = memory.read_port()
        m.d.comb += [port.addr.eq(self.a + 1), self.o.eq(port.data)]
        return m


class Wired(wiring.Component):
    """A component whose logic is a function of an input and two signals."""

    a: In(8)
    o: Out(8)

    def __init__(self, logic):
        self._logic = logic
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        x, y = Signal(8), Signal(8)
        m.d.comb += [self.o.eq(x), *self._logic(self.a, x, y)]
        return m


CYCLES = {
    "a sum of itself": lambda a, x, y: [x.eq(y + a), y.eq(x)],
    "signals alone": lambda a, x, y: [x.eq(y), y.eq(x)],
    "bit by bit": lambda a, x, y: [x.eq(a), y.eq(Cat(y[1:], y[0]))],
    "select": lambda a, x, y: [x.eq(Mux(y[3], a, 0)), y.eq(x << 1)],
}
NO_CYCLES = {
    "bits of one signal": lambda a, x, y: [x.eq(Cat(a[0], ~x[:7]))],
    "bits of two signals": lambda a, x, y: [x.eq(Cat(a[:4], y[:4] & a[:4])), y.eq(x[:4] ^ a)],
    "behind a sum": lambda a, x, y: [x.eq(Cat(a[:4], y[:4])), y.eq(x[:4] + a[:4])],
}


@pytest.fixture(params=[True, False], ids=["quick", "Amaranth"])
def convert(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(export, "quick_netlists", contextlib.nullcontext)
    return lambda component: export.component_to_rtlil(component, name="top")


@pytest.mark.parametrize("logic", CYCLES.values(), ids=CYCLES)
def test_cycles_are_found(convert, logic):
    with pytest.raises(CombinationalCycle, match="path"):
        convert(Wired(logic))


@pytest.mark.parametrize("logic", NO_CYCLES.values(), ids=NO_CYCLES)
def test_bits_without_a_cycle(convert, logic):
    convert(Wired(logic))


@pytest.mark.parametrize(
    "make", [Stored, lambda: FunctionTable(lanes=2), lambda: RingUnit(config=ring_core())], ids=["memory", "table", "ring"]
)
def test_same_text(make, monkeypatch):
    quick = export.component_to_rtlil(make(), name="top")
    monkeypatch.setattr(export, "quick_netlists", contextlib.nullcontext)
    assert export.component_to_rtlil(make(), name="top") == quick
