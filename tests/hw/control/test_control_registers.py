# amaranth: UnusedElaboratable=no
"""Tests of the control registers over AXI4-Lite against a dict, covering access kinds, strobes, unmapped addresses, and a manager
that stalls."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.control.control_registers import ControlRegisters
from amaranth_tpu.hw.spec.registers import REGISTER, REGISTERS, registers_of
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed
from suites import slow

HELD = [register for register in REGISTERS if register.access == "rw" and register.name != "interrupt"]
INPUTS = [register for register in REGISTERS if register.access == "ro" or register.name == "interrupt"]
COMMANDS = [REGISTER["control"], REGISTER["interrupt"]]


def member(register):
    """Returns the name of the port that carries the value of `register`."""
    return "__".join(map(str, register.group or (register.name,)))


async def accesses(ports, rng, *, config, eager, cycles):
    registers, inputs = registers_of(config), [register for register in INPUTS if register in registers_of(config)]
    held = {register.name: register.reset for register in HELD if register in registers}
    offsets = [register.offset for register in REGISTERS] + [0x01C, 0x080 + 0x60, 0x1FC]
    write, read = None, None  # write: [address accepted, data accepted, offset, data, strobe]; read: offset
    answers, expected = 0, []  # outstanding responses: number of writes; values of reads
    strobes, asked = {}, None
    counts = [0, 0]
    for _ in range(cycles):
        values = {register.name: rng.getrandbits(32) for register in inputs}
        if write is None and rng.random() < eager:
            strobe = rng.choice((15, rng.getrandbits(4)))
            write = [False, False, rng.choice(offsets) | rng.choice((0, 0, 3)), rng.getrandbits(32), strobe]
        if read is None and rng.random() < eager:
            read = rng.choice(offsets)
        if write:
            write[0] |= rng.random() < eager
            write[1] |= rng.random() < eager
        ready = rng.random() < eager, rng.random() < eager
        ports.set(
            **{member(register): values[register.name] for register in inputs},
            bus__awvalid=write is not None and write[0],
            bus__wvalid=write is not None and write[1],
            bus__awaddr=write[2] if write else 0,
            bus__wdata=write[3] if write else rng.getrandbits(32),
            bus__wstrb=write[4] if write else rng.getrandbits(4),
            bus__bready=ready[0],
            bus__arvalid=read is not None,
            bus__araddr=read or 0,
            bus__rready=ready[1],
        )
        await ports.settle()
        for register in registers:
            if register.name in held:
                assert ports.get(member(register)) == held[register.name], f"cycle {ports.cycle}: {register.name}"
        for register in COMMANDS:
            strobe = ports.get(f"{register.name}_written")
            assert strobe == (register.name in strobes), f"cycle {ports.cycle}: {register.name}_written"
            assert not strobe or ports.get("written_data") == strobes[register.name]
        strobes = {}
        if asked is not None:  # in this cycle the register is read
            coming, asked = held.get(asked, values.get(asked, 0)), None
        else:
            coming = None
        assert ports.get("bus__bvalid") == answers and ports.get("bus__rvalid") == bool(expected), f"cycle {ports.cycle}"
        if expected:
            assert ports.get("bus__rdata") == expected[0] and ports.get("bus__rresp") == 0
        takes = [ports.get(f"bus__{channel}ready") for channel in ("aw", "w", "ar")]
        if answers and ready[0]:
            assert ports.get("bus__bresp") == 0
            answers = 0
        if expected and ready[1]:
            expected.pop()
        if coming is not None:
            expected.append(coming)
        if read is not None and takes[2]:
            name = next((register.name for register in registers if register.offset == read), None)
            asked, read = name or "", None
            counts[0] += 1
        assert takes[0] == takes[1] and (write is not None and write[0] and write[1] or not takes[0])
        if write and takes[0]:
            register = next((register for register in registers if register.offset == write[2] & ~3), None)
            mask = sum(0xFF << 8 * byte for byte in range(4) if write[4] >> byte & 1)
            if register and register.name in held:
                held[register.name] = held[register.name] & ~mask | write[3] & mask
            if register in COMMANDS and write[4] & 1:
                strobes[register.name] = write[3]
            answers, write = 1, None
            counts[1] += 1
        await ports.tick()
    return counts


@pytest.mark.parametrize("eager, ring", [(1, True), (0.5, False), *slow((0.1, True))])
def test_random_accesses_agree_with_a_dict(eager, ring):
    config, cycles = Config(ring=ring), int(1200 / eager**0.5)
    counts = simulate(ControlRegisters(config=config), accesses, seed=seed(), config=config, eager=eager, cycles=cycles)
    assert min(counts) > (350 if eager == 1 else 30), "accesses are slower than one in three cycles" if eager == 1 else counts


def test_fields_are_packed_into_a_word():
    assert REGISTER["config"].pack(n=16, lead=2, latency=1, bus_bytes=32, in_flight=8) == 0x08201210
    assert (
        REGISTER["features"].pack(pooling=True, softmax=False, training=False, ring=False, transpose=False, table_lanes=4)
        == 0x401
    )
    assert REGISTER["features"].pack(pooling=True, softmax=True, training=True, ring=True, transpose=True, table_lanes=4) == 0x41F
    with pytest.raises(ValueError, match="interrupt has the fields enable, pending, not enable"):
        REGISTER["interrupt"].pack(enable=1)
