"""Tests of the C driver on registers that are backed by the instruction-level model, covering result bits, each error, and each
limit."""

import ctypes
from dataclasses import asdict, replace

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import Fault, Opcode
from amaranth_tpu.hw.spec.registers import REGISTER, STALLS
from amaranth_tpu.sim.bundle import host_model
from amaranth_tpu.sim.bundle.c_header import c_header
from amaranth_tpu.sim.functions.functions import Function
from amaranth_tpu.sim.golden.arithmetic import bfloat16, round_bfloat16
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.ir.stage import Pool, Tensor
from c_driver import BASE, ERRORS, SOURCES, Counters, Session, build_library, host_of
from graphs import random_graph
from stage_graphs import GivenStage, GivenTerm, linked

CONFIG = Config(n=4, unified_buffer_depth=256, accumulator_depth=64)
LIMIT = 50
#: Binary32 bits: zeros, subnormals, infinity, NaNs, the largest number, ties and their neighbours, the least normal number.
ODD = [0, 1 << 31, 1, 0x807FFFFF, 0x7F800000, 0xFF800001, 0x7FC00000, 0x7F7FFFFF, 0x3F808000, 0x3F818000, 0x3F808001, 0x800000]


def mlp(rng):
    def layer(name, inputs, outputs, function):
        return name, rng.normal(size=(inputs, outputs)).astype(bfloat16), rng.normal(size=outputs).astype(np.float32), function

    return dense_chain("mlp", [layer("one", 21, 9, "relu"), layer("two", 9, 5, "none")])


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    rng = np.random.default_rng(7)
    return host_of(mlp(rng), CONFIG, rng.normal(size=(3, 21)).astype(np.float32), tmp_path_factory.mktemp("driver"))


def session(host, interrupts=False, **options):
    return Session(host, host.registers(**options), interrupts)


# ---- result bits


@pytest.mark.parametrize("interrupts", [False, True])
def test_mlp(host, interrupts):
    core = session(host, interrupts, polls=5).prepare()
    host.pack(host.bundle.samples)
    assert host.bytes_of("input", host.bundle.model.input_bytes) == host.bundle.files["input.bin"]
    assert core("run", LIMIT) == "OK" and core.fences == 2
    assert host.unpack().tobytes() == host.bundle.files["results.bin"]
    assert core.registers.waited == interrupts and not core.registers.values["interrupt"]
    assert (("w", "interrupt", 3) in core.registers.log) == interrupts and ("w", "interrupt", 2) in core.registers.log
    assert core("run", LIMIT) == "OK"


@pytest.mark.parametrize("number", range(3))
def test_random_graphs_give_golden_bits(rng, number, tmp_path):
    """Random convolutional graphs match the golden model bit for bit through the C driver, with gathered windows, padding,
    strides, pooling and an incomplete batch."""
    graph = random_graph(rng, stages=2, channels=6, size=8)
    config = Config(n=4, unified_buffer_depth=1024, accumulator_depth=256)
    host = host_of(graph, config, rng.normal(size=(2, graph.input_size)).astype(np.float32), tmp_path, batch=3)
    host.pack(host.bundle.samples[:2])
    assert host.bytes_of("input", host.bundle.model.input_bytes) == host.bundle.files["input.bin"]
    assert session(host).prepare()("run", LIMIT) == "OK"
    assert host.unpack().tobytes() == host.bundle.files["results.bin"]


def test_pack_rounds_as_the_golden_model(rng, host):
    """`pack` rounds any binary32 bits as the golden model does, including NaNs, infinities, subnormals and ties, and fills unused
    lanes with 0."""
    bits = rng.integers(0, 1 << 32, (3, 21), np.uint32)
    bits[0, : len(ODD)] = ODD
    bits[1] = bits[1] & 0xFFFF0000 | 0x8000
    host.pack(bits.view(np.float32))
    expected = round_bfloat16(bits.view(np.float32)).view(np.uint16)
    found = np.frombuffer(host.bytes_of("input", host.bundle.model.input_bytes), np.uint16)
    for sample in range(3):
        lanes = [found[(tile * 3 + sample) * 4 : (tile * 3 + sample) * 4 + 4] for tile in range(6)]
        assert (np.concatenate(lanes)[:21] == expected[sample]).all() and not np.concatenate(lanes)[21:].any()


def test_bfloat16_results(rng, tmp_path):
    """A network whose last stage is a product has 16-bit outputs. `unpack` returns outputs that match the golden model bit for
    bit."""

    def term(source, inputs):
        return GivenTerm(source, rng.normal(size=(1, 1, inputs, 6)).astype(bfloat16))

    stages = GivenStage("one", "h", (term("x", 7),)), GivenStage("two", "y", (term("x", 7),), times="h")
    graph = linked("product", Tensor("x", 7), stages, output_order=rng.permutation(6))
    host = host_of(graph, CONFIG, rng.normal(size=(2, 7)).astype(np.float32), tmp_path)
    assert host.bundle.model.output_bits == 16
    host.pack(host.bundle.samples)
    assert session(host).prepare()("run", LIMIT) == "OK"
    assert host.unpack().tobytes() == host.bundle.files["results.bin"]


def test_largest(host):
    for values in ([-3, -1, -2], [0.0, -0.0], [-0.0, 0.0], [1, np.inf, 2], [-np.inf], [2, 5, 5]):
        array = np.array(values, np.float32)
        assert host.library.tpu_largest(array.ctypes.data_as(ctypes.c_void_p), len(array)) == array.argmax(), values


def test_no_such_sample(host):
    place = np.zeros(32, np.float32).ctypes.data_as(ctypes.c_void_p)
    for function, region in (("pack", "input"), ("unpack", "output")):
        assert getattr(host.library, f"tpu_{function}")(host.model, host.region(region), 3, place) == ERRORS["ARGUMENT"]


# ---- missing or different cores


@pytest.mark.parametrize("found", [0, 0xFFFFFFFF, 0x41545056])
def test_no_core(host, found):
    core = session(host, override={"id": found})
    assert core.open() == "NO_CORE" and core.core.found == found and core.core.needed == 0x41545055
    assert core.reads() == 1


@pytest.mark.parametrize("version, error", [(0x00020000, "VERSION"), (0x0000FFFF, "VERSION"), (0x00010001, "OK")])
def test_version(host, version, error):
    core = session(host, override={"version": version})
    assert core.open() == error and core.core.version == version


@pytest.mark.parametrize(
    "change, register",
    [
        ({"n": 8}, "config"),
        ({"n": 2, "bus_width": 32}, "config"),
        ({"in_flight": 4}, "config"),
        ({"unified_buffer_depth": 128}, "unified_buffer_depth"),
        ({"accumulator_depth": 32}, "accumulator_depth"),
        ({"bias_depth": 32}, "bias_depth"),
        ({"weight_fifo_depth": 32}, "weight_fifo_depth"),
        ({"bus_width": 32}, None),
        ({"unified_buffer_depth": 512, "cell_stages": 9, "in_flight": 32, "pooling": False}, None),
    ],
)
def test_configuration(host, change, register):
    """The C driver refuses a core that is smaller than the network needs, and names the register. It accepts a larger core, or
    one without features that the network does not use."""
    other = Config(**{**asdict(CONFIG), **({"weight_fifo_depth": 64} if "n" in change else {}), **change, "table_lanes": 2})
    core = session(host, config=other)
    assert core.open() == "OK"
    assert core.check() == ("CONFIGURATION" if register else "OK")
    if register:
        assert core.core.register_offset == REGISTER[register].offset and core.core.found != core.core.needed


@pytest.mark.parametrize("compiled, there, error", [(64, 64, "OK"), (64, 32, "CONFIGURATION"), (16, 64, "CONFIGURATION")])
def test_program_for_another_bus_width_is_refused(host, compiled, there, error, tmp_path):
    """On a bus wider than 32 bytes each instruction occupies a beat, so the C driver refuses a program that was compiled for
    another bus width."""
    needs = replace(host.bundle.model.needs, n=32, bus_bytes=compiled, weight_fifo_depth=2)
    header = c_header(replace(host.bundle.model, needs=needs), "model")
    core = session(replace(host, library=build_library(tmp_path, header)), config=Config(n=32, bus_width=8 * there))
    assert core.open() == "OK" and core.check() == error


def test_missing_features_are_refused(rng, tmp_path):
    """The C driver refuses a core without a feature that the network uses (pooling, function table), and accepts one without the
    others."""
    conv = GivenTerm("x", rng.normal(size=(3, 3, 1, 3)).astype(bfloat16))
    point = GivenTerm("h", rng.normal(size=(1, 1, 3, 3)).astype(bfloat16))
    first = GivenStage("one", "h", (conv,), (4, 4), pool=Pool((2, 2), (2, 2), (2, 2)))
    graph = linked("features", Tensor("x", 1, 6, 6), (first, GivenStage("two", "y", (point,), (2, 2), function=Function("tanh"))))
    host = host_of(graph, CONFIG, rng.normal(size=(1, 36)).astype(np.float32), tmp_path)
    assert host.bundle.model.needs.features == 0xFF01
    refused = [({"pooling": False}, "CONFIGURATION"), ({"table_lanes": 0}, "CONFIGURATION")]
    for change, error in [*refused, ({}, "OK"), ({"softmax": False}, "OK"), ({"table_lanes": 1}, "OK")]:
        core = session(host, config=Config(**asdict(CONFIG) | change))
        assert core.open() == "OK" and core.check() == error, change
    host.pack(host.bundle.samples)
    assert session(host).prepare()("run", LIMIT) == "OK"
    assert host.unpack().tobytes() == host.bundle.files["results.bin"]


@pytest.mark.parametrize("name", ["table_lanes", "update_lanes"])
def test_any_number_of_lanes_is_accepted(rng, tmp_path, monkeypatch, name):
    """A program that needs a unit with lanes runs on cores with any number of lanes, but not on a core without the unit."""
    monkeypatch.setattr(host_model, "_features", lambda program: {"table_lanes": 0xFF00, "update_lanes": 0xFF0000}[name])
    host = host_of(mlp(rng), CONFIG, np.zeros((1, 21), np.float32), tmp_path)
    lacking = {"table_lanes": {"table_lanes": 0}, "update_lanes": {}}[name]
    for change, error in ((lacking, "CONFIGURATION"), *(({"training": True, name: lanes}, "OK") for lanes in (1, 2, 4))):
        core = session(host, config=replace(CONFIG, **change))
        assert core.open() == "OK" and core.check() == error, change


def test_core_goes_away(host):
    core = session(host)
    assert core.open() == "OK"
    core.registers.override = dict.fromkeys(core.registers.values, 0xFFFFFFFF)
    assert core.check() == core.place() == core("start") == core("wait", LIMIT) == core("recover", LIMIT) == "DEAD_BUS"


# ---- header, image and addresses


def test_image(host):
    flipped = bytearray(host.bundle.files["model.bin"])
    assert host.library.tpu_check_image(host.model, bytes(flipped)) == 0
    flipped[len(flipped) // 2] ^= 0x80
    assert host.library.tpu_check_image(host.model, bytes(flipped)) == ERRORS["IMAGE"]


@pytest.mark.parametrize(
    "change, error",
    [
        ({}, "OK"),
        ({"input": 4}, "ADDRESS"),
        ({"output": "input"}, "ADDRESS"),
        ({"output": 1}, "ADDRESS"),
        ({"model": (1 << 64) - BASE - 8}, "ADDRESS"),
    ],
)
def test_places(host, change, error):
    core = session(host)
    assert core.open() == "OK"
    assert core.place(**{name: host.places.get(place, place) for name, place in change.items()}) == error
    if error == "OK":
        assert core.registers.values["output_base_high"] == 1
        assert core.registers.values["output_base_low"] == (BASE + host.places["output"]) & 0xFFFFFFFF
        assert core.registers.values["output_size"] == host.bundle.model.output_bytes
    assert core("place_region", 4, ctypes.c_uint64(0), 8) == "ARGUMENT"


def test_one_region(host):
    core = session(host).prepare()
    assert core("place_region", 2, ctypes.c_uint64(0x12340), 96) == "OK"
    assert core.registers.values["output_base_low"] == 0x12340 and core.registers.values["output_size"] == 96


def test_registers_that_hold_nothing(host):
    core = session(host, override={"input_base_low": 0})
    assert core.open() == "OK" and core.place() == "DEAD_BUS"
    assert core("set_timeout", 77) == "OK" and core.registers.values["timeout"] == 77


# ---- faults


def broken(host, word):
    host.memory[host.places["model"] : host.places["model"] + 32] = word.to_bytes(32, "little")


@pytest.fixture
def restored(host):
    yield host
    host.memory[host.places["model"] : host.places["model"] + 32] = host.bundle.files["model.bin"][:32]


@pytest.mark.parametrize(
    "word, error",
    [
        (0xFF, "ILLEGAL"),
        (encode(Opcode.LOAD, region=1, rows=1, offset=1 << 20), "RANGE"),
        (encode(Opcode.LOAD, region=1, rows=0), "LENGTH"),
        (encode(Opcode.MATMUL, rows0=1, rows1=1, tiles0=1, tiles1=1), "TIMEOUT"),
    ],
)
def test_faults_of_programs(restored, word, error):
    host = restored
    broken(host, word)
    core = session(host, quiet_after=3).prepare()
    assert core("run", LIMIT) == error and core.core.quiet == 1
    assert core.core.cause == ERRORS[error] - 32
    assert core("start") == "NOT_RECOVERED"
    host.memory[host.places["model"] : host.places["model"] + 32] = host.bundle.files["model.bin"][:32]
    assert core("recover", LIMIT) == "OK" and core("run", LIMIT) == "OK"


@pytest.mark.parametrize("cause", [*list(Fault)[1:], 9])
def test_faults(host, cause):
    name = {Fault.ADDRESS: "RANGE", 9: "FAULT"}.get(cause) or cause.name
    core = session(host, cause=cause, polls=2).prepare()
    assert core("run", LIMIT) == name
    assert core.core.cause == getattr(cause, "value", cause) and core.core.pc == 0x40 and core.core.quiet == 1
    core = session(host, cause=cause, quiet_after=10_000).prepare()
    before = core.reads()
    assert core("run", LIMIT) == ("DEAD_MEMORY" if cause is Fault.TIMEOUT else name) and core.core.quiet == 0
    assert core.reads() - before < 2 * LIMIT + 10
    assert core("recover", LIMIT) == "DEAD_MEMORY"


# ---- limits


def test_limit(host):
    core = session(host, polls=10_000).prepare()
    before = core.reads()
    assert core("run", LIMIT) == "LIMIT" and core.reads() - before < LIMIT + 10
    assert core("start") == core("place_region", 0, ctypes.c_uint64(0), 0) == core("set_timeout", 1) == "BUSY"
    core.registers.left = 3
    assert core("wait", LIMIT) == "OK"
    core = session(host, polls=10_000).prepare()
    assert core("run", 0) == "LIMIT" and core("recover", LIMIT) == "OK"
    core.registers.polls = 3
    assert core("run", LIMIT) == "OK"


@pytest.mark.parametrize("status", [0, 1, 9, 8, 3, 6, 16, 0xFFFFFFFF])
@pytest.mark.parametrize("cycles", [0, 0xFFFFFFFF])
def test_dead_bus(host, status, cycles):
    """If the status register stays at a value without progress, or at a value that no core has, `wait` ends with DEAD_BUS within
    its limit."""
    core = session(host).prepare()
    assert core("start") == "OK"
    core.registers.override = {"status": status, "cycles": cycles}
    before = core.reads()
    assert core("wait", LIMIT) == "DEAD_BUS" and core.reads() - before < LIMIT + 10


@pytest.mark.parametrize(
    "status, error",
    [(8, "OK"), (0, "DEAD_MEMORY"), (1, "DEAD_BUS"), (9, "DEAD_BUS"), (10, "DEAD_BUS"), (12, "DEAD_BUS"), (1 << 31, "DEAD_BUS")],
)
def test_recovery_that_does_nothing(host, status, error):
    core = session(host).prepare()
    core.registers.override = {"status": status}
    before = core.reads()
    assert core("recover", LIMIT) == error and core.reads() - before < LIMIT + 10 and core.core.quiet == (error == "OK")


def test_interrupt_handler(host):
    core = session(host, interrupts=True).prepare()
    assert core("start") == "OK"
    core.registers.read(None, 0x24)
    assert core.registers.irq
    core("interrupt")
    assert not core.registers.irq and core("wait", LIMIT) == "OK"


def test_counters(host):
    core = session(host).prepare()
    assert core("run", LIMIT) == "OK"
    counters = Counters()
    core.library.tpu_read_counters(ctypes.byref(core.core), ctypes.byref(counters))
    assert (counters.cycles, counters.busy, counters.read_beats, counters.write_beats) == (1000, 600, 17, 3)
    assert list(counters.stall) == [10 * index for index in range(len(STALLS))]


def test_texts(host):
    texts = [host.library.tpu_text(number).decode() for number in ERRORS.values()]
    assert len(set(texts)) == len(ERRORS) and "unknown error" not in " ".join(texts)
    assert host.library.tpu_text(99) == b"an unknown error"
    listed = [line.split()[0] for line in (SOURCES / "tpu.h").read_text().splitlines() if line.startswith("    TPU_ERROR_")]
    assert [name.removeprefix("TPU_ERROR_") for name in listed] == list(ERRORS)[1:]
