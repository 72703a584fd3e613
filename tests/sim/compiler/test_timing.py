"""Tests that the predicted cycles are within 1 % of the RTL's, for the networks in the tables of results and for smaller ones."""

import numpy as np
import pytest

from amaranth_tpu.hw.array.transposer import Transposer
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Format, FunctionCode, Opcode, Region, RingMode
from amaranth_tpu.sim.compiler.codegen.emitter import Emitter
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.timing.model import simulate
from amaranth_tpu.sim.compiler.timing.tile_path import TilePath
from amaranth_tpu.sim.compiler.timing.vector_port import VectorPort
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.weight_formats import FORMAT_NAMES, rounded_network
from amaranth_tpu.sim.host.inference import count_batch
from amaranth_tpu.sim.models.shipped import SHIPPED
from amaranth_tpu.sim.rtl.ports import simulate as simulate_ports
from core_runs import TINY, MemoryBuilder, image_of, run
from graphs import SHARED
from suites import slow

pytestmark = pytest.mark.search

#: Of a core that has room for the rows of the softmax programs.
SOFTMAX = {"softmax": True, "unified_buffer_depth": 256, "accumulator_depth": 64, "bias_depth": 16}
UTILISATION = [(n, batch) for n in (8, 16) for batch in (1, 8, 16, 64, 128, 256)]


def check(name, config, batch, quick=False, weights=None):
    network = rounded_network(load_network(SHIPPED[name]), weights)
    program = compile_network(network, config, batch)
    samples = np.zeros((batch, network.input_size), bfloat16)  # cycles do not depend on the values
    cycles = count_batch(program, samples, quick=quick)["cycles"]
    assert abs(program.predicted_cycles / cycles - 1) < 0.01, f"{program.predicted_cycles} cycles expected, {cycles} in the RTL"


@pytest.mark.parametrize("name, batch", slow(("d", 16), ("default", 1), ("default", 8), ("c", 2)))
def test_prediction_at_small_batches(name, batch):
    """The predicted cycles are within 1 % of the RTL's at small batches, for networks limited by weights, by operands, or by the
    shared vector port."""
    check(name, SHARED, batch, quick=True)


@pytest.mark.slow
@pytest.mark.parametrize("weights", FORMAT_NAMES)
@pytest.mark.parametrize("batch", [1, 8])
def test_prediction_of_coded_weights(batch, weights):
    check("default", Config(weight_rows=2, weight_formats=True), batch, quick=True, weights=weights)


@pytest.mark.slow
@pytest.mark.parametrize("n, batch", UTILISATION)
def test_utilisation(n, batch):
    check("default", Config(n=n), batch)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_networks(name):
    check(name, Config(), 32)


def _table_loads(config, loads):
    emitter = Emitter(config, {})
    for _ in range(3):
        emitter.emit(Opcode.LOAD_TABLE, dict(rows=64, buffer=0, word=0, first=1, linear_low=1, linear_high=1))
        for _ in range(loads):
            emitter.transfer(Opcode.LOAD, Region.INPUT, 0, 64, buffer=64)
    return emitter.ops


@pytest.mark.slow
@pytest.mark.parametrize("n", [4, *slow(8, 16)])
def test_loads_stall_table_loads(n, rng):
    """If LOADs delay a LOAD_TABLE, the timing model's cycles are within 3 % of the RTL's."""
    config, host = Config(n=n, table_lanes=4), MemoryBuilder(rng)
    given = {"INPUT": host.place(bytes(64 * config.vector_bytes))}
    programs = [_table_loads(config, loads) for loads in (0, 2)]
    images = [image_of(config, [*((op.opcode, op.fields) for op in ops), (Opcode.HALT, {})]) for ops in programs]
    runs = [{"regions": {**given, "MODEL": host.place(image)}} for image in images]
    found = [one["counters"]["cycles"] for one in run(config, host, runs, memory={"latency": 32})["runs"]]
    expected = [simulate(ops, config).cycles for ops in programs]
    assert found[1] > found[0] + 300
    assert expected == [pytest.approx(cycles, rel=0.03) for cycles in found]


def _softmax(config, rows, tiles, wide):
    """Sums of zero, then four instructions SOFTMAX of `rows` rows of `tiles` tiles, so that sums of exponentials are large."""
    emitter, format_ = Emitter(config, {}), Format(wide)
    emitter.transfer(Opcode.LOAD, Region.INPUT, 0, rows, buffer=0)
    emitter.transfer(Opcode.LOAD_WEIGHTS, Region.INPUT, 0, tiles)
    emitter.transfer(Opcode.LOAD_BIAS, Region.INPUT, 0, tiles, bias=0)
    sums = dict.fromkeys(INSTRUCTIONS[Opcode.MATMUL].widths, 0)
    counts = dict(start=1, rows0=rows, rows1=1, tiles0=tiles, tiles1=1, rows0_stride=1, tiles0_acc_stride=rows)
    emitter.emit(Opcode.MATMUL, sums | counts)
    fields = dict(rows=rows, tiles=tiles, lanes=config.n, acc_stride=rows, buffer_stride=rows * (1 + wide), format=format_)
    for _ in range(4):
        emitter.emit(Opcode.SOFTMAX, dict(acc=0, buffer=64, **fields))
    return emitter.ops


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_softmax_cycles_of_the_core(lanes, rng):
    """The timing model's cycles of programs with SOFTMAX are within 3 % of the RTL's."""
    config, host = Config(**TINY | SOFTMAX | {"softmax_lanes": lanes}), MemoryBuilder(rng)
    given = {"INPUT": host.place(bytes(4096))}
    programs = [_softmax(config, *case) for case in ((1, 1, 0), (16, 2, 0), (8, 8, 1), (4, 16, 0))]
    images = [image_of(config, [*((op.opcode, op.fields) for op in ops), (Opcode.HALT, {})]) for ops in programs]
    runs = [{"regions": {**given, "MODEL": host.place(image)}} for image in images]
    result = run(config, host, runs, memory={"latency": 32}, simulator="verilator")
    found = [one["counters"]["cycles"] for one in result["runs"]]
    expected = [simulate(ops, config).cycles for ops in programs]
    assert expected == [pytest.approx(cycles, rel=0.03) for cycles in found]


def _short(config, opcode, count):
    """Returns a MATMUL of one row, and `count` instructions that take longer to decode, or to read, than to execute."""
    emitter = Emitter(config, {})
    emitter.transfer(Opcode.LOAD, Region.INPUT, 0, 1, buffer=0)
    emitter.transfer(Opcode.LOAD_WEIGHTS, Region.INPUT, 0, 1)
    emitter.transfer(Opcode.LOAD_BIAS, Region.INPUT, 0, 1, bias=0)
    sums = dict.fromkeys(INSTRUCTIONS[Opcode.MATMUL].widths, 0)
    emitter.emit(Opcode.MATMUL, sums | dict(start=1, rows0=1, rows1=1, tiles0=1, tiles1=1))
    for _ in range(count):
        if opcode is Opcode.POOL:
            fields = dict.fromkeys(INSTRUCTIONS[opcode].widths, 0)
            counts = dict(rows0=1, rows1=1, window0=1, window1=1, lanes=config.n, buffer=8)
            emitter.emit(opcode, fields | counts | dict(function=FunctionCode.NONE, format=Format.BFLOAT16))
        else:
            emitter.transfer(opcode, Region.INPUT, 5, 16, buffer=8)
    return emitter.ops


@pytest.mark.slow
@pytest.mark.parametrize("opcode", [Opcode.POOL, Opcode.LOAD])
def test_short_instructions(opcode, rng):
    """The timing model's cycles are within 3 % of the RTL's for instructions that are limited by the decoder, and for loads that
    begin inside a block of bursts."""
    config, host = Config(**TINY | {"pooling": True}), MemoryBuilder(rng)
    ops = _short(config, opcode, 60)
    given = {"INPUT": host.place(bytes(4096))}
    image = image_of(config, [*((op.opcode, op.fields) for op in ops), (Opcode.HALT, {})])
    result = run(config, host, [{"regions": {**given, "MODEL": host.place(image)}}], memory={"latency": 32})
    assert simulate(ops, config).cycles == pytest.approx(result["runs"][0]["counters"]["cycles"], rel=0.03)


@pytest.mark.parametrize(
    "opcode, more, fields",
    [
        *((Opcode.RING, "rounds", dict(mode=mode, buffer=0, result=2048, segment=2, stride=600)) for mode in RingMode),
        (Opcode.ACTIVATE, "rows", dict(function=FunctionCode.NONE, format=Format.BFLOAT16, lanes=4, acc=0, buffer=0)),
        (Opcode.STORE, "rows", dict(region=Region.OUTPUT, offset=0, buffer=0)),
    ],
)
def test_instructions_alone_take_their_ideal_time(opcode, more, fields):
    """Without other instructions, rows or rounds take as many cycles as in an ideal simulation, which has other fixed costs."""
    found = []
    for ideal in (True, False):
        cycles = []
        for count in (100, 300):
            emitter = Emitter(Config(n=4, training=True, ring=True), {Region.OUTPUT: 512})
            emitter.emit(opcode, fields | {more: count})
            cycles.append(simulate(emitter.ops, emitter.config, ideal=ideal, cores=4).cycles)
        found.append(cycles[1] - cycles[0])
    assert found[0] == pytest.approx(found[1], abs=2) and found[0] >= 200


@pytest.mark.parametrize("n", [2, 8])
def test_tiles_pass_the_transposer(n):
    """From the last vector of a tile that arrives to the last one in the weight FIFO, the timing model counts the cycles of the
    transposer."""

    async def bench(ports, rng):
        left = []
        for cycle in range(4 * n + 8):
            ports.set(i_valid=cycle < n, transpose=0)
            await ports.settle()
            left += [cycle] * ports.get("o_valid")
            await ports.tick()
        assert len(left) == n
        return left[-1] - (n - 1)

    path = TilePath(Config(n=n))
    assert path.pass_on(100) - 100 == simulate_ports(Transposer(n=n), bench, seed=0)
    assert TilePath(Config(n=n, attention=False)).pass_on(100) == 100


@pytest.mark.parametrize("coded", [False, True])
def test_few_tiles_are_urgent(coded):
    """Tiles have priority if less than 64 vectors are on their way and, if tiles can be coded, the FIFO has less than half of
    its tiles, or than the tiles that the array takes in 64 cycles."""
    path = TilePath(Config(n=8, weight_rows=2, weight_formats=coded, weight_fifo_depth=16))
    on_their_way = [path.is_urgent(count, [200] * count, 100) for count in (0, 7, 8)]
    stored = [path.is_urgent(count, [50] * count, 100) for count in (7, 8)]
    assert on_their_way == [True, True, False] and stored == [True, False]
    assert path.is_urgent(8, [50] * 4 + [200] * 4, 100) == coded


# --- The vector port, by hand


def ends(port, limit=1000):
    """Advances `port` as the compiler does, to the next cycle with an event. Returns the last cycles of the results and of the
    store."""
    now = 0
    while (wake := port.advance(now)) is not None:
        assert now < wake < limit
        now = wake
    return port.result_end, port.store_end


def test_port_without_loads():
    port = VectorPort(1)
    port.begin_results(20, 20)
    assert ends(port) == (20, 0)
    port = VectorPort(1)
    port.begin_results(20, 20)
    port.begin_store(5)
    assert ends(port) == (20, 25)  # a result in every cycle leaves no cycle for the store
    port = VectorPort(1)
    port.begin_results(20, 5)
    port.begin_store(15)
    assert ends(port) == (20, 20)  # a result every fourth cycle does


def test_port_with_loads():
    port = VectorPort(1)
    port.load(10, 40)
    port.begin_results(20, 20)
    port.begin_store(5)
    assert ends(port) == (50, 55)
    port = VectorPort(1)
    port.load(10, 40)
    port.begin_results(20, 5)  # meanwhile three rows are read that give no vector
    assert ends(port)[0] == pytest.approx(48, abs=2)


@pytest.mark.parametrize(
    "ring, results, store, load, expected",
    [
        ((30, 20), None, 0, None, 30),
        ((30, 30), (20, 20), 0, None, 50),  # a result in every cycle leaves no cycle for the ring
        ((20, 20), (20, 5), 0, None, 25),  # a result every fourth cycle leaves 15 of 20
        ((40, 20), None, 20, None, 40),
        ((40, 40), None, 0, (10, 40), 70),
        ((40, 40), None, 0, (39, 60), 61),  # the last cycle follows the load
    ],
)
def test_port_with_an_exchange(ring, results, store, load, expected):
    port = VectorPort(1)
    if load:
        port.load(*load)
    port.begin_ring(*ring)
    if results:
        port.begin_results(*results)
    if store:
        port.begin_store(store)
    _, stored = ends(port)
    assert port.ring_end == expected and stored == (40 if store else 0)


def test_the_last_vector_follows_a_load():
    port = VectorPort(1)
    port.load(39, 60)
    port.begin_store(40)
    assert ends(port) == (0, 61)
    port = VectorPort(1)
    port.load(39, 60)
    port.begin_results(40, 40)
    assert ends(port) == (61, 0)


def test_port_of_a_narrow_bus():
    """On a bus of half a vector, a load uses the vector port every other cycle, and a store reads a vector every other cycle."""
    port = VectorPort(2)
    port.load(0, 100)
    port.begin_results(20, 20)
    assert ends(port) == (40, 0)
    port = VectorPort(2)
    port.begin_store(10)
    assert ends(port) == (0, 20)
