"""Tests of the driver on registers in a dict."""

import asyncio

import pytest

from amaranth_tpu.hw.config import Config, from_preset
from amaranth_tpu.hw.spec.isa import Fault, Region
from amaranth_tpu.hw.spec.registers import IDENTIFIER, REGISTER, REGISTERS, STALLS, VERSION, described
from amaranth_tpu.sim.host.board import connected_config
from amaranth_tpu.sim.host.driver import CoreFault, CoreTimeout, Driver, Script


class RegisterStub:
    """Registers in a dict. A run ends after `reads` reads of the status, and the bus is idle `quiet` reads later."""

    def __init__(self, reads=3, end=0b010, quiet=0, **values):
        self.values = {register.offset: register.reset for register in REGISTERS}
        self.values[REGISTER["id"].offset], self.values[REGISTER["version"].offset] = IDENTIFIER, VERSION
        for name, value in values.items():
            self.values[REGISTER[name].offset] = value
        self.log, self.reads, self.end, self.quiet = [], reads, end, quiet

    async def read(self, offset):
        if offset == REGISTER["status"].offset:
            self.reads -= 1
            return 0b001 if self.reads > 0 else self.end | (self.reads <= -self.quiet) << 3
        return self.values[offset]

    async def write(self, offset, value):
        assert 0 <= value < 1 << 32
        self.log.append((offset, value))
        self.values[offset] = value


def writes(*pairs):
    return [(REGISTER[name].offset, value) for name, value in pairs]


def test_identify():
    port = RegisterStub(
        config=16 | 1 << 8 | 2 << 12 | 32 << 16 | 8 << 24, bias_depth=64, unified_buffer_depth=4096, features=1 | 4 << 8
    )
    found = asyncio.run(Driver(port).identify())
    assert (found["n"], found["lead"], found["latency"], found["bus_bytes"], found["in_flight"]) == (16, 1, 2, 32, 8)
    assert (found["bias_depth"], found["unified_buffer_depth"]) == (64, 4096)
    assert (found["pooling"], found["softmax"], found["table_lanes"]) == (1, 0, 4)


@pytest.mark.parametrize(
    "preset, changes",
    [("transformer", {}), ("training", dict(update_lanes=4)), ("default", dict(softmax_lanes=2, normalize=True))],
)
@pytest.mark.parametrize("weight_rows", [1, 2])
def test_a_core_is_described_by_its_registers(preset, changes, weight_rows):
    """The driver finds every option that changes a program or its cycles, except of the bus and the ring."""
    config = from_preset(preset, weight_rows=weight_rows, **changes)
    port = RegisterStub(**{name: value for name, value in described(config).items() if name in REGISTER})
    assert connected_config(asyncio.run(Driver(port).identify())) == config


def test_a_core_of_before_its_lanes_were_in_a_register():
    old = {name: value for name, value in described(Config()).items() if name in REGISTER}
    old["features"] &= 0xFFFFFF
    assert connected_config(asyncio.run(Driver(RegisterStub(**old)).identify())) == Config()


@pytest.mark.parametrize("name, value", [("id", 0), ("id", 0xFFFFFFFF), ("version", VERSION + 0x10000)])
def test_nothing_there(name, value):
    with pytest.raises(RuntimeError, match="no core here|version"):
        asyncio.run(Driver(RegisterStub(**{name: value})).identify())


def test_regions():
    port = RegisterStub()
    asyncio.run(Driver(port).configure_regions({"INPUT": (0x1_2345_6780, 100), Region.OUTPUT: (64, 32)}))
    assert port.log == writes(
        ("input_base_low", 0x23456780),
        ("input_base_high", 1),
        ("input_size", 100),
        ("output_base_low", 64),
        ("output_base_high", 0),
        ("output_size", 32),
    )


def test_start_clears_the_interrupt_first():
    port = RegisterStub()
    asyncio.run(Driver(port).start(96))
    assert port.log == writes(("pc", 96), ("interrupt", 3), ("control", 1))


def test_wait_polls_until_done():
    port = RegisterStub(reads=5)
    asyncio.run(Driver(port).wait(1000))
    assert port.reads == 0


def test_wait_for_the_interrupt():
    class Interrupted(RegisterStub):
        async def interrupt(self, cycles):
            self.asked, self.reads = cycles, 1
            return True

    port = Interrupted(reads=1000)
    asyncio.run(Driver(port).wait(77))
    assert port.asked == 77


@pytest.mark.parametrize("cause", [fault for fault in Fault if fault is not Fault.NONE])
def test_fault(cause):
    with pytest.raises(CoreFault) as caught:
        asyncio.run(Driver(RegisterStub(end=0b100, fault_cause=cause.value, fault_pc=0x40)).wait(1000))
    assert (caught.value.cause, caught.value.pc, caught.value.quiet) == (cause, 0x40, True)


@pytest.mark.parametrize("quiet, comes", [(0, True), (7, True), (10_000, False)])
def test_fault_comes_when_the_bus_is_at_rest(quiet, comes):
    port = RegisterStub(end=0b100, quiet=quiet, fault_cause=Fault.ILLEGAL.value)
    with pytest.raises(CoreFault) as caught:
        asyncio.run(Driver(port).wait(1000))
    assert caught.value.quiet == comes and ("outstanding" in str(caught.value)) != comes
    assert port.reads == -max(quiet, 1) or not comes


@pytest.mark.parametrize("quiet, comes", [(0, True), (7, True), (10_000, False)])
def test_reset_waits_for_the_bus(quiet, comes):
    port = RegisterStub(reads=0, end=0, quiet=quiet)
    assert asyncio.run(Driver(port).reset()) == comes
    assert port.reads == -max(quiet, 1) or not comes


def test_timeout():
    with pytest.raises(CoreTimeout, match="100 cycles"):
        asyncio.run(Driver(RegisterStub(reads=1000, cycles=100)).wait(100))


def test_counters():
    names = ["cycles", "busy", *(f"stall_{name}" for name in STALLS), "read_beats", "write_beats"]
    values = {name: 11 * index for index, name in enumerate(names)}
    assert asyncio.run(Driver(RegisterStub(**values)).counters()) == values


def test_reset():
    port = RegisterStub()
    asyncio.run(Driver(port).reset())
    assert port.log == writes(("control", 2), ("interrupt", 2))


def test_read_only_registers_and_unknown_ones():
    with pytest.raises(ValueError, match="cannot be written"):
        asyncio.run(Driver(RegisterStub()).write("cycles", 0))
    with pytest.raises(KeyError):
        asyncio.run(Driver(RegisterStub()).read("nonsense"))


def test_script():
    script = Script()
    asyncio.run(Driver(script).start(32))
    assert script.lines == ["w 56 32", "w 40 3", "w 32 1"]
