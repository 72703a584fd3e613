"""The whole core: networks, hazards, bad programs, bad buses, and what a run leaves behind."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from seeds import SEED, seed

from hw import export
from hw.config import Config
from hw.isa import FIELDS, TABLE_ENTRIES, Format, Function, Opcode, Region, decode, encode, exists
from sim.compiler import compile_network
from sim.golden import bfloat16, matmul, run_network
from sim.machine import Machine, MachineFault
from sim.network import Dense, Network
from sim.runner import Simulation, Simulators, build_directory, read_dump, write_image
from sim.softmax import softmax

#: Small buffers, so that everything collides.
TINY = dict(n=4, unified_buffer_depth=32, accumulator_depth=16, bias_depth=4, weight_fifo_depth=8)
SMALL = Config(**TINY)
#: With everything that is optional.
FULL = Config(**TINY, pooling=1, table_lanes=2, softmax=1)
SIZES = [dict(cell_stages=1, window=4), dict(cell_stages=8, bus_width=32), dict(weight_fifo_depth=2, window=32, cell_stages=5),
         dict(n=2, bus_width=32, weight_fifo_depth=4, cell_stages=2, address_width=40), dict(n=8, weight_fifo_depth=2),
         dict(pooling=1, cell_stages=5), dict(n=8, table_lanes=1), dict(n=2, pooling=1, table_lanes=2, bus_width=32),
         dict(n=8, softmax=1, cell_stages=8), dict(n=2, softmax=1, pooling=1, bus_width=32)]
SMALLEST = dict(unified_buffer_depth=8, accumulator_depth=4, bias_depth=2, weight_fifo_depth=2)
MEMORY = 1 << 18
BAD = 0x3F000       # where an erroneous bus has its bad addresses
SLOW, PAUSED = {"latency": 200}, {"latency": 7, "pause_percent": 40}


@pytest.fixture
def rng(request):
    return np.random.default_rng([seed(), *request.node.name.encode()])


# --- Runs ---------------------------------------------------------------------------------------------------------

class Host:
    """Host memory under construction: full of random bytes, so that a stray write shows."""

    def __init__(self, rng, size=MEMORY):
        self.bytes = bytearray(rng.bytes(size))
        self.end = 64

    def place(self, data, gap=64):
        """`[base, size]` of a fresh window with these bytes in it, on a boundary of 256 bytes."""
        base = -(-self.end // 256) * 256
        self.end = base + len(data) + gap
        assert self.end <= len(self.bytes), "the host memory of the test is too small"
        self.bytes[base:base + len(data)] = data
        return [base, len(data)]


verilog_of = functools.cache(export.to_verilog)


def run(config, host, runs, *, simulator="icarus", memory=None, verilog=None, timeout=300):
    """Runs on the core, one after the other; the memory afterwards is in `memory`."""
    simulation = Simulation.of_core(verilog or verilog_of(config), config, simulator=simulator,
                                    memory_bytes=len(host.bytes))
    place = build_directory() / "runs"
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="core-", dir=place) as name:
        folder, beat = Path(name), config.bus_bytes
        write_image(folder / "memory.hex", host.bytes, beat)
        result = simulation.run(
            "sim.bench_core", timeout=timeout, seed=SEED & 0x7FFFFFFF,
            plusargs={"memory": folder / "memory.hex", "dump": folder / "dump.hex", "pause_seed": SEED & 0xFFFFFF,
                      **(memory or {})},
            arguments={"runs": runs, "window": [0, len(host.bytes) // beat - 1]})
        lines = (folder / "dump.hex").read_text().splitlines()
        assert not any("x" in line.lower() for line in lines if not line.startswith("//")), "unknown bits were written"
        result["memory"] = read_dump(folder / "dump.hex", beat)
    assert result["protocol_errors"] == 0
    return result


def same(expected, found):
    expected, found = np.frombuffer(bytes(expected), np.uint8), np.frombuffer(bytes(found), np.uint8)
    wrong = np.flatnonzero(expected != found)
    assert not len(wrong), f"{len(wrong)} bytes of memory differ, the first at {wrong[0]:#x}, the last at {wrong[-1]:#x}"


# --- Networks -----------------------------------------------------------------------------------------------------

SPECIALS = np.array([0x0000, 0x8000, 0x0001, 0x807F, 0x0080, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0xFF81], np.uint16)


def numbers(rng, shape, specials):
    values = rng.normal(size=shape).astype(bfloat16).view(np.uint16)
    return np.where(rng.random(shape) < specials, rng.choice(SPECIALS, shape), values).astype(np.uint16).view(bfloat16)


def random_network(rng, specials, most=40):
    widths = rng.integers(1, most, rng.integers(2, 5))
    layers = []
    for index, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        bias = None
        if rng.random() < 0.7:
            bias = (rng.normal(size=outputs)).astype(np.float32)
            odd = rng.choice(np.array([0x80000000, 0x00000001, 0x7F7FFFFF, 0x7F800000, 0xFFC12345, 0x00800000], np.uint32),
                             outputs)
            bias = np.where(rng.random(outputs) < specials, odd, bias.view(np.uint32)).astype(np.uint32).view(np.float32)
        layers.append(Dense(f"layer{index}", numbers(rng, (inputs, outputs), specials), bias,
                            str(rng.choice(["relu", "none"]))))
    return Network("random", int(widths[0]), tuple(layers))


def network_runs(rng, config, host, count, most=40, largest=10):
    """Runs of random networks, and a check of their results."""
    runs, checks = [], []
    for index in range(count):
        network = random_network(rng, 0.03 if index % 2 else 0.0, most)
        batch = int(rng.integers(1, largest))
        samples = numbers(rng, (batch, network.input_size), 0.03 if index % 2 else 0.0)
        program = compile_network(network, config, batch)
        regions = {"MODEL": host.place(program.model), "INPUT": host.place(program.pack_input(samples)),
                   "OUTPUT": host.place(bytes(program.output_bytes)), "SCRATCH": host.place(bytes(program.scratch_bytes))}
        runs.append({"regions": regions, "timeout": 20_000})
        expected = run_network(network, samples)
        checks.append((program, regions["OUTPUT"], expected))
        images = [host.bytes[base:base + size] for base, size in regions.values()]
        machine = Machine(config, dict(zip(map(Region.__getitem__, regions), images)))
        machine.run()
        assert (program.unpack_output(images[2]).view(np.uint32) == expected.view(np.uint32)).all(), "the program is wrong"

    def check(result):
        assert [one["fault"] for one in result["runs"]] == [None] * len(runs)
        for program, (base, size), expected in checks:
            found = program.unpack_output(result["memory"][base:base + size])
            assert (found.view(np.uint32) == expected.view(np.uint32)).all(), program.plan
    return runs, check


def check_networks(rng, config, count, *, simulator="icarus", memory=None, most=40, size=MEMORY):
    host = Host(rng, size)
    runs, check = network_runs(rng, config, host, count, most)
    check(run(config, host, runs, simulator=simulator, memory=memory))


@pytest.mark.parametrize("simulator", Simulators)
@pytest.mark.parametrize("memory", [{"latency": 1}, {"latency": 32}, SLOW, PAUSED], ids=str)
def test_networks(rng, simulator, memory):
    check_networks(rng, SMALL, 3 if simulator == "icarus" else 12, simulator=simulator, memory=memory)


@pytest.mark.parametrize("sizes", [*SIZES, SMALLEST], ids=str)
def test_sizes(rng, sizes):
    check_networks(rng, Config(**{**TINY, **sizes}), 3, memory={"latency": 9, "pause_percent": 15}, most=24)


@pytest.mark.slow
@pytest.mark.parametrize("simulator", Simulators)
@pytest.mark.parametrize("n", [4, 8, 16, 32])
def test_the_size_of_the_array_does_not_show(n, simulator):
    """The same networks, the same samples and the same bits, whatever n, latency and pauses."""
    seed()
    if n == 32 and simulator == "icarus":
        pytest.skip("too slow")
    for memory in ({"latency": 1}, {"latency": 32}, SLOW, PAUSED):
        check_networks(np.random.default_rng(SEED), Config(n=n), 3 if simulator == "icarus" else 12, simulator=simulator,
                       memory=memory, most=100, size=1 << 22)


def without_initial_values(monkeypatch, config):
    """Verilog in which nothing has a value before the reset."""
    script = export._SCRIPT.replace("\nproc -norom\n", "\nproc -norom\nsetattr -unset init w:*\n")
    assert script != export._SCRIPT
    with monkeypatch.context() as context:
        context.setattr(export, "_SCRIPT", script)
        text = export.to_verilog(config)
    assert "initial" not in text and not [line for line in text.splitlines() if line.strip().startswith("reg") and "=" in line]
    return text


def test_reset_is_complete(rng, monkeypatch):
    """Nothing relies on initial values, of which an ASIC has none."""
    for sizes in ({}, SIZES[1]):
        config = Config(**{**TINY, **sizes})
        host = Host(rng)
        runs, check = network_runs(rng, config, host, 2, most=16)
        check(run(config, host, runs, memory={"latency": 3}, verilog=without_initial_values(monkeypatch, config)))


def test_reset_of_everything_optional_is_complete(rng, monkeypatch):
    check_hazards(rng, FULL, 2, verilog=without_initial_values(monkeypatch, FULL))


# --- Programs -----------------------------------------------------------------------------------------------------

def words_of(program):
    return [word if isinstance(word, int) else encode(word[0], **word[1]) for word in program]


def image_of(config, program):
    return b"".join(word.to_bytes(config.instruction_bytes, "little") for word in words_of(program))


def op(opcode, **fields):
    return opcode, fields


class Case:
    """A program with regions of its own, and what the model of the machine makes of it."""

    #: Bytes of INPUT, OUTPUT and SCRATCH.
    sizes = {"INPUT": 1024, "OUTPUT": 2048, "SCRATCH": 512}

    def __init__(self, rng, host, machine, program, *, model_bytes=None, pc=0, timeout=20_000):
        self.program, self.pc = program, pc
        contents = {name: (rng.normal(size=size // 2) / 4).astype(bfloat16).tobytes() for name, size in self.sizes.items()}
        contents["MODEL"] = image_of(machine.config, program)[:model_bytes]
        regions = {name: host.place(data) for name, data in contents.items()}
        self.run = {"regions": regions, "pc": pc, "timeout": timeout, "limit": 200_000}
        machine.regions = {Region[name]: bytearray(data) for name, data in contents.items()}
        self.fault = None
        try:
            machine.run(pc)
        except MachineFault as fault:
            self.fault = [fault.cause.name, fault.pc]
        self.after = {name: bytes(machine.regions[Region[name]]) for name in contents}
        self.tiles_left = sum(map(len, machine._tiles))

    def write(self, memory):
        """Puts what the run is to leave behind into an image of the memory."""
        for name, data in self.after.items():
            base, size = self.run["regions"][name]
            memory[base:base + size] = data


def initialisation(config):
    """Gives every row on the chip a value."""
    n, depth = config.n, config.unified_buffer_depth
    rows = min(depth, Case.sizes["INPUT"] // (2 * n))
    assert config.accumulator_depth <= rows == depth
    return [op(Opcode.LOAD, region=Region.INPUT, rows=rows),
            op(Opcode.LOAD_BIAS, region=Region.INPUT, rows=config.bias_depth),
            op(Opcode.LOAD_WEIGHTS, region=Region.INPUT, rows=1),
            op(Opcode.MATMUL, start=1, rows0=config.accumulator_depth, rows0_stride=1, rows1=1, tiles0=1, tiles1=1)]


def whole_table(config):
    """Fills the function table, which is as undefined after power-up as the rest, but is kept from run to run."""
    n, rows = config.n, min(config.unified_buffer_depth, Case.sizes["INPUT"] // (2 * config.n))
    for entry in range(0, TABLE_ENTRIES, rows * n):
        offset = entry // (rows * n) % (Case.sizes["INPUT"] // (2 * n * rows)) * 2 * n * rows
        yield op(Opcode.LOAD, region=Region.INPUT, rows=rows, offset=offset)
        yield op(Opcode.LOAD_TABLE, rows=rows, entry=entry, first=120, linear_low=1, linear_high=2)


def revelation(config):
    """Stores every row on the chip in OUTPUT; biases by way of a product."""
    n, depth, sums = config.n, config.unified_buffer_depth, config.accumulator_depth
    whole = dict(format=Format.BINARY32, lanes=n)
    assert 2 * sums <= depth and 2 * n * (depth + 2 * sums + 2 * config.bias_depth) <= Case.sizes["OUTPUT"]
    return [op(Opcode.STORE, region=Region.OUTPUT, rows=depth),
            op(Opcode.ACTIVATE, rows=sums, **whole),
            op(Opcode.STORE, region=Region.OUTPUT, offset=2 * n * depth, rows=2 * sums),
            op(Opcode.LOAD, region=Region.INPUT, rows=1),
            op(Opcode.MATMUL, start=1, keep=1, rows0=1, rows1=1, tiles0=config.bias_depth, tiles0_acc_stride=1, tiles1=1),
            op(Opcode.ACTIVATE, rows=config.bias_depth, **whole),
            op(Opcode.STORE, region=Region.OUTPUT, offset=2 * n * (depth + 2 * sums), rows=2 * config.bias_depth),
            op(Opcode.HALT)]


class Hazards:
    """Random legal programs in which everything touches what everything else touches."""

    def __init__(self, rng, config):
        self.rng, self.config, self.tiles, self.program = rng, config, 0, []
        self.functions = [function for function in Function if exists(config, function)]
        self.has_table = not config.table_lanes

    def below(self, bound):
        return int(self.rng.integers(0, bound))

    def chance(self, probability):
        return bool(self.rng.random() < probability)

    def host(self, region, row_bytes, most=6):
        """A random place in a region: region, offset, rows."""
        size, bus = Case.sizes[region.name], self.config.bus_bytes
        rows = 1 + self.below(min(most, size // row_bytes))
        return dict(region=region, rows=rows, offset=self.below((size - rows * row_bytes) // bus + 1) * bus)

    def rows(self, depth, rows):
        return self.below(depth - rows + 1)

    def load(self, region=None):
        region = region or (Region.SCRATCH if self.chance(0.6) else Region.INPUT)
        fields = self.host(region, 2 * self.config.n)
        self.program.append(op(Opcode.LOAD, **fields, buffer=self.rows(self.config.unified_buffer_depth, fields["rows"])))

    def load_bias(self):
        fields = self.host(Region.SCRATCH if self.chance(0.6) else Region.INPUT, 4 * self.config.n, self.config.bias_depth)
        self.program.append(op(Opcode.LOAD_BIAS, **fields, bias=self.rows(self.config.bias_depth, fields["rows"])))

    def load_weights(self, tiles=None):
        n = self.config.n
        if tiles is None and self.tiles + 3 > self.config.weight_fifo_depth:
            return
        region = Region.SCRATCH if self.chance(0.6) else Region.INPUT
        while tiles is None or tiles > 0:
            fields = self.host(region, 2 * n * n, min(3, tiles or 3))
            self.program.append(op(Opcode.LOAD_WEIGHTS, **fields))
            self.tiles += fields["rows"]
            if tiles is None:
                return
            tiles -= fields["rows"]

    def store(self):
        fields = self.host(Region.SCRATCH if self.chance(0.7) else Region.OUTPUT, 2 * self.config.n)
        self.program.append(op(Opcode.STORE, **fields, buffer=self.rows(self.config.unified_buffer_depth, fields["rows"])))

    def matmul(self):
        config = self.config
        f = dict(start=self.below(2), keep=int(self.chance(0.3)), rows0=1 + self.below(4), rows1=1 + self.below(3),
                 tiles0=1 + self.below(3), tiles1=1 + self.below(2))
        f.update({name: self.below(3) for name in (
            "rows0_stride", "rows1_stride", "tiles0_stride", "tiles1_stride", "tiles0_acc_stride", "tiles1_acc_stride")})
        f["tiles0"] = min(f["tiles0"], config.bias_depth)
        buffer = sum((f[name] - 1) * f[name + "_stride"] for name in ("rows0", "rows1", "tiles0", "tiles1"))
        acc = sum((f[name] - 1) * f[name + "_acc_stride"] for name in ("tiles0", "tiles1")) + f["rows0"] * f["rows1"]
        if acc > config.accumulator_depth or buffer >= config.unified_buffer_depth:
            return
        f["buffer"] = self.below(config.unified_buffer_depth - buffer)
        f["acc"] = self.rows(config.accumulator_depth, acc)
        f["bias"] = self.rows(config.bias_depth, f["tiles0"])
        if not f["keep"]:
            needed = f["tiles0"] * f["tiles1"]
            if self.tiles < needed:
                self.load_weights(needed - self.tiles)
            self.tiles -= needed
        self.program.append(op(Opcode.MATMUL, **f))

    def function(self):
        return self.functions[self.below(len(self.functions))]

    def activate(self):
        config = self.config
        rows = 1 + self.below(min(6, config.accumulator_depth))
        self.program.append(op(
            Opcode.ACTIVATE, function=self.function(), rows=rows, lanes=1 + self.below(config.n),
            acc=self.rows(config.accumulator_depth, rows), buffer=self.rows(config.unified_buffer_depth, rows)))

    def pool(self):
        config = self.config
        f = {name: 1 + self.below(3) for name in ("rows0", "rows1", "window0", "window1")}
        f |= {f"{name}_stride": self.below(4) for name in ("rows0", "rows1", "window0", "window1", "buffer")}
        acc = sum((f[name] - 1) * f[name + "_stride"] for name in ("rows0", "rows1", "window0", "window1"))
        buffer = f["rows0"] + (f["rows1"] - 1) * f["buffer_stride"]
        if acc < config.accumulator_depth and buffer <= config.unified_buffer_depth:
            self.program.append(op(
                Opcode.POOL, **f, function=self.function(), lanes=1 + self.below(config.n),
                acc=self.below(config.accumulator_depth - acc), buffer=self.rows(config.unified_buffer_depth, buffer)))

    def softmax(self):
        config = self.config
        rows, tiles = 1 + self.below(3), 1 + self.below(3)
        acc_stride, buffer_stride = self.below(5), self.below(5)
        acc, buffer = (tiles - 1) * acc_stride + rows, (tiles - 1) * buffer_stride + rows
        if acc <= config.accumulator_depth and buffer <= config.unified_buffer_depth:
            self.program.append(op(
                Opcode.SOFTMAX, rows=rows, tiles=tiles, acc_stride=acc_stride, buffer_stride=buffer_stride,
                lanes=1 + self.below(config.n), acc=self.rows(config.accumulator_depth, acc),
                buffer=self.rows(config.unified_buffer_depth, buffer)))

    def multiply(self):
        config = self.config
        rows = 1 + self.below(4)
        self.program.append(op(
            Opcode.MULTIPLY, rows=rows, lanes=1 + self.below(config.n), acc=self.rows(config.accumulator_depth, rows),
            buffer=self.rows(config.unified_buffer_depth, rows), operand=self.rows(config.unified_buffer_depth, rows)))

    def load_table(self):
        rows = 1 + self.below(3)
        self.program.append(op(
            Opcode.LOAD_TABLE, rows=rows, buffer=self.rows(self.config.unified_buffer_depth, rows),
            entry=self.rows(TABLE_ENTRIES // self.config.n, rows) * self.config.n,
            first=110 + self.below(20), linear_low=self.below(4), linear_high=self.below(4)))

    def activate_binary32(self):
        """Halves of binary32 are no numbers to go on with: they are stored and overwritten at once."""
        config = self.config
        rows = 1 + self.below(2)
        buffer = self.rows(config.unified_buffer_depth, 2 * rows)
        offset = self.below((Case.sizes["OUTPUT"] - 4 * config.n * rows) // config.bus_bytes) * config.bus_bytes
        self.program += [
            op(Opcode.ACTIVATE, function=self.function(), format=Format.BINARY32, rows=rows, lanes=1 + self.below(config.n),
               acc=self.rows(config.accumulator_depth, rows), buffer=buffer),
            op(Opcode.STORE, region=Region.OUTPUT, offset=offset, rows=2 * rows, buffer=buffer),
            op(Opcode.LOAD, region=Region.INPUT, rows=2 * rows, buffer=buffer)]

    def sync(self):
        self.program.append(op(Opcode.SYNC))

    def make(self, length):
        self.tiles, self.program = 0, [*([] if self.has_table else whole_table(self.config)), *initialisation(self.config)]
        self.has_table, length = True, length + len(self.program) - len(initialisation(self.config))
        kinds = [self.load, self.load_bias, self.load_weights, self.store, self.matmul, self.activate,
                 self.activate_binary32, self.sync]
        weights = [4, 2, 2, 4, 7, 6, 2, 0.3]
        for kind, weight, opcode in (
                (self.pool, 4, Opcode.POOL), (self.softmax, 3, Opcode.SOFTMAX), (self.multiply, 3, Opcode.MULTIPLY),
                (self.load_table, 1, Opcode.LOAD_TABLE)):
            if exists(self.config, opcode):
                kinds.append(kind)
                weights.append(weight)
        weights = np.array(weights)
        while len(self.program) < length:
            kinds[self.rng.choice(len(kinds), p=weights / weights.sum())]()
        if self.tiles > self.config.weight_fifo_depth:
            raise AssertionError("the program leaves more tiles than the FIFO holds")
        return self.program + revelation(self.config)


def check_hazards(rng, config, programs, *, simulator="icarus", memory=None, length=60, verilog=None):
    host, machine, hazards = Host(rng, MEMORY if programs < 20 else 1 << 20), Machine(config), Hazards(rng, config)
    cases = [Case(rng, host, machine, hazards.make(length)) for _ in range(programs)]
    values = np.frombuffer(b"".join(case.after["OUTPUT"] for case in cases), np.uint16)
    assert len(np.unique(values)) > len(values) / 20, "too many equal results for a test"
    assert [case.fault for case in cases] == [None] * programs
    expected = bytearray(host.bytes)
    for case in cases:
        case.write(expected)
    result = run(config, host, [case.run for case in cases], simulator=simulator, memory=memory, verilog=verilog)
    assert [one["fault"] for one in result["runs"]] == [None] * programs
    for number, case in enumerate(cases):
        for name, (base, size) in case.run["regions"].items():
            found = np.frombuffer(result["memory"][base:base + size], np.uint8)
            wrong = np.flatnonzero(found != np.frombuffer(case.after[name], np.uint8))
            assert not len(wrong), (f"program {number}: {len(wrong)} bytes of {name} differ, from {wrong[0]:#x} on\n"
                                    + "\n".join(f"{o.name} {f}" for o, f in case.program))
    same(expected, result["memory"])


@pytest.mark.parametrize("memory", [{"latency": 1}, {"latency": 25}, {"latency": 2, "pause_percent": 50}], ids=str)
@pytest.mark.parametrize("config", [SMALL, FULL], ids=["small", "full"])
def test_hazards(rng, memory, config):
    check_hazards(rng, config, 8, memory=memory)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_hazards_of_other_sizes(rng, sizes):
    check_hazards(rng, Config(**{**TINY, **sizes}), 4, memory={"latency": 4, "pause_percent": 10})


@pytest.mark.slow
@pytest.mark.parametrize("memory", [{"latency": 1}, {"latency": 25}, SLOW, PAUSED, {"pause_percent": 80}], ids=str)
@pytest.mark.parametrize("config", [SMALL, FULL], ids=["small", "full"])
def test_hazards_in_volume(rng, memory, config):
    for _ in range(5):
        check_hazards(rng, config, 100, memory=memory, simulator="verilator", length=100)


def test_softmax_of_a_layer(rng):
    """A layer whose outputs are wider than the array, and softmax over them, in both formats, against the golden model."""
    batch, outputs = 4, 11
    config, tile = FULL, dict(rows=batch, lanes=outputs % FULL.n, tiles=3, acc_stride=batch)
    host, machine = Host(rng), Machine(FULL)
    case = Case(rng, host, machine, [
        op(Opcode.LOAD, region=Region.INPUT, rows=batch),
        op(Opcode.LOAD_WEIGHTS, region=Region.INPUT, rows=3, offset=64),
        op(Opcode.LOAD_BIAS, region=Region.INPUT, rows=3, offset=256),
        op(Opcode.MATMUL, start=1, rows0=batch, rows0_stride=1, rows1=1, tiles0=3, tiles0_acc_stride=batch, tiles1=1),
        op(Opcode.SOFTMAX, **tile, buffer=8, buffer_stride=batch),
        op(Opcode.STORE, region=Region.OUTPUT, rows=3 * batch, buffer=8),
        op(Opcode.SOFTMAX, **tile, format=Format.BINARY32, buffer_stride=2 * batch),
        op(Opcode.STORE, region=Region.OUTPUT, rows=6 * batch, offset=256),
        op(Opcode.HALT)])
    base, size = case.run["regions"]["INPUT"]
    values = np.frombuffer(bytes(host.bytes[base:base + size]), bfloat16)
    x, weights = values[:16].reshape(batch, 4), values[32:80].reshape(12, 4).T[:, :outputs]
    sums = matmul(x, weights, values[128:152].view(np.float32)[:outputs])
    expected = np.zeros((batch, 12), np.uint16)
    expected[:, :outputs] = softmax(sums.view(np.uint32))
    result = run(config, host, [case.run], memory={"latency": 9})
    assert result["runs"][0]["fault"] is None
    base, _ = case.run["regions"]["OUTPUT"]
    output = np.frombuffer(bytes(result["memory"][base:base + 640]), np.uint16)
    assert (output[:48].reshape(3, batch, 4).swapaxes(0, 1).reshape(batch, 12) == expected).all()
    wide = output[128:224].view(np.uint32).reshape(3, batch, 4).swapaxes(0, 1).reshape(batch, 12)
    assert (wide == expected.astype(np.uint32) << 16).all() and len(np.unique(expected)) > 30


# --- Programs that are refused, and what they leave behind --------------------------------------------------------

GOOD = {
    Opcode.HALT: {}, Opcode.SYNC: {},
    Opcode.LOAD: dict(region=Region.SCRATCH, rows=2), Opcode.LOAD_BIAS: dict(region=Region.SCRATCH, rows=2),
    Opcode.LOAD_WEIGHTS: dict(region=Region.SCRATCH, rows=1), Opcode.STORE: dict(region=Region.SCRATCH, rows=3),
    Opcode.MATMUL: dict(keep=1, rows0=2, rows1=1, tiles0=1, tiles1=1, rows0_stride=1), Opcode.ACTIVATE: dict(rows=2, lanes=3),
    Opcode.POOL: dict(rows0=2, rows0_stride=1, rows1=1, window0=1, window1=1, lanes=3), Opcode.MULTIPLY: dict(rows=2, lanes=3),
    Opcode.LOAD_TABLE: dict(rows=2, first=120), Opcode.SOFTMAX: dict(rows=2, lanes=3, tiles=1),
}


def edges(config):
    """Instructions on both sides of every edge, each `(opcode, fields)`."""
    n, bus = config.n, config.bus_bytes
    size, depths = Case.sizes["SCRATCH"], {
        "buffer": config.unified_buffer_depth, "acc": config.accumulator_depth, "bias": config.bias_depth,
        "operand": config.unified_buffer_depth}
    for opcode, good in GOOD.items():
        fields = dict(FIELDS[opcode])
        yield opcode, good
        if "function" in fields:
            yield from ((opcode, {**good, "function": function}) for function in (2, 3, 15))
        for name in ("rows", "rows0", "rows1", "tiles", "tiles0", "tiles1", "window0", "window1"):
            if name in fields:
                yield opcode, {**good, name: 0}
        for name in depths:
            if name in fields:
                rows = 2 if opcode is Opcode.MATMUL and name == "acc" else 1 if opcode is Opcode.MATMUL else good.get("rows", 2)
                extra = dict(start=1) if name == "bias" and opcode is Opcode.MATMUL else {}
                last = depths[name] - (1 if opcode is Opcode.MATMUL and name == "bias" else rows)
                if opcode is Opcode.MATMUL and name == "buffer":
                    last = depths[name] - 2
                for place in (last, last + 1, 0xFFFF):
                    yield opcode, {**good, **extra, name: place}
        if "offset" in fields:
            row = {Opcode.LOAD_BIAS: 4 * n, Opcode.LOAD_WEIGHTS: 2 * n * n}.get(opcode, 2 * n)
            last = size - good["rows"] * row
            for offset in (last, last + bus, last - bus + 1, 1, bus // 2, 0xFFFFFFFF & -bus):
                yield opcode, {**good, "offset": offset}
            yield opcode, {**good, "rows": 0xFFFF}
            for region in Region:
                yield opcode, {**good, "region": region}
    for opcode in (Opcode.ACTIVATE, Opcode.POOL, Opcode.SOFTMAX, Opcode.MULTIPLY):
        for lanes in (0, n, n + 1, 255):
            yield opcode, {**GOOD[opcode], "lanes": lanes}
    for opcode in (Opcode.ACTIVATE, Opcode.POOL, Opcode.SOFTMAX):
        for buffer in (depths["buffer"] - 4, depths["buffer"] - 3):
            yield opcode, {**GOOD[opcode], "format": Format.BINARY32, "buffer": buffer}
    pool, last = GOOD[Opcode.POOL], depths["acc"] - 2
    for count in ("rows1", "window0", "window1"):
        for stride in (last, last + 1, 0xFFFF):
            yield Opcode.POOL, {**pool, count: 2, count + "_stride": stride}
    for stride in (last + 1, last + 2, 0xFFFF):
        yield Opcode.POOL, {**pool, "rows0_stride": stride}
    for format_, last in ((Format.BFLOAT16, depths["buffer"] - 2), (Format.BINARY32, depths["buffer"] - 4)):
        for stride in (last, last + 1, 0xFFFF):
            yield Opcode.POOL, {**pool, "format": format_, "rows1": 2, "buffer_stride": stride}
    yield Opcode.POOL, {**pool, **dict.fromkeys([name for name, width in FIELDS[Opcode.POOL] if width == 16], 0xFFFF)}
    softmax = {**GOOD[Opcode.SOFTMAX], "tiles": 3}
    for stride, last in (("acc_stride", depths["acc"] // 2 - 1), ("buffer_stride", depths["buffer"] // 2 - 1)):
        for value in (last, last + 1, 0xFFFF):
            yield Opcode.SOFTMAX, {**softmax, stride: value}
    for value in (depths["buffer"] // 2 - 2, depths["buffer"] // 2 - 1):
        yield Opcode.SOFTMAX, {**softmax, "format": Format.BINARY32, "buffer_stride": value}
    yield Opcode.SOFTMAX, {**softmax, **dict.fromkeys(("tiles", "acc_stride", "buffer_stride"), 0xFFFF)}
    for entry in (1, n - 1, n, TABLE_ENTRIES - 2 * n, TABLE_ENTRIES - n, TABLE_ENTRIES, 1 << 15):
        yield Opcode.LOAD_TABLE, {**GOOD[Opcode.LOAD_TABLE], "entry": entry}
    matmul = GOOD[Opcode.MATMUL]
    for count in ("rows0", "rows1", "tiles0", "tiles1"):
        last = depths["buffer"] - 1 - (1 if count != "rows0" else 0)
        for stride in (last, last + 1, 0xFFFF):
            yield Opcode.MATMUL, {**matmul, count: 2, count + "_stride": stride}
        if count.startswith("tiles"):
            for stride in (depths["acc"] - 2, depths["acc"] - 1, 0xFFFF):
                yield Opcode.MATMUL, {**matmul, count: 2, count + "_acc_stride": stride}
    for rows1 in (depths["acc"] // 2, depths["acc"] // 2 + 1, 0xFFFF):
        yield Opcode.MATMUL, {**matmul, "rows1": rows1}
    for tiles0 in (depths["bias"], depths["bias"] + 1):
        yield Opcode.MATMUL, {**matmul, "start": 1, "tiles0": tiles0}
    yield Opcode.MATMUL, {**matmul, **dict.fromkeys(
        [name for name, width in FIELDS[Opcode.MATMUL] if width == 16], 0xFFFF)}


def random_word(rng):
    """A word of any bits, or one that differs little from a good one."""
    if rng.random() < 0.15:
        return int.from_bytes(rng.bytes(32), "little")
    opcode = list(GOOD)[rng.integers(len(GOOD))]
    word = encode(opcode, **GOOD[opcode])
    for _ in range(rng.integers(1, 3)):
        word ^= 1 << int(rng.integers(0, 8) if rng.random() < 0.1 else rng.integers(8, 256) if rng.random() < 0.5
                         else rng.integers(8, 64))
    return word


def is_short(word):
    """Not an instruction that keeps the array busy for long."""
    try:
        opcode, fields = decode(word)
    except ValueError:
        return True
    counts = [fields[name] for name in ("rows0", "rows1", "tiles", "tiles0", "tiles1", "window0", "window1") if name in fields]
    return np.prod(counts, dtype=float) < 3000


def check_refused(rng, config, words, *, memory=None, simulator="icarus"):
    """Each word after a few good instructions. Causes and places are those of the model; after a SYNC, so is all memory;
    without one, what went before may not have happened yet. A good program in between gives its results."""
    host, machine, hazards = Host(rng, 1 << 20 if len(words) < 200 else 1 << 21), Machine(config), Hazards(rng, config)
    cases = [Case(rng, host, machine, hazards.make(20))]
    exact = [True]
    for number, word in enumerate(words):
        before = [op(Opcode.LOAD, region=Region.INPUT, offset=64, rows=3, buffer=4),
                  op(Opcode.STORE, region=Region.OUTPUT, rows=9), op(Opcode.STORE, region=Region.SCRATCH, rows=2, offset=64)]
        exact.append(bool(rng.random() < 0.7))
        case = Case(rng, host, machine, [*before, *([op(Opcode.SYNC)] if exact[-1] else []), word, op(Opcode.HALT)],
                    timeout=600)
        if case.fault is None and case.tiles_left > config.weight_fifo_depth + 1:      # one is in the array
            case.fault = ["TIMEOUT", None]
        cases.append(case)
        if number % 30 == 29:
            cases.append(Case(rng, host, machine, hazards.make(20)))
            exact.append(True)
    result = run(config, host, [case.run for case in cases], memory=memory, simulator=simulator)
    allowed = bytearray(host.bytes)
    for number, (case, one, is_exact) in enumerate(zip(cases, result["runs"], exact)):
        found, expected = one["fault"], case.fault
        if expected and expected[0] == "TIMEOUT":       # it is found out when the program has long gone on
            found, expected = found and found[0], "TIMEOUT"
        assert found == expected, f"program {number}: {found}, not {expected}: {case.program[-2:]}"
        if not is_exact and case.fault:
            for name in ("OUTPUT", "SCRATCH"):
                base, size = case.run["regions"][name]
                found = result["memory"][base:base + size]
                places = zip(found, host.bytes[base:base + size], case.after[name])
                assert all(byte in pair for byte, *pair in places), f"program {number}: stray bytes in {name}"
                case.after[name] = found
        case.write(allowed)
    same(allowed, result["memory"])
    return cases


def reserved_bits(opcode):
    """Those that must be zero."""
    found, position = [], 8
    for name, width in FIELDS[opcode]:
        found += range(position, position + width) if name.startswith("_") else []
        position += width
    return [*found, *range(position, 256)]


@pytest.mark.parametrize("config", [SMALL, FULL], ids=["small", "full"])
def test_every_edge(rng, config):
    words = [encode(opcode, **fields) for opcode, fields in edges(config)]
    for opcode in GOOD:
        reserved = reserved_bits(opcode)
        words += [encode(opcode, **GOOD[opcode]) | 1 << int(bit) for bit in {reserved[0], reserved[-1], rng.choice(reserved)}]
    causes = {str(case.fault and case.fault[0]) for case in check_refused(rng, config, words)}
    assert {"None", "ILLEGAL", "LENGTH", "ADDRESS"} <= causes


@pytest.mark.parametrize("config", [SMALL, FULL], ids=["small", "full"])
def test_random_words(rng, config):
    words = [word for word in (random_word(rng) for _ in range(100)) if is_short(word)]
    check_refused(rng, config, words, memory={"latency": 5, "pause_percent": 20})


@pytest.mark.slow
@pytest.mark.parametrize("config", [SMALL, FULL], ids=["small", "full"])
def test_random_words_in_volume(rng, config):
    for _ in range(20):
        words = [word for word in (random_word(rng) for _ in range(150)) if is_short(word)]
        check_refused(rng, config, words, memory={"latency": 5, "pause_percent": 20}, simulator="verilator")


@pytest.mark.parametrize("bus_width", [0, 32])
def test_fetch_stays_in_the_model(rng, bus_width):
    """The end of MODEL, at and beside an instruction's end; a start behind it, and one between two beats."""
    config = Config(**{**TINY, "bus_width": bus_width})
    host, machine = Host(rng), Machine(config)
    syncs = [op(Opcode.SYNC)] * 11
    cases = [Case(rng, host, machine, initialisation(config) + [op(Opcode.HALT)])]
    cases += [Case(rng, host, machine, syncs + [op(Opcode.HALT)], model_bytes=size)
              for size in (0, 4, 31, 32, 33, 63, 64, 128, 200, 352, 383, 384)]
    cases += [Case(rng, host, machine, syncs + [op(Opcode.HALT)], pc=pc)
              for pc in (32, 64, 352, 384, 384 + 32, 0xFFFFFFE0, 1 << 31, 1, 2, 33)]
    result = run(config, host, [case.run for case in cases])
    for case, one in zip(cases, result["runs"]):
        assert one["fault"] == case.fault, f"pc {case.pc}, MODEL of {case.run['regions']['MODEL'][1]} bytes"
    same(host.bytes, result["memory"])


def test_matmul_without_a_tile(rng):
    host, machine = Host(rng), Machine(SMALL)
    missing = Case(rng, host, machine, initialisation(SMALL) + [op(Opcode.MATMUL, rows0=1, rows1=1, tiles0=1, tiles1=1),
                                                                op(Opcode.HALT)], timeout=300)
    good = Case(rng, host, machine, Hazards(rng, SMALL).make(20))
    assert missing.fault[0] == "TIMEOUT"
    result = run(SMALL, host, [missing.run, good.run])
    assert [one["fault"] and one["fault"][0] for one in result["runs"]] == ["TIMEOUT", None]
    assert 300 < result["runs"][0]["counters"]["cycles"] < 300 + 500
    good.write(host.bytes)
    same(host.bytes, result["memory"])


@pytest.mark.parametrize("memory", [{"latency": 3}, {"latency": 30, "pause_percent": 60}], ids=str)
def test_abort(rng, memory):
    """A reset at any moment ends a run, and writes nothing more; the next run is as good as any."""
    host, machine, hazards = Host(rng), Machine(SMALL), Hazards(rng, SMALL)
    first = Case(rng, host, machine, initialisation(SMALL) + [op(Opcode.HALT)])
    stores = initialisation(SMALL) + [op(Opcode.STORE, region=Region.OUTPUT, offset=256 * i, rows=32) for i in range(8)] + [op(Opcode.HALT)]
    cases = [first]
    for number in range(16):
        case = Case(rng, host, machine, hazards.make(30) if number % 2 else stores)
        case.run |= {"abort": int(rng.integers(1, 1500)), "until_quiet": int(rng.choice([0, 100_000]))}
        cases.append(case)
        if number % 4 == 3:
            cases.append(Case(rng, host, machine, hazards.make(20)))
    result = run(SMALL, host, [case.run for case in cases], memory=memory)
    for case, one in zip(cases, result["runs"]):
        assert one["fault"] is None
        if "abort" in case.run:
            assert one["quiet"] or not case.run["until_quiet"]
        if "abort" in case.run and not one["state"]["done"]:
            written = {}
            for name in ("OUTPUT", "SCRATCH"):
                base, size = case.run["regions"][name]
                written[name] = result["memory"][base:base + size]
            if case.program is stores:
                base, size = case.run["regions"]["OUTPUT"]
                places = zip(written["OUTPUT"], host.bytes[base:base + size], case.after["OUTPUT"])
                assert all(found in pair for found, *pair in places), "stray bytes in OUTPUT"
            case.after.update(written)
        case.write(host.bytes)
    same(host.bytes, result["memory"])


# --- Buses that answer with errors, late, or never ----------------------------------------------------------------

def transfers(kind):
    """A program of which one bus access goes to region `where`, and the number of the instruction that does."""
    program = [op(Opcode.LOAD, region=Region.INPUT, rows=32)]
    program += {
        "fetch": [],
        "load": [op(Opcode.LOAD, region=Region.SCRATCH, rows=20)],
        "load_bias": [op(Opcode.LOAD_BIAS, region=Region.SCRATCH, rows=2)],
        "load_weights": [op(Opcode.LOAD_WEIGHTS, region=Region.SCRATCH, rows=3)],
        "store": [op(Opcode.STORE, region=Region.SCRATCH, rows=30)],
    }[kind]
    return [*program, op(Opcode.SYNC), op(Opcode.STORE, region=Region.OUTPUT, rows=32), op(Opcode.HALT)]


@pytest.mark.parametrize("memory", [{"latency": 20, "pause_percent": 30}], ids=str)
def test_bus_errors(rng, memory):
    """SLVERR and DECERR for every kind of access: the fault, where it was, nothing stored after it, and recovery."""
    host, machine, hazards = Host(rng), Machine(SMALL), Hazards(rng, SMALL)
    cases = [Case(rng, host, machine, initialisation(SMALL) + [op(Opcode.HALT)])]
    expected = [None]
    for kind in ("fetch", "load", "load_bias", "load_weights", "store"):
        for base in (BAD, MEMORY, MEMORY - 64 if kind != "fetch" else 1 << 30):
            case = Case(rng, host, machine, transfers(kind))
            case.run["regions"]["MODEL" if kind == "fetch" else "SCRATCH"][0] = base
            cause = "BUS_WRITE" if kind == "store" else "BUS_READ"
            edge = {"load": 32, "load_bias": 4, "load_weights": 12, "store": 30}.get(kind, 32) * 8 <= 64
            cases.append(case)
            expected.append(None if base == MEMORY - 64 and edge else [cause, 0 if kind == "fetch" else 32])
            cases.append(Case(rng, host, machine, hazards.make(12)))
            expected.append(None)
    assert host.end < BAD
    result = run(SMALL, host, [case.run for case in cases], memory={
        **memory, "error_address": f"{BAD:x}", "error_last": f"{BAD + 0x1FF:x}"})
    assert [one["fault"] for one in result["runs"]] == expected
    memory = bytearray(host.bytes)
    for case, fault in zip(cases, expected):
        if fault is None and case.run["regions"]["SCRATCH"][0] < BAD:
            case.write(memory)
        elif fault is None:
            base, size = case.run["regions"]["OUTPUT"]
            memory[base:base + size] = case.after["OUTPUT"]
    memory[-64:] = result["memory"][-64:]       # what a store wrote before it came to the end
    same(memory, result["memory"])


@pytest.mark.parametrize("after", [0, 1, 2, 4])     # 1 burst of instructions, 2 read, 2 written
def test_bus_that_answers_late(rng, after):
    """From a certain transaction on every answer is late: TIMEOUT in the time that the register says, then recovery."""
    host, machine = Host(rng), Machine(SMALL)
    bad = Case(rng, host, machine, [op(Opcode.LOAD, region=Region.INPUT, rows=32),
                                    op(Opcode.STORE, region=Region.OUTPUT, rows=32), op(Opcode.HALT)], timeout=400)
    good = Case(rng, host, machine, initialisation(SMALL) + revelation(SMALL), timeout=30_000)
    result = run(SMALL, host, [bad.run, good.run], memory={"latency": 2, "hang_after": after, "hang_cycles": 3000})
    late, fine = result["runs"]
    assert fine["fault"] is None
    assert fine["counters"]["cycles"] > 3000
    assert late["fault"][0] == "TIMEOUT"
    assert 400 < late["counters"]["cycles"] < 400 + 400
    base, size = bad.run["regions"]["OUTPUT"]
    partial = result["memory"][base:base + size]
    assert all(found in pair for found, *pair in zip(partial, host.bytes[base:base + size], bad.after["OUTPUT"]))
    good.write(host.bytes)
    host.bytes[base:base + size] = partial
    same(host.bytes, result["memory"])


def test_bus_that_never_answers(rng):
    """Neither a run nor the one after it hangs: the second ends while it waits for the bus to come to rest."""
    host, machine = Host(rng), Machine(SMALL)
    case = Case(rng, host, machine, transfers("load"), timeout=200)
    for after, fault in ((0, ["TIMEOUT", 0]), (2, None)):
        result = run(SMALL, host, [case.run, case.run], memory={"hang_after": after})
        for one in result["runs"]:
            assert one["fault"][0] == "TIMEOUT" and (fault is None or one["fault"] == fault)
            assert 200 < one["counters"]["cycles"] < 500
            assert not one["quiet"]
        assert result["runs"][1]["counters"]["cycles"] < 210
        same(host.bytes, result["memory"])
