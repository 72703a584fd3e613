"""Tests of synthesis for FPGAs, covering targets, parsing of Yosys' netlists, failing tools, and errors."""

import itertools
import re
from types import SimpleNamespace

import pytest

from amaranth_tpu.hw.boards import BOARDS
from amaranth_tpu.hw.config import PLAIN, PRESETS, Config
from amaranth_tpu.hw.fpga import implement as implementation
from amaranth_tpu.hw.fpga import synthesis
from amaranth_tpu.hw.fpga.devices import largest_cores
from amaranth_tpu.hw.fpga.implement import implement
from amaranth_tpu.hw.fpga.netlist import BlockHierarchy, registers_for_memories
from amaranth_tpu.hw.fpga.scan_chain import on_scan_chain
from amaranth_tpu.hw.fpga.synthesis import SynthesisError, synthesize
from amaranth_tpu.hw.fpga.targets import FAMILIES, RESOURCES, TargetError, find_target, target_names
from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.hw.tools.run_tool import run_tool
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from core_runs import SMALL
from netlists import VERILOG
from suites import slow

CELLS = FAMILIES["ecp5"].cells

# --- Targets ------------------------------------------------------------------------------------------------------


def test_every_target_can_be_found():
    assert {"ulx3s-85f", "ecp5-85", "ice40-up5k", "gw2a-18", "xc7a100t", "ecp5"} <= set(target_names())
    for name in target_names():
        target = find_target(name)
        assert target.name == name and target.family.name == target.part.family and target.clock_mhz > 0
        assert set(target.part.available) == set(RESOURCES)


def test_boards_have_parts_and_presets():
    for name, board in BOARDS.items():
        target = find_target(name)
        assert target.board is board and target.clock_mhz == board.clock_mhz and board.preset in PRESETS
        same = target.options == find_target(board.part).options
        assert same == name.startswith(("ulx3s", "crosslink")), "these have the package and the speed grade of a bare part"


def test_unknown_target():
    with pytest.raises(TargetError, match="ulx3s-85f.*ecp5-85.*xc7a100t.*not 'ecp6'"):
        find_target("ecp6")


# --- Netlists -----------------------------------------------------------------------------------------------------


def test_layout():
    layout = BlockHierarchy(VERILOG, "top")
    assert layout.chain == {"top": "", "system": "system", "tpu": "system.core"}
    assert layout.blocks == {
        "system.bridge": ("bridge", "bridge"),
        "system.memory": ("memory", "ram"),
        "system.core.array": ("array", "tpu_array"),
        "system.core.memory": ("system.core.memory", "tpu_memory"),
    }
    assert layout.block_of("system.core.array.row_0.x_TRELLIS_FF_Q") == "array"
    assert layout.block_of("system.core.array_LUT4_Z") == "tpu"
    assert layout.block_of("system.core.memory.0.0") == "system.core.memory"
    assert layout.block_of("system.memory.0.0") == "memory"
    assert layout.block_of("system.busy_LUT4_Z") == layout.block_of("rst_TRELLIS_FF_Q") == "top"
    assert BlockHierarchy(VERILOG, "tpu").chain == {"tpu": ""}


def test_both_ways_of_counting_agree():
    modules = {
        "top": {"system": 1, "EHXPLLL": 1, "LUT4": 1},
        "system": {"bridge": 1, "ram": 1, "tpu": 1, "TRELLIS_FF": 1},
        "bridge": {"LUT4": 5},
        "ram": {"DP16KD": 4},
        "tpu": {"tpu_array": 1, "tpu_memory": 1, "LUT4": 2},
        "tpu_array": {"tpu_array_row": 2},
        "tpu_array_row": {"MULT18X18D": 1, "CCU2C": 3},
        "tpu_memory": {"TRELLIS_DPR16X4": 1},
    }
    layout, cells = BlockHierarchy(VERILOG, "top"), {}

    def flatten(module, path):
        for cell, number in modules[module].items():
            if cell not in modules:
                cells.update({f"{path}{cell}_{index}": {"type": cell} for index in range(number)})
        for instance, child in layout._instances[module]:
            flatten(child, f"{path}{instance}.")

    flatten("top", "")
    counts = layout.count_modules(modules, CELLS)
    assert counts == layout.count_flat(cells, CELLS)
    assert counts == {
        "array": {"lut": 12, "ff": 0, "dsp": 2, "bram": 0},
        "bridge": {"lut": 5, "ff": 0, "dsp": 0, "bram": 0},
        "memory": {"lut": 0, "ff": 0, "dsp": 0, "bram": 4},
        "system.core.memory": {"lut": 6, "ff": 0, "dsp": 0, "bram": 0},
        "top": {"lut": 1, "ff": 1, "dsp": 0, "bram": 0},
        "tpu": {"lut": 2, "ff": 0, "dsp": 0, "bram": 0},
    }


def test_memories_that_became_registers():
    verilog = (
        "module a;\n  reg [7:0] storage [0:0];\n  always\n    storage[0] <= 1;\nendmodule\n"
        "module b;\n  reg [7:0] storage [3:0];\n  always\n    storage[0] <= 1;\nendmodule\n"
    )
    log = "Warning: Replacing memory \\storage with list of registers. See design.v:{}\n"
    assert registers_for_memories(log.format(4), verilog) == {}
    assert registers_for_memories(log.format(9), verilog) == {"storage": 32}
    assert registers_for_memories("using FF mapping for memory tpu_store.queue\n", verilog) == {"tpu_store.queue": None}


def test_blocks_of_a_core_are_found():
    """The block hierarchy is found in the Verilog of a core, with the names of its main blocks."""
    verilog = verilog_of(SMALL)
    blocks = [name for name, _ in BlockHierarchy(verilog + on_scan_chain(verilog), "top").blocks.values()]
    assert {"array", "unified_buffer", "accumulators", "weight_fifo", "dispatcher", "decoder", "registers"} <= set(blocks)


# --- Running tools ------------------------------------------------------------------------------------------------


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Returns a function that runs the given line of Python in place of a synthesis tool. The line must write the file `made`;
    the function returns the folder."""
    package = tmp_path / "packages" / "yowasp_fake"
    package.mkdir(parents=True)
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.syspath_prepend(str(package.parent))

    def run(code, timeout=30, **options):
        (package / "__init__.py").write_text(f"import time\ndef run_fake(arguments):\n    {code}\n")
        run_tool(
            "fake",
            ["x"],
            folder=folder,
            makes="made",
            timeout=timeout,
            programs={"fake": ("yowasp-fake", "yowasp_fake", "run_fake")},
            **options,
        )
        return folder

    return run


def test_tool(tool):
    seen = []
    folder = tool("print('hello', arguments); open('made', 'w').close()", progress=lambda *what: seen.append(what))
    assert (folder / "fake.log").read_text() == "hello ['x']\n" and seen[-1] == ("fake", "")


def test_tool_that_fails(tool):
    with pytest.raises(ToolError, match="status 3.*ERROR: no such cell.*fake.log"):
        tool("print('ERROR: no such cell'); print('bye'); return 3")


def test_tool_that_dies_with_status_0(tool):
    """A tool that exits with 0 but does not write its output is an error, although an earlier run's output exists."""
    tool("open('made', 'w').close()")
    with pytest.raises(ToolError, match="status 0; it said: working"):
        tool("print('working')")


def test_tool_that_does_not_end(tool):
    with pytest.raises(ToolError, match="fake did not end within 1 s; its log is .*fake.log"):
        tool("time.sleep(60)", timeout=1)


def test_tool_that_is_missing(tmp_path):
    with pytest.raises(ToolError, match="icepack not found; install it with: .*pip install yowasp-none"):
        run_tool(
            "icepack",
            [],
            folder=tmp_path,
            makes="x",
            timeout=1,
            programs={"icepack": ("yowasp-none", "yowasp_none", "run_icepack")},
        )
    assert not list(tmp_path.iterdir())


# --- Sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part, n, said",
    [
        ("ecp5-25", 8, "n = 8 does not fit ecp5-25: its cells take at least 64 DSP of 28; try --n 4 or less, or a larger part"),
        ("ice40-hx8k", 4, "at least 8,000 LUT of 7,680; try --n 2 or less"),
        ("xc7k325t", 128, "at least 16,384 DSP of 840; try --n 16 or less"),
    ],
)
def test_too_many_cells_are_refused_before_the_work(tmp_path, part, n, said):
    with pytest.raises(SynthesisError, match=re.escape(said)):
        implement(Config(n=n), find_target(part), tmp_path / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("generated, characters, yosys", [(1.9, 358_440, 52), (3.2, 800_716, 187)])
def test_expected_time_is_shown(tmp_path, monkeypatch, generated, characters, yosys):
    """The expected times are near measured times: seconds of Yosys, and 40 minutes of nextpnr for 45,137 LUTs."""
    said, clock, blocks = [], itertools.count(0, generated), {"array": dict.fromkeys(RESOURCES, 0) | {"lut": 45_137}}
    layout = BlockHierarchy(VERILOG, "tpu")

    def tool(result, name):
        return lambda *_, progress, **options: progress(name, "at work") or result

    monkeypatch.setattr(implementation, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(implementation, "_design", lambda *_: (" " * characters, "tpu"))
    monkeypatch.setattr(implementation, "synthesize", tool((blocks, {}, 0, layout), "yosys"))
    monkeypatch.setattr(implementation, "place_and_route", tool(None, "nextpnr-ecp5"))
    monkeypatch.setattr(implementation, "need_tools", lambda kind: None)
    with pytest.raises(TypeError):  # there is no report of nextpnr
        implementation.implement(Config(n=2, **PLAIN), find_target("ecp5-85"), tmp_path, pnr=True, progress=said.append)
    found = [re.fullmatch(r"(\S+) \(about (\d+) (s|min)\): at work", text).groups() for text in said[1:]]
    seconds = {tool: int(number) * {"s": 1, "min": 60}[unit] for tool, number, unit in found}
    assert yosys / 1.5 < seconds["yosys"] < 1.5 * yosys
    assert 2400 / 1.5 < seconds["nextpnr-ecp5"] < 1.5 * 2400


def test_largest_cores(tmp_path):
    """The search for the largest core fits n to each part, for a core of 400 LUTs per cell and 10,000 more, and reports the
    limiting resource."""
    tried = []

    def measure(config, target, folder, progress):
        tried.append((target.name, config.n))
        return {"lut": 10_000 + 400 * config.n**2, "ff": 100, "dsp": config.n**2 + 1, "bram": 4 * config.n}

    names = ["ecp5-85", "ecp5-25", "ice40-up5k", "xc7a200t", "xc7k325t"]
    found = largest_cores(names, tmp_path, implement=measure)
    assert [figure["n"] for figure in found] == [8, 4, None, 16, 16]
    assert tried == [("ecp5-85", 8), ("ecp5-25", 4), ("ice40-up5k", 2), ("xc7a200t", 16)]
    assert found[0]["next"] == {"dsp": 256} and found[2]["next"] == found[2]["used"] and found[2]["used"]["lut"] == 11_600
    [figure] = largest_cores(
        ["ecp5-45"], tmp_path, implement=lambda config, *_, progress: dict.fromkeys(RESOURCES, 10 * config.n**2)
    )
    assert figure["n"] == 2 and figure["used"]["bram"] == 40 and figure["next"]["bram"] == 160 > figure["available"]["bram"]


# --- With the tools -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flat, across_blocks", [*slow((False, False), (True, False)), (True, True)])
def test_board_with_a_pll(tmp_path, flat, across_blocks):
    """Synthesis accepts primitives of the FPGA family, such as a PLL, that the Verilog does not define."""
    core = "module tpu (\n  input  wire clk,\n  output reg  q\n);\n  always @(posedge clk) q <= ~q;\nendmodule\n"
    top = (
        "module top (input wire c, output wire q);\n  wire clk;\n  EHXPLLL pll (.CLKI(c), .CLKOP(clk));\n"
        "  tpu core (.clk(clk), .q(q));\nendmodule\n"
    )
    blocks, _, _, layout = synthesize(
        core + top, find_target("ulx3s-25f"), tmp_path, top="top", flat=flat, across_blocks=across_blocks
    )
    assert sum(block["ff"] for block in blocks.values()) == 1
    assert across_blocks or blocks["tpu"]["ff"] == 1 and layout.chain == {"top": "", "tpu": "core"}


@pytest.mark.parametrize("flat", [False, *slow(True)])
def test_latch(tmp_path, flat):
    verilog = "module tpu (\n  input  wire e,\n  input  wire d,\n  output reg  q\n);\n  always_latch if (e) q = d;\nendmodule\n"
    with pytest.raises(SynthesisError, match="latches: tpu/"):
        synthesize(verilog, find_target("ecp5-25"), tmp_path, top="tpu", flat=flat)


def test_known_modules_are_not_synthesized_again(tmp_path):
    """A module that differs only in the numbers of internal nets keeps the cells of an earlier synthesis: 1,000 flip-flops. A
    module with another text is synthesized, and so is a module around it."""
    ports = "(\n  input wire clk,\n  output wire q\n);\n"
    design = (
        f"module tpu_a {ports}  reg r;\n  wire \\$7 ;\n  assign \\$7 = ~r;\n  always @(posedge clk) r <= \\$7 ;\n"
        "  assign q = r;\nendmodule\n"
        f"module tpu_c {ports}  reg r;\n  always @(posedge clk) r <= ~r;\n  assign q = r;\nendmodule\n"
        f"module tpu_b {ports}  wire x;\n  reg r;\n  tpu_c \\table  (\n    .clk(clk),\n    .q(x)\n  );\n"
        "  always @(posedge clk) r <= x;\n  assign q = r;\nendmodule\n"
        "module tpu (\n  input wire clk,\n  output wire x,\n  output wire y\n);\n"
        "  tpu_a a (\n    .clk(clk),\n    .q(x)\n  );\n  tpu_b b (\n    .clk(clk),\n    .q(y)\n  );\nendmodule\n"
    )
    known: dict = {}

    def flip_flops(text):
        blocks, *_ = synthesize(text, find_target("ecp5-25"), tmp_path, top="tpu", flat=False, known=known)
        return {name: block["ff"] for name, block in blocks.items()}

    assert flip_flops(design) == {"a": 1, "b": 2} and len(known) == 4
    for counts in known.values():
        if "TRELLIS_FF" in counts:
            counts["TRELLIS_FF"] = 1000
    assert flip_flops(design.replace("$7", "$9").replace("r <= ~r", "r <= r ^ 1")) == {"a": 1000, "b": 2}


def test_netlist_is_whole_or_missing(tmp_path, monkeypatch):
    """If Yosys is ended while it writes, the folder has no `netlist.json`."""

    def ended(name, arguments, *, folder, makes, **others):
        assert f"-json {makes} " in (folder / "synth.ys").read_text()
        (folder / makes).write_text('{"modules": {')
        raise KeyboardInterrupt

    monkeypatch.setattr(synthesis, "run_tool", ended)
    core = "module tpu (\n  input  wire clk,\n  output reg  q\n);\n  always @(posedge clk) q <= ~q;\nendmodule\n"
    with pytest.raises(KeyboardInterrupt):
        synthesize(core, find_target("ecp5-25"), tmp_path, top="tpu", flat=True)
    assert not (tmp_path / "netlist.json").exists()
