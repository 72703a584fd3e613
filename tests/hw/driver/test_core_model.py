"""Tests of the C model of the core behind the driver's port: registers, runs, rings, and a host program on a PC."""

import ctypes
import re

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Fault, Opcode, Region
from amaranth_tpu.hw.spec.registers import IDENTIFIER, REGISTER, REGISTERS, VERSION
from amaranth_tpu.sim.bundle.bundle import make_bundle
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.golden.c_machine import CCore, CMachine, CMachineRing
from amaranth_tpu.sim.golden.isa_check import MachineFault
from amaranth_tpu.sim.ir.graph import dense_chain
from c_driver import BASE, SOURCES, Session, compile_c, host_of
from command import captured
from core_networks import bfloat16s
from core_runs import FULL, SMALL
from machine_programs import HALT, program

RUNNING, DONE, FAULT, QUIET = 1, 2, 4, 8
START, RESET = 1, 2


class ModelRegisters:
    """Registers of the C model in the form that :class:`c_driver.Session` takes."""

    def __init__(self, core):
        self.core = core
        self.read = lambda context, offset: core.library.tpu_core_read(core.pointer, offset)
        self.write = lambda context, offset, value: core.library.tpu_core_write(core.pointer, offset, value)
        self.wait = lambda context: core.library.tpu_core_wait(core.pointer)


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    rng = np.random.default_rng(3)
    network = dense_chain("net", [("a", bfloat16s(rng, (6, 5), 0), None, "relu"), ("b", bfloat16s(rng, (5, 3), 0), None, "none")])
    config = Config(n=4, unified_buffer_depth=64, accumulator_depth=16, ring=True)
    return host_of(network, config, bfloat16s(rng, (3, 6), 0).astype(np.float32), tmp_path_factory.mktemp("host"))


def session_of(host, **options):
    core = CCore(host.config)
    core.map_memory(0, BASE, ctypes.sizeof(host.memory), ctypes.addressof(host.memory))
    return Session(host, ModelRegisters(core), **options)


@pytest.mark.parametrize("interrupts", [False, True])
def test_driver_runs_a_network(host, interrupts):
    """The C driver accepts the model as a core, polls or waits for its interrupt, and reads the golden model's results."""
    session = session_of(host, interrupts=interrupts).prepare()
    host.pack(host.bundle.samples)
    assert session("run", 1) == ("OK" if interrupts else "LIMIT")
    assert interrupts or session("wait", 1) == "OK"
    assert np.array_equal(host.unpack(), host.bundle.results)
    registers = session.registers.core
    assert registers.read("cycles") == registers.read("busy") + sum(
        registers.read(one.name) for one in REGISTERS if one.name.startswith("stall")
    )
    assert registers.read("write_beats") * host.config.bus_bytes == host.bundle.samples.shape[0] * 4 * 4  # a row of binary32 each


def test_driver_sees_faults(host):
    """A region beyond memory gives BUS_READ or BUS_WRITE, a wrong instruction ILLEGAL, a short timeout TIMEOUT. A run after a
    fault needs a reset."""
    session = session_of(host).prepare()
    for region, error in ((1, "BUS_READ"), (2, "BUS_WRITE")):
        size = (host.bundle.model.input_bytes, host.bundle.model.output_bytes)[region - 1]
        assert session("place_region", region, ctypes.c_uint64(0x5000_0000), size) == "OK"
        assert session("run", 9) == error and session.core.pc % host.config.instruction_bytes == 0
        assert session("start") == "NOT_RECOVERED" and session("recover", 9) == session.place() == "OK"
    assert session("set_timeout", 4) == "OK" and session("run", 9) == "TIMEOUT"
    assert session("recover", 9) == session("set_timeout", 1 << 20) == "OK"
    host.memory[host.places["model"]] ^= 0xFF
    assert session("run", 9) == "ILLEGAL" and session.core.pc == 0
    host.memory[host.places["model"]] ^= 0xFF
    assert session("recover", 9) == session("run", 9) == "OK"


@pytest.mark.parametrize("config", [FULL, SMALL], ids=["full", "small"])
def test_register_map(config, rng):
    """After power-up each register has its reset value, or describes the core. Afterwards only the `rw` registers hold what is
    written, and the addresses between registers read as 0."""
    core = CCore(config)
    built = {"id": IDENTIFIER, "version": VERSION, "status": QUIET}
    for name in ("unified_buffer_depth", "accumulator_depth", "bias_depth", "weight_fifo_depth", "ring_depth"):
        built[name] = getattr(config, name)
    for name in ("config", "features"):
        values_of = {field: int(getattr(config, field)) for field in REGISTER[name].fields}
        if "weight_rows" in values_of:
            values_of["weight_rows"] &= 2  # one row is 0, as in older cores
        built[name] = REGISTER[name].pack(**values_of)
    expected = {register.offset: built.get(register.name, register.reset) for register in REGISTERS}
    expected |= {one.offset: 0 for one in REGISTERS if one.needs and not getattr(config, one.needs)}

    def values():
        return {offset: core.library.tpu_core_read(core.pointer, offset) for offset in range(0, 0x400, 4)}

    assert values() == dict.fromkeys(range(0, 0x400, 4), 0) | expected
    for offset in set(range(0, 0x400, 4)) - {REGISTER["control"].offset}:
        value = int(rng.integers(1 << 32)) | 2
        core.library.tpu_core_write(core.pointer, offset, value)
        register = next((one for one in REGISTERS if one.offset == offset), None)
        if register and register.access == "rw" and (not register.needs or getattr(config, register.needs)):
            expected[offset] = value & 1 if register.name == "interrupt" else value
            if register.name == "ring" and value >> 16 & 1:  # a flush
                expected[REGISTER["ring_state"].offset] = 0
    assert values() == dict.fromkeys(range(0, 0x400, 4), 0) | expected


def test_life_of_a_run():
    """A run shows as running for two looks, in which a start is ignored. A fault stays until a reset; the reset clears it and the
    interrupt, but not the other registers."""
    machine = CMachine(SMALL, {Region.MODEL: program(SMALL, HALT, 0xFF)})
    core = machine.core
    machine.run()
    core.write("interrupt", 3)
    core.write("control", START)
    assert core.library.tpu_core_irq(ctypes.c_void_p(core.pointer)) == 1
    core.write("pc", 32)
    core.write("control", START)  # ignored: the run shows as running
    assert [core.read("status") for _ in range(4)] == [RUNNING, RUNNING, DONE | QUIET, DONE | QUIET]
    core.write("control", START)
    core.library.tpu_core_wait(core.pointer)
    assert core.read("status") == FAULT | QUIET
    assert (core.read("fault_cause"), core.read("fault_pc")) == (Fault.ILLEGAL.value, 32)
    core.write("pc", 0)
    core.write("control", START)  # ignored: a fault
    assert core.read("status") == FAULT | QUIET and core.read("interrupt") == 3
    core.write("control", RESET)
    assert core.read("status") == QUIET and core.read("interrupt") == 1 and core.read("model_size") == 64
    assert core.read("fault_cause") == core.read("fault_pc") == 0


@pytest.mark.parametrize(
    "base, size, faulty",
    [(0, 64, False), (8, 64, False), (4, 64, True), (1 << 40, 64, True), ((1 << 40) - 64, 64, False), ((1 << 40) - 32, 64, True)],
)
def test_regions_outside_the_address_space(base, size, faulty):
    """A region that is not on a bus beat, or that exceeds the address space of the bus, has no bytes, as in the RTL."""
    core, image = CCore(SMALL, address_width=40), ctypes.create_string_buffer(program(SMALL, HALT).ljust(64, b"\0"), 64)
    core.map_memory(0, base, 64, ctypes.addressof(image))
    for part, value in (("base_low", base & 0xFFFFFFFF), ("base_high", base >> 32), ("size", size)):
        core.write(f"model_{part}", value)
    core.write("control", START)
    core.library.tpu_core_wait(core.pointer)
    assert core.read("fault_cause") == (Fault.ADDRESS.value if faulty else 0)


# ---- rings


def _ring_program(**fields):
    fields = dict(segment=1, rounds=1, result=8) | fields
    return program(FULL, (Opcode.LOAD, dict(region=Region.INPUT, rows=8)), (Opcode.RING, fields), HALT)


def _started_ring(starts):
    """Returns a ring of three cores, of which the cores `starts` have started a RING and the others have not."""
    regions = [{Region.MODEL: _ring_program(), Region.INPUT: bytes(range(64))} for _ in range(3)]
    ring = CMachineRing(FULL, regions)
    for rank in starts:
        ring.machines[rank].held = ring.machines[rank].start(0)
    return ring


def test_core_waits_for_the_others_to_start():
    """A RING completes when the last core of the ring starts, in whatever order they do."""
    ring = _started_ring([2, 0])
    assert [machine.core.read("status") for machine in ring.machines for _ in range(4)] == [RUNNING] * 4 + [QUIET] * 4 + [
        RUNNING
    ] * 4
    ring.machines[1].held = ring.machines[1].start(0)
    for machine in ring.machines:
        assert machine.end() is None and machine.core.read("ring_sent") == machine.core.read("ring_received") == 8
        assert machine.buffer[8].any()


def test_core_that_waits_too_long_gives_timeout():
    """A core whose neighbours never start gives TIMEOUT after `timeout` looks at its status; then its RINGs are refused until a
    flush."""
    ring = _started_ring([0])
    core = ring.machines[0].core
    core.write("timeout", 50)
    looks = next(number for number in range(100) if core.read("status") != RUNNING)
    assert 48 <= looks <= 52 and core.read("fault_cause") == Fault.TIMEOUT.value
    assert core.read("ring_state") == 4
    with pytest.raises(MachineFault, match="RING at pc 0x20"):
        ring.run()
    ring.flush()
    assert core.read("ring_state") == 0
    ring.run()


def test_reset_of_a_waiting_core_refuses_rings():
    ring = _started_ring([0])
    core = ring.machines[0].core
    core.write("control", RESET)
    assert core.read("status") == QUIET and core.read("ring_state") == 4
    core.write("ring", 1 << 16)
    assert core.read("ring_state") == 0


def test_new_core_refuses_rings():
    """A new core is in the state after `aresetn`: its RINGs need a flush."""
    core = CMachine(FULL, {}, rank=0, size=2).core
    assert core.read("ring_state") == 4
    core.write("ring", 1 << 16)
    assert core.read("ring_state") == 0


# ---- a program on a PC


def test_program_on_a_pc(rng, tmp_path):
    """The host program of the README runs a network with the golden model's bits. Compilers warn of nothing in it, in the driver
    and in the model. `test_linux_port.py` runs the same sources with the sanitizers."""
    network = dense_chain(
        "net", [("a", bfloat16s(rng, (9, 7), 0.05), None, "relu"), ("b", bfloat16s(rng, (7, 4), 0), None, "none")]
    )
    config = Config(n=4, unified_buffer_depth=64, accumulator_depth=16)
    bundle = make_bundle(network, compile_network(network, config, 5), bfloat16s(rng, (5, 9), 0).astype(np.float32))
    for name, data in bundle.files.items():
        (tmp_path / name).write_bytes(data)
    flags = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-pedantic"]
    flags += [f"-I{folder}" for folder in (SOURCES, SOURCES / "core", tmp_path)]
    sources = [SOURCES / name for name in ("tpu.c", "tpu_data.c", "example_batch.c", "example_pc.c")]
    compile_c("gcc", *flags, *sources, *sorted((SOURCES / "core").glob("*.c")), "-o", tmp_path / "run")
    done = captured([tmp_path / "run", tmp_path])
    assert done.stdout.splitlines()[-1:] == ["0 of 5 samples differ from the golden model"], done.stderr
    assert (done.stderr, done.returncode) == ("", 0)
    results = bundle.files["results.bin"]
    (tmp_path / "results.bin").write_bytes(results[:-1] + bytes([results[-1] ^ 1]))
    done = captured([tmp_path / "run", tmp_path])
    assert "\n1 of 5 samples differ" in done.stdout and done.returncode == 1


def test_readme_names_the_functions_of_the_model():
    """Every function and type of the core that the README names is declared in `tpu_core.h`."""
    readme, header = ((SOURCES / name).read_text() for name in ("README.md", "core/tpu_core.h"))
    named = set(re.findall(r"tpu_core_\w+", readme))
    assert len(named) > 6 and named <= set(re.findall(r"tpu_core_\w+", header))
