"""Tests that the datasheet agrees with the hardware descriptions, and that its worked example gives the printed results."""

import re

import pytest

from amaranth_tpu.hw.bus.axi_reader import OUTSTANDING_READS
from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.control.decoder import decode_cycles
from amaranth_tpu.hw.cycles import cycle_texts, pass_cycles, row_cycles
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Format, FunctionCode, Half, Opcode, Region
from amaranth_tpu.hw.spec.registers import ADDRESS_WIDTH, REGISTERS
from amaranth_tpu.hw.tpu import OUTSTANDING_WRITES
from amaranth_tpu.scripts.datasheet import DATASHEET, FILES, SECTIONS
from amaranth_tpu.scripts.publish.worked_example import CONFIG
from amaranth_tpu.scripts.show.markdown import replace_section, section
from amaranth_tpu.sim.golden.isa_model import Machine
from core_runs import MemoryBuilder, image_of, op, run
from suites import all_but


@pytest.mark.parametrize("name", all_but([name for name in SECTIONS if name != "functions"], SECTIONS))
def test_up_to_date(name):
    path, make = SECTIONS[name]
    assert section(path, name) == make().strip(), "run: python -m amaranth_tpu.scripts.datasheet"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_up_to_date(path):
    assert path.read_text() == FILES[path](), "run: python -m amaranth_tpu.scripts.datasheet"


def example():
    """Parses the worked example in the datasheet. Returns each region's bytes before the run, and the expected first bytes of
    OUTPUT."""
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in section(DATASHEET, "example").splitlines()
        if re.match(r"\| (0x|[A-Z]+ \|)", line)
    ]
    regions, expected = {name: bytearray(1024) for name in ("MODEL", "INPUT", "OUTPUT")}, bytearray()
    for row in rows:
        region, offset, words = ("MODEL", *row[:2]) if row[0].startswith("0x") else row[:3]
        image = b"".join(int(word, 16).to_bytes(len(word) // 2, "little") for word in words.split())
        if region == "OUTPUT":
            assert int(offset, 16) == len(expected)
            expected += image
        else:
            regions[region][int(offset, 16) : int(offset, 16) + len(image)] = image
    return regions, bytes(expected)


# promise: worked-example
def test_example_on_the_model():
    regions, expected = example()
    assert len(expected) == 12 and any(expected)
    machine = Machine(CONFIG, {Region[name]: data for name, data in regions.items()})
    machine.run()
    assert machine.executed == 8 and bytes(regions["OUTPUT"][:12]) == expected


# promise: worked-example
@pytest.mark.slow
def test_example_on_the_core(rng):
    regions, expected = example()
    host = MemoryBuilder(rng, 1 << 14)
    places = {name: host.place(bytes(data)) for name, data in regions.items()}
    result = run(CONFIG, host, [{"regions": places}])
    assert [one["fault"] for one in result["runs"]] == [None]
    assert result["memory"][places["OUTPUT"][0] :][:12] == expected


_WINDOW = dict(lanes=4, rows0_stride=1, rows1=1, window0_stride=1, window1=1)
#: Instruction and its fields without the row count, with the matching arguments of :func:`hw.cycles.row_cycles`.
_ROWS = [
    (Opcode.LOAD, {"region": Region.INPUT}, {}),
    (Opcode.LOAD_BIAS, {"region": Region.INPUT}, {}),
    (Opcode.LOAD_BIAS, {"region": Region.INPUT, "half": Half.LOWER}, {"half": True}),
    (Opcode.STORE, {"region": Region.OUTPUT}, {}),
    *(
        (
            Opcode.ACTIVATE,
            {"lanes": 4, "format": Format(wide), "function": function},
            {"wide": wide, "table": function is FunctionCode.TABLE},
        )
        for wide in (0, 1)
        for function in (FunctionCode.RELU, FunctionCode.TABLE)
    ),
    *(
        (
            Opcode.POOL,
            _WINDOW | {"format": Format(wide), "function": function, "window0": across},
            {"wide": wide, "table": function is FunctionCode.TABLE, "window": across},
        )
        for wide in (0, 1)
        for function in (FunctionCode.RELU, FunctionCode.TABLE)
        for across in (2, 5)
    ),
    (Opcode.ACTIVATE, {"lanes": 4, "format": Format.PLANES}, {"wide": True}),
    (Opcode.POOL, _WINDOW | {"format": Format.INDEX, "function": FunctionCode.RELU, "window0": 3}, {"window": 3}),
    (Opcode.SELECT, {"rows1": 1, "rows0_stride": 1, "operand": 64}, {}),
    (Opcode.MULTIPLY, {"lanes": 4, "operand": 64}, {}),
]
#: Instructions of the activation unit without further conditions; the rows of SOFTMAX differ in their cycles.
_ROWS += [
    (opcode, {"lanes": 4} if "lanes" in record.widths else {}, {})
    for opcode, record in INSTRUCTIONS.items()
    if record.unit is Unit.ACTIVATE and opcode not in {Opcode.SOFTMAX, Opcode.NORMALIZE, *(row[0] for row in _ROWS)}
]
#: The core that runs these instructions.
_TRAINING = {"unified_buffer_depth": 256, "accumulator_depth": 256, "training": True, "bias_depth": 64}


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_table_has_the_cores_cycles_per_row(rng, lanes):
    """On the core, the difference in cycles between 12 rows and 4 rows of an instruction is 8 times the cycles per row in the
    table."""
    config = Config(n=4, table_lanes=lanes, update_lanes=lanes, **_TRAINING)
    host, runs = MemoryBuilder(rng, 1 << 20), []
    places = {name: host.place(bytes(4096)) for name in ("INPUT", "OUTPUT")}
    for opcode, fields, _ in _ROWS:
        for rows in (4, 12):
            count = "rows0" if opcode in (Opcode.POOL, Opcode.SELECT) else "rows"
            image = image_of(config, [op(opcode, **fields, **{count: rows}), op(Opcode.HALT)])
            runs.append({"regions": {**places, "MODEL": host.place(image)}})
    cycles = [one["counters"]["cycles"] for one in run(config, host, runs, memory={"latency": 4})["runs"]]
    for (opcode, _, how), short, long in zip(_ROWS, cycles[::2], cycles[1::2]):
        assert long - short == 8 * row_cycles(config, opcode, **how), f"{opcode.name} {how}"


@pytest.mark.slow
def test_table_has_the_cores_latencies(rng):
    """On the core, one row of each activation instruction takes the cycles per row and the latency in the table, plus an
    overhead that is the same for all instructions. The datasheet allows UPDATE one cycle more."""
    config = Config(n=4, table_lanes=2, update_lanes=2, **_TRAINING)
    host, runs, expected, opcodes = MemoryBuilder(rng, 1 << 20), [], [], []
    places = {name: host.place(bytes(4096)) for name in ("INPUT", "OUTPUT")}
    for opcode, fields, how in _ROWS:
        if INSTRUCTIONS[opcode].unit is not Unit.ACTIVATE:
            continue
        count = "rows0" if opcode in (Opcode.POOL, Opcode.SELECT) else "rows"
        image = image_of(config, [op(opcode, **fields, **{count: 1}), op(Opcode.HALT)])
        runs.append({"regions": {**places, "MODEL": host.place(image)}})
        text = cycle_texts(config)[opcode][1]
        later = text.split("; ")[-1] if how.get("table") else text
        later = re.match(r"(\d*)(?: \+ n / `table_lanes`)?", later)
        later = int(later[1] or 0) + (config.n // config.table_lanes if "+" in later[0] else 0)
        later += 2 * config.lead + 2 * config.latency if "2 `lead` + 2 `latency`" in text else 0
        row = row_cycles(config, opcode, **how)
        opcodes.append(opcode)
        expected.append(decode_cycles(config)[opcode] + row + later)
    cycles = [one["counters"]["cycles"] for one in run(config, host, runs, memory={"latency": 4})["runs"]]
    overheads = [found - least for found, least in zip(cycles, expected)]
    [overhead] = {one for one, opcode in zip(overheads, opcodes) if opcode is not Opcode.UPDATE}
    assert overheads[opcodes.index(Opcode.UPDATE)] - overhead in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 6])
def test_table_has_the_cores_cycles_per_pass(rng, stages):
    """On the core, the difference in cycles between 40 passes and 8 passes is 32 times the cycles per pass in the table, with
    `keep` and with new tiles."""
    config = Config(n=4, cell_stages=stages, unified_buffer_depth=256, accumulator_depth=256, **PLAIN)
    host, runs, cases = MemoryBuilder(rng, 1 << 20), [], [(rows, keep) for rows in (1, 2, 3, 6) for keep in (0, 1)]
    places = {"INPUT": host.place(bytes(4096))}
    for rows, keep in cases:
        for passes in (8, 40):
            loaded = [] if keep else [op(Opcode.LOAD_WEIGHTS, region=Region.INPUT, rows=passes)]
            fields = {"rows0": rows, "rows1": 1, "tiles0": passes, "tiles0_acc_stride": rows, "tiles1": 1}
            program = [*loaded, op(Opcode.MATMUL, start=1, keep=keep, **fields), op(Opcode.HALT)]
            runs.append({"regions": {**places, "MODEL": host.place(image_of(config, program))}})
    cycles = [one["counters"]["cycles"] for one in run(config, host, runs, memory={"latency": 4})["runs"]]
    for (rows, keep), short, long in zip(cases, cycles[::2], cycles[1::2]):
        assert abs(long - short - 32 * pass_cycles(config, rows, keep)) < 1, (rows, keep)


def test_register_map():
    offsets = [register.offset for register in REGISTERS]
    assert len(set(offsets)) == len(offsets) and all(offset % 4 == 0 and offset < 1 << ADDRESS_WIDTH for offset in offsets)
    for register in REGISTERS:
        bits = [bit for first, width, _ in (register.fields or {}).values() for bit in range(first, first + width)]
        assert len(set(bits)) == len(bits) and all(bit < 32 for bit in bits)


# promise: outstanding
def test_limits_of_bursts():
    sentence = f"Up to {OUTSTANDING_READS} read and {OUTSTANDING_WRITES} write bursts are outstanding."
    assert sentence in " ".join(DATASHEET.read_text().split())


def test_sections(tmp_path):
    path = tmp_path / "x.md"
    path.write_text("a\n<!-- begin t -->\nold\n<!-- end t -->\nb\n")
    replace_section(path, "t", "new")
    assert path.read_text() == "a\n<!-- begin t -->\nnew\n<!-- end t -->\nb\n" and section(path, "t") == "new"
    with pytest.raises(ValueError, match="no section 'u'"):
        replace_section(path, "u", "new")
