# amaranth: UnusedElaboratable=no
"""Tests that faster netlists give Amaranth's own text, and find the same combinational cycles."""

import contextlib

import pytest
from amaranth.hdl import C, Cat, DriverConflict, Instance, Module, Mux, Signal
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


class TwoDrivers(wiring.Component):
    """A signal that two instances drive."""

    o: Out(2)

    def elaborate(self, platform):
        m = Module()
        m.submodules.first = Instance("source", o_y=self.o)
        m.submodules.second = Instance("source", o_y=self.o[1])
        return m


class TwiceInOnePort(TwoDrivers):
    """A signal that is twice in the output of an instance."""

    def elaborate(self, platform):
        m = Module()
        m.submodules.only = Instance("source", o_y=Cat(self.o, self.o[1]))
        return m


@pytest.mark.parametrize("make", [TwoDrivers, TwiceInOnePort])
def test_two_drivers_of_a_bit_are_refused(convert, make):
    with pytest.raises(DriverConflict, match="Bit 1 of signal .* has multiple drivers"):
        convert(make())


class Nested(wiring.Component):
    """Submodules in which a net leaves, enters and passes modules, with constants and slices in both directions."""

    a: In(8)
    o: Out(12)

    def elaborate(self, platform):
        m = Module()
        m.submodules.left = left = Module()
        left.submodules.inner = inner = Module()
        m.submodules.right = right = Module()
        right.submodules.inner = other = Module()
        right.submodules.late = late = Module()
        x, y, z, w, v = Signal(8), Signal(8, init=5), Signal(3), Signal(8), Signal(8)
        other.d.comb += w.eq(self.a ^ 9)
        late.d.comb += v.eq(w + 3)
        inner.d.comb += x.eq(self.a + w)
        inner.d.sync += y.eq(Cat(x[4:], C(5, 4)))
        other.d.comb += z.eq(x[2:5] ^ y[:3])
        right.d.comb += self.o.eq(Cat(z, C(2, 2), y[1:6], z[0], v[7]))
        return m


@pytest.mark.parametrize(
    "make",
    [Stored, Nested, lambda: FunctionTable(lanes=2), lambda: RingUnit(config=ring_core())],
    ids=["memory", "nested", "table", "ring"],
)
def test_same_text(make, monkeypatch):
    quick = export.component_to_rtlil(make(), name="top")
    monkeypatch.setattr(export, "quick_netlists", contextlib.nullcontext)
    assert export.component_to_rtlil(make(), name="top") == quick
