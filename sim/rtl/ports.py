"""Benches for blocks that run in three simulators: one coroutine, which accesses the ports of a block by name.

A bench is `async def bench(ports, rng, **sizes)`. In each cycle it sets inputs, awaits `ports.settle()`, gets outputs and awaits
`ports.tick()`, which ends the cycle. :func:`simulate` runs a bench in Amaranth's simulator, :func:`play` inside a cocotb test.
Ports have the names that :func:`hw.verilog.export.component_to_verilog` gives them: paths joined by `__`. Arrays are lists. A
list may also set the lanes of a wide port, the first lane in the lowest bits.
"""

import random
import re

from amaranth.hdl import Value
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In

__all__ = ["CocotbPorts", "simulate", "play", "pack", "unpack"]


class _Ports:
    """The ports of a block, for use in a bench. `cycle` is the number of clock cycles since the start. The bench fails after
    cycle `limit`, which it may set before it waits."""

    limit = 100_000

    def __init__(self, handles):
        self._handles = handles
        self._arrays = {}
        for name in handles:
            if match := re.fullmatch(r"(.+)__(\d+)", name):
                self._arrays[match[1]] = max(self._arrays.get(match[1], 0), int(match[2]) + 1)
        self.cycle = 0

    def set(self, **values):
        for name, value in values.items():
            if isinstance(value, (list, tuple)):
                if name in self._arrays:
                    for index, element in enumerate(value):
                        self._write(self._handles[f"{name}__{index}"], int(element))
                else:
                    width = len(self._handles[name]) // len(value)
                    self._write(self._handles[name], sum(int(lane) << width * index for index, lane in enumerate(value)))
            else:
                self._write(self._handles[name], int(value))

    def get(self, name):
        """Returns the value of an output: an int. Returns None if bits are unknown. For an array it returns a list of values."""
        if name in self._arrays:
            return [self._read(self._handles[f"{name}__{index}"]) for index in range(self._arrays[name])]
        return self._read(self._handles[name])

    def lanes(self, name, count):
        """Returns the `count` lanes of an output as a list. Each lane is an int, or None if bits are unknown."""
        bits = self._bits(self._handles[name])
        width = len(bits) // count
        lanes = (bits[end - width : end] for end in range(len(bits), 0, -width))
        return [int(lane, 2) if set(lane) <= {"0", "1"} else None for lane in lanes]

    async def tick(self):
        """Ends the current clock cycle: waits for the next rising edge of the clock, and counts it. Fails after `limit`
        cycles."""
        self.cycle += 1
        assert self.cycle <= self.limit, f"no end by cycle {self.limit}"
        await self._tick()

    async def until(self, output, most):
        """Waits until `output` is 1. Returns the number of cycles that it took. Fails after `most` cycles."""
        start = self.cycle
        while not self.get(output):
            assert self.cycle < start + most, f"{output} is still 0 after {most} cycles"
            await self.tick()
        return self.cycle - start

    async def reset(self):
        """Resets the block: asserts its reset for one clock cycle."""
        self._write(self._reset, 1)
        await self.settle()
        await self.tick()
        self._write(self._reset, 0)


# --- Amaranth's simulator -----------------------------------------------------------------------------------------


class _Handle:
    """The simulator's state of a signal."""

    __slots__ = ("state", "width", "mask", "is_signed")

    def __init__(self, state):
        shape = state.signal.shape()
        self.state, self.width, self.mask, self.is_signed = state, shape.width, (1 << shape.width) - 1, shape.signed

    def __len__(self):
        return self.width


class _AmaranthPorts(_Ports):
    """Accesses the simulator's state of each signal. Amaranth's own functions `get` and `set` interpret expressions, which takes
    a quarter of the time of a test."""

    def __init__(self, component, context, domain):
        self._engine = context._engine
        ports = component.signature.flatten(component)
        super().__init__({"__".join(map(str, path)): self._handle(Value.cast(value)) for path, _, value in ports})
        self._clock, self._reset = map(self._handle, (domain.clk, domain.rst))
        self._is_new = False  # inputs have changed since the design was evaluated

    def _handle(self, signal):
        return _Handle(self._engine.state.slots[self._engine.state.get_signal(signal)])

    def _write(self, handle, value):
        value &= handle.mask
        if handle.is_signed and value > handle.mask >> 1:
            value -= handle.mask + 1
        if handle.state.next != value:
            assert not handle.state.is_comb, f"{handle.state.signal.name} is an output"
            handle.state.update(value)
            self._is_new = True

    def _read(self, handle):
        self._set_new()
        return handle.state.curr

    def _bits(self, handle):
        return f"{self._read(handle):0{handle.width}b}"

    def _set_new(self):
        """Evaluates the whole design once for all changed inputs."""
        if self._is_new:
            self._is_new = False
            self._engine.step_design()

    async def settle(self):
        self._set_new()

    async def _tick(self):
        """Sets the clock as the other inputs are set: it falls together with the next inputs. Amaranth's own clock and trigger
        take longer than many a block."""
        self._set_new()
        self._write(self._clock, 1)
        self._set_new()
        self._write(self._clock, 0)


def simulate(component, bench, *, seed, **sizes):
    """Runs a bench on a component in Amaranth's simulator, and returns the bench's result."""
    from amaranth.hdl import ClockDomain, Module
    from amaranth.sim import Simulator

    domain = ClockDomain("sync")
    m = Module()
    m.domains += domain
    m.submodules.dut = component
    results = []

    async def testbench(context):
        results.append(await bench(_AmaranthPorts(component, context, domain), random.Random(seed), **sizes))

    simulator = Simulator(m)
    simulator.add_testbench(testbench)
    simulator.run()
    return results[0]


# --- cocotb -------------------------------------------------------------------------------------------------------


class CocotbPorts(_Ports):
    """Accesses the ports of a design in a cocotb test."""

    def __init__(self, dut):
        super().__init__({handle._name: handle for handle in dut if hasattr(handle, "value") and hasattr(handle, "set")})
        self._clock, self._reset = dut.clk, dut.rst

    def _write(self, handle, value):
        handle.value = value

    def _read(self, handle):
        value = handle.value
        return int(value.to_unsigned() if hasattr(value, "to_unsigned") else value) if value.is_resolvable else None

    def _bits(self, handle):
        return str(handle.value)

    async def settle(self):
        from cocotb.triggers import Timer

        await Timer(1, "ns")

    async def _tick(self):
        await self.settle()
        self._clock.value = 1
        await self.settle()
        self._clock.value = 0
        await self.settle()


async def play(dut, component, bench, **sizes):
    """Runs a bench inside a cocotb test and returns the bench's result. `dut` is the Verilog of `component`. All inputs are 0 at
    first, and the block is reset."""
    import cocotb

    ports = CocotbPorts(dut)
    dut.clk.value = 0
    for path, member, _ in component.signature.flatten(component):
        if member.flow is In:
            ports.set(**{"__".join(map(str, path)): 0})
    await ports.settle()
    await ports.reset()
    return await bench(ports, random.Random(cocotb.RANDOM_SEED), **sizes)


# --- Values -------------------------------------------------------------------------------------------------------


_plans: dict[int, tuple] = {}  # id of a layout -> (the layout, to keep it alive; the result of _plan)


def _plan(layout):
    """Returns a list of `(name, offset, width, plan)` for the fields of a structure. `plan` describes a nested structure, or is
    None.

    The result is cached, because a layout computes its offsets again on each access.
    """
    if id(layout) not in _plans:
        fields = [
            (name, field.offset, field.width, _plan(field.shape) if isinstance(field.shape, StructLayout) else None)
            for name, field in layout
        ]
        _plans[id(layout)] = layout, fields
    return _plans[id(layout)][1]


def _pack(plan, values):
    assert values.keys() == {name for name, *_ in plan}, f"fields {', '.join(values)}, not {[name for name, *_ in plan]}"
    word = 0
    for name, offset, width, inner in plan:
        value = values[name]
        value = _pack(inner, value) if isinstance(value, dict) else int(getattr(value, "value", value))
        assert 0 <= value < 1 << width, f"{name} = {value} does not fit {width} bits"
        word |= value << offset
    return word


def pack(layout, **values):
    """Packs the fields of a structure into an int. All fields must be given."""
    return _pack(_plan(layout), values)


def unpack(layout, word):
    """Unpacks an int into the fields of a structure, as a dict of ints."""
    return {name: word >> offset & (1 << width) - 1 for name, offset, width, _ in _plan(layout)}
