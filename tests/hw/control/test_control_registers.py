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
#: Ports with the fields of registers, in the order of their bits.
FIELDS = {
    "status": ["run__active", "run__done", "run__faulted", "run__quiet"],
    "interrupt": ["run__enabled", "run__pending"],
    "ring_state": ["ring_links__held", "ring_links__offered", "ring_refused"],
}
#: Ports for the commands of the written registers, by bit. `enable` is valid with `enable_written`.
COMMANDS = {"control": {0: "run__start", 1: "run__reset"}, "interrupt": {1: "run__acknowledge"}}


def described(config):
    """Returns the values of the registers that describe `config`, written from the register map of the datasheet."""
    first = {"n": 0, "lead": 8, "latency": 12, "bus_bytes": 16, "in_flight": 24}
    bits = {
        "pooling": 0,
        "softmax": 1,
        "training": 2,
        "ring": 3,
        "transpose": 4,
        "attention": 5,
        "weight_formats": 6,
        "normalize": 7,
    }
    sizes, features = (
        sum(int(getattr(config, name)) << bit for name, bit in fields.items())
        for fields in (first, bits | {"table_lanes": 8, "softmax_lanes": 24})
    )
    depths = "unified_buffer_depth", "accumulator_depth", "bias_depth", "weight_fifo_depth", "ring_depth"
    return {
        **{"id": 0x41545055, "version": 0x00010001, "config": config.weight_rows >> 1 << 31 | sizes, "features": features},
        **{name: getattr(config, name) for name in depths},
    }


def inputs_of(registers, constants):
    """Returns `{register: ports}` of the registers whose values come from other units: the ports of its fields, or one port."""
    names = [register.name for register in registers if register.access == "ro" or register.name == "interrupt"]
    return {name: FIELDS.get(name, [f"run__{name}"]) for name in names if name not in constants and not is_counter(name)}


def is_counter(name):
    return name == "busy" or name.startswith("stall_")


def outputs_of(name, value):
    """Returns `{port: value}` for a register that the core reads."""
    if name == "ring":
        return {"ring_position__rank": value & 7, "ring_position__size": value >> 8 & 15, "ring_position__flush": value >> 16 & 1}
    for index, region in enumerate(("model", "input", "output", "scratch")):
        if name.startswith(f"{region}_"):
            return {f"regions__{index}__{name.removeprefix(f'{region}_')}": value}
    return {"pc" if name == "pc" else f"run__{name}": value}


async def accesses(ports, rng, *, config, eager, cycles):
    registers, constants = registers_of(config), described(config)
    inputs = inputs_of(registers, constants)
    held = {register.name: register.reset for register in HELD if register in registers}
    offsets = [register.offset for register in REGISTERS] + [0x01C, 0x080 + 0x60, 0x1FC]
    write, read = None, None  # write: [address accepted, data accepted, offset, data, strobe]; read: offset
    answers, expected = 0, []  # outstanding responses: number of writes; values of reads
    strobes, asked = {}, None
    accepted = [0, 0]
    counts, counter = [rng.getrandbits(32) for _ in range(16)], 0  # counter: selected in the previous cycle
    for _ in range(cycles):
        widths = {name: 1 if len(places) > 1 else 3 if name == "fault_cause" else 32 for name, places in inputs.items()}
        driven = {name: [rng.getrandbits(widths[name]) for _ in places] for name, places in inputs.items()}
        values = constants | {name: sum(bit << place for place, bit in enumerate(bits)) for name, bits in driven.items()}
        values |= {register.name: counts[register.offset // 4 % 16] for register in registers if is_counter(register.name)}
        if write is None and rng.random() < eager:
            strobe = rng.choice((15, rng.getrandbits(4)))
            write = [False, False, rng.choice(offsets) | rng.choice((0, 0, 3)), rng.getrandbits(32), strobe]
        if read is None and rng.random() < eager:
            read = rng.choice(offsets) | rng.choice((0, 0, 3))
        if write:
            write[0] |= rng.random() < eager
            write[1] |= rng.random() < eager
        ready = rng.random() < eager, rng.random() < eager
        ports.set(
            **{place: value for name, places in inputs.items() for place, value in zip(places, driven[name])},
            run__count=counts[counter],
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
        for name, value in held.items():
            for place, right in outputs_of(name, value).items():
                assert ports.get(place) == right, f"cycle {ports.cycle}: {place}"
        for name, commands in COMMANDS.items():
            for bit, place in commands.items():
                right = name in strobes and strobes[name] >> bit & 1
                assert ports.get(place) == right, f"cycle {ports.cycle}: {place}"
        assert ports.get("run__enable_written") == ("interrupt" in strobes), f"cycle {ports.cycle}"
        assert "interrupt" not in strobes or ports.get("run__enable") == strobes["interrupt"] & 1
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
            name = next((register.name for register in registers if register.offset == read & ~3), None)
            asked, read = name or "", None
            accepted[0] += 1
        assert takes[0] == takes[1] and (write is not None and write[0] and write[1] or not takes[0])
        if write and takes[0]:
            register = next((register for register in registers if register.offset == write[2] & ~3), None)
            mask = sum(0xFF << 8 * byte for byte in range(4) if write[4] >> byte & 1)
            if register and register.name in held:
                held[register.name] = held[register.name] & ~mask | write[3] & mask
            if register and register.name in COMMANDS and write[4] & 1:
                strobes[register.name] = write[3]
            answers, write = 1, None
            accepted[1] += 1
        counter = ports.get("run__counter")
        await ports.tick()
    return accepted


# promise: axil-unmapped
@pytest.mark.parametrize("eager, ring", [(1, True), (0.5, False), *slow((0.1, True))])
def test_random_accesses_agree_with_a_dict(eager, ring):
    config, cycles = Config(ring=ring), int(1200 / eager**0.5)
    counts = simulate(ControlRegisters(config=config), accesses, seed=seed(), config=config, eager=eager, cycles=cycles)
    assert min(counts) > (350 if eager == 1 else 30), "accesses are slower than one in three cycles" if eager == 1 else counts


def test_fields_are_packed_into_a_word():
    assert REGISTER["config"].pack(n=16, lead=2, latency=1, bus_bytes=32, in_flight=8, weight_rows=2) == 0x88201210
    names = "pooling", "softmax", "training", "ring", "transpose", "attention", "weight_formats", "normalize"
    few = dict.fromkeys(names, False) | {"pooling": True}
    assert REGISTER["features"].pack(**few, table_lanes=4, update_lanes=0, softmax_lanes=1) == 0x1000401
    every = dict.fromkeys(names, True)
    assert REGISTER["features"].pack(**every, table_lanes=4, update_lanes=2, softmax_lanes=128) == 0x800204FF
    with pytest.raises(ValueError, match="interrupt has the fields enable, pending, not enable"):
        REGISTER["interrupt"].pack(enable=1)
