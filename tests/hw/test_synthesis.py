"""The way to an FPGA: what is read from the tools' files, what is an error, and a small core routed (slow)."""

import io
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
from rich.console import Console

from amaranth_tpu.hw.boards import BOARDS
from amaranth_tpu.hw.config import PLAIN, PRESETS, Config
from amaranth_tpu.hw.fpga.area_picture import area_picture, squarify
from amaranth_tpu.hw.fpga.devices import largest_cores
from amaranth_tpu.hw.fpga.implement import advice, implement, shortcomings
from amaranth_tpu.hw.fpga.netlist import Layout, registers_for_memories
from amaranth_tpu.hw.fpga.place_and_route import core_clock, critical_path, place_and_route, used
from amaranth_tpu.hw.fpga.run_tool import fpga_tool, phase
from amaranth_tpu.hw.fpga.scan_chain import on_scan_chain
from amaranth_tpu.hw.fpga.synthesis import SynthesisError, synthesize
from amaranth_tpu.hw.fpga.targets import FAMILIES, PARTS, RESOURCES, TargetError, find_target, target_names
from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.hw.verilog.export import to_verilog
from amaranth_tpu.scripts.show.terminal import show_synthesis

CELLS = FAMILIES["ecp5"].cells

#: A board around a core, as Yosys writes it.
VERILOG = """
module tpu_array_row (input wire clk);
endmodule
module tpu_array (input wire clk);
  tpu_array_row row_0 (
    .clk(clk)
  );
  tpu_array_row row_1 (
    .clk(clk)
  );
endmodule
module tpu_memory(clk);
endmodule
module tpu (
  input  wire clk
);
  tpu_array array (
    .clk(clk)
  );
  tpu_memory memory (
    .clk(clk)
  );
endmodule
module system (input wire clk);
  bridge bridge (
    .clk(clk)
  );
  ram memory (
    .clk(clk)
  );
  tpu core (
    .clk(clk)
  );
endmodule
module bridge (input wire clk);
endmodule
module ram (input wire clk);
endmodule
module top (input wire clk);
  EHXPLLL pll (
    .CLKI(clk)
  );
  system system (
    .clk(clk)
  );
endmodule
"""


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
        assert {f"--package={board.package}", f"--speed={board.speed}"} <= {
            f"{option}={value}" for option, value in zip(target.part.options, target.part.options[1:])}


def test_unknown_target():
    with pytest.raises(TargetError, match="ulx3s-85f.*ecp5-85.*xc7a100t.*not 'ecp6'"):
        find_target("ecp6")


# --- Netlists -----------------------------------------------------------------------------------------------------

def test_layout():
    layout = Layout(VERILOG, "top")
    assert layout.chain == {"top": "", "system": "system", "tpu": "system.core"}
    assert layout.blocks == {
        "system.bridge": ("bridge", "bridge"), "system.memory": ("memory", "ram"),
        "system.core.array": ("array", "tpu_array"), "system.core.memory": ("system.core.memory", "tpu_memory")}
    assert layout.block_of("system.core.array.row_0.x_TRELLIS_FF_Q") == "array"
    assert layout.block_of("system.core.array_LUT4_Z") == "tpu"
    assert layout.block_of("system.core.memory.0.0") == "system.core.memory"
    assert layout.block_of("system.memory.0.0") == "memory"
    assert layout.block_of("system.busy_LUT4_Z") == layout.block_of("rst_TRELLIS_FF_Q") == "top"
    assert Layout(VERILOG, "tpu").chain == {"tpu": ""}


def test_both_ways_of_counting_agree():
    modules = {"top": {"system": 1, "EHXPLLL": 1, "LUT4": 1}, "system": {"bridge": 1, "ram": 1, "tpu": 1, "TRELLIS_FF": 1},
               "bridge": {"LUT4": 5}, "ram": {"DP16KD": 4}, "tpu": {"tpu_array": 1, "tpu_memory": 1, "LUT4": 2},
               "tpu_array": {"tpu_array_row": 2}, "tpu_array_row": {"MULT18X18D": 1, "CCU2C": 3},
               "tpu_memory": {"TRELLIS_DPR16X4": 1}}
    layout, cells = Layout(VERILOG, "top"), {}

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
        "array": {"lut": 12, "ff": 0, "dsp": 2, "bram": 0}, "bridge": {"lut": 5, "ff": 0, "dsp": 0, "bram": 0},
        "memory": {"lut": 0, "ff": 0, "dsp": 0, "bram": 4}, "system.core.memory": {"lut": 6, "ff": 0, "dsp": 0, "bram": 0},
        "top": {"lut": 1, "ff": 1, "dsp": 0, "bram": 0}, "tpu": {"lut": 2, "ff": 0, "dsp": 0, "bram": 0}}


def test_memories_that_became_registers():
    verilog = "module a;\n  reg [7:0] storage [0:0];\n  always\n    storage[0] <= 1;\nendmodule\n" \
              "module b;\n  reg [7:0] storage [3:0];\n  always\n    storage[0] <= 1;\nendmodule\n"
    log = "Warning: Replacing memory \\storage with list of registers. See design.v:{}\n"
    assert registers_for_memories(log.format(4), verilog) == {}
    assert registers_for_memories(log.format(9), verilog) == {"storage": 32}
    assert registers_for_memories("using FF mapping for memory tpu_store.queue\n", verilog) == {"tpu_store.queue": None}


def test_text_of_a_core():
    """Its blocks are found."""
    verilog = to_verilog(Config(n=2, unified_buffer_depth=128, accumulator_depth=128, **PLAIN))
    blocks = [name for name, _ in Layout(verilog + on_scan_chain(verilog), "top").blocks.values()]
    assert {"array", "unified_buffer", "accumulators", "weight_fifo", "dispatcher", "decoder", "registers"} <= set(blocks)


# --- Place and route ----------------------------------------------------------------------------------------------

def _step(kind, start, end, delay, net=None):
    start, end = ({"cell": cell, "port": port} for cell, port in (start, end))
    return {"type": kind, "from": start, "to": end, "delay": delay} | ({"net": net} if net else {})


PATH = [
    _step("clk-to-q", ("system.core.array.row_0.x_TRELLIS_FF_Q_3", "Q"), ("system.core.array.row_0.x_TRELLIS_FF_Q_3", "Q"), 0.5),
    _step("routing", ("system.core.array.row_0.x_TRELLIS_FF_Q_3", "Q"), ("$nextpnr_CCU2C_7$CCU2_COMB0", "A"), 1.0,
          "system.core.array.row_0.x[3]"),
    _step("logic", ("$nextpnr_CCU2C_7$CCU2_COMB0", "A"), ("$nextpnr_CCU2C_7$CCU2_COMB0", "F"), 0.25),
    _step("setup", ("system.bridge.left_LUT4_Z_1_D_LUT4_Z", "F"), ("system.bridge.left_TRELLIS_FF_Q", "DI"), 0.25),
]


def test_critical_path():
    short = [_step("clk-to-q", ("a", "Q"), ("a", "Q"), 0.5)]
    slow = [_step("routing", ("pin", "O"), ("x", "D"), 9.0)]
    report = {"critical_paths": [
        {"from": "posedge clk", "to": "posedge clk", "path": PATH}, {"from": "negedge clk", "to": "posedge clk", "path": short},
        {"from": "posedge io", "to": "posedge io", "path": slow}, {"from": "<async>", "to": "posedge clk", "path": slow}]}
    steps = critical_path(report, "clk", Layout(VERILOG, "top"))
    assert [step["block"] for step in steps] == ["array", "array", "array", "bridge"]
    assert sum(step["delay_ns"] for step in steps) == 2
    assert steps[0]["from"] == "array.row_0.x" and steps[1]["net"] == "system.core.array.row_0.x[3]"
    assert steps[-1]["from"] == "system.bridge.left" and steps[-1]["to_cell"] == "system.bridge.left_TRELLIS_FF_Q.DI"
    assert critical_path({"critical_paths": []}, "clk", Layout(VERILOG, "top")) == []


def test_clock_of_the_core():
    clocks = {"osc": {"achieved": 20.0, "constraint": 25.0}, "core": {"achieved": 90.0, "constraint": 95.02}}
    assert core_clock({"fmax": clocks}, 95) == {"name": "core", "achieved": 90.0, "constraint": 95.02}
    assert core_clock({"fmax": clocks}, 60)["name"] == "osc"


def test_used():
    report = {"utilization": {"TRELLIS_COMB": {"used": 7, "available": 9}, "MULT18X18D": {"used": 4, "available": 9}}}
    assert used(report, "ecp5") == {"lut": 7, "ff": 0, "dsp": 4, "bram": 0}
    assert used({"utilization": {"LUT4": {"used": 7}, "ALU": {"used": 2}}}, "himbaechel-gowin")["lut"] == 9


def test_phase():
    assert phase("") == ""
    assert phase("1. Executing RTLIL frontend.\n2.1. Executing PROC pass (x).\n3.2.1. Executing ABC9_EXE pass (y).\n") == "ABC9_EXE"
    assert phase("Info: Packing LUTs...\n") == "packing"
    assert phase("Info: Running main analytical placer, max\nInfo:     at iteration #12, type ALL\n") == "placing, iteration 12"
    routing = "Info: Routing..\nInfo:    IterCnt |  w/ripup   wo/ripup |  w/r\n" \
              "Info:       1000 |       22        977 |   22   977 |     52518|       0.83       0.83|\n"
    assert phase(routing) == "routing, 52,518 arcs to go"


# --- Running tools ------------------------------------------------------------------------------------------------

@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Makes a package with one program out of a few lines of Python, and runs it."""
    package = tmp_path / "packages" / "yowasp_fake"
    package.mkdir(parents=True)
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.syspath_prepend(str(package.parent))

    def run(code, timeout=30, **options):
        (package / "__init__.py").write_text(f"import time\ndef run_fake(arguments):\n    {code}\n")
        fpga_tool("fake", ["x"], folder=folder, makes="made", timeout=timeout,
                  programs={"fake": ("yowasp-fake", "yowasp_fake", "run_fake")}, **options)
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
    """And leaves what another run has made."""
    tool("open('made', 'w').close()")
    with pytest.raises(ToolError, match="status 0; it said: working"):
        tool("print('working')")


def test_tool_that_does_not_end(tool):
    with pytest.raises(ToolError, match="fake did not end within 1 s; its log is .*fake.log"):
        tool("time.sleep(60)", timeout=1)


def test_tool_that_is_missing(tmp_path):
    with pytest.raises(ToolError, match="icepack not found; install it with: .*pip install yowasp-none"):
        fpga_tool("icepack", [], folder=tmp_path, makes="x", timeout=1,
                  programs={"icepack": ("yowasp-none", "yowasp_none", "run_icepack")})
    assert not list(tmp_path.iterdir())


# --- Reports ------------------------------------------------------------------------------------------------------

def _report(**changes):
    config = Config(n=2, unified_buffer_depth=1024, accumulator_depth=256)
    block = dict.fromkeys(RESOURCES, 0)
    blocks = {"array": block | {"lut": 2000, "dsp": 4}, "unified_buffer": block | {"bram": 2},
              "accumulators": block | {"lut": 50, "bram": 4}}
    report = {"target": "ecp5-25", "n": 2, "blocks": blocks, "total": {"lut": 2050, "ff": 0, "dsp": 4, "bram": 6}, "met": None,
              "available": PARTS["ecp5-25"].available, "fmax_mhz": None, "clock_mhz": 80.0, "registers_for_memories": {}}
    return report | changes, config, find_target("ecp5-25")


def test_nothing_is_wrong():
    assert shortcomings(*_report()) == []


@pytest.mark.parametrize("change, said", [
    ({"total": {"lut": 30_000, "ff": 0, "dsp": 4, "bram": 57}},
     "n = 2 does not fit ecp5-25: it takes 30,000 LUT of 24,288, 57 BRAM of 56$"),
    ({"met": False, "fmax_mhz": 71.26}, "missed: 71.3 MHz < 80.0 MHz"),
])
def test_what_is_wrong(change, said):
    found = shortcomings(*_report(**change))
    assert len(found) == 1
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(found[0])


@pytest.mark.parametrize("changes, total, said", [
    ({}, {"lut": 25_000}, ["try fewer functions (--no-pooling, --no-softmax, --table-lanes 0)", "try a larger part (--target)"]),
    ({}, {"lut": 30_000}, ["try a larger part (--target): no core is small enough for this one"]),
    (PLAIN, {"lut": 25_000}, ["try a larger part (--target): no core is small enough for this one"]),
    ({"n": 4} | PLAIN, {"lut": 30_000}, ["try a smaller --n", "try a larger part (--target)"]),
    (PLAIN, {"bram": 57}, ["try smaller buffers (--unified-buffer-depth, --accumulator-depth)", "try a larger part (--target)"]),
    ({}, {"bram": 57, "lut": 30_000}, ["try a larger part (--target): no core is small enough for this one"]),
    ({}, {}, []),
])
def test_advice_on_size(changes, total, said):
    """Only what can be enough: functions take 2,000 LUTs here, buffers 6 block RAMs."""
    report, config, target = _report()
    report["blocks"]["activation"] = {"lut": 2000, "ff": 0, "dsp": 0, "bram": 0}
    report["total"] |= total
    assert advice(report, Config(**{"n": 2} | changes), target) == said


def test_advice_on_speed():
    """On a part alone, where no clock is missed, too."""
    report, _, target = _report(fmax_mhz=39.6, clock_mhz=100.0)
    assert advice(report, Config(n=2), target) == [
        "39.6 MHz reached, 100.0 MHz aimed at: a cell of more stages is faster (--cell-stages, now 3, at most 9)"]
    assert "--seed" in advice(report, Config(n=2, cell_stages=9), target)[0]
    assert advice(report | {"fmax_mhz": 101.0}, Config(n=2), target) == []


@pytest.mark.parametrize("block, resource, said", [
    ("array", "dsp", "3 DSPs for the 4 multipliers"),
    ("unified_buffer", "bram", "1 block RAMs for the 2 memories of unified_buffer"),
    ("accumulators", "bram", "of accumulators"),
])
def test_not_where_it_should_be(block, resource, said):
    report, config, target = _report()
    report["blocks"][block][resource] = {"dsp": 3, "bram": 1}[resource]
    found = shortcomings(report, config, target)
    assert len(found) == 1 and said in found[0]


def test_report_for_people():
    steps = critical_path({"critical_paths": [{"from": "posedge clk", "to": "posedge clk", "path": PATH}]}, "clk", Layout(VERILOG, "top"))
    report, _, _ = _report(placed=True, part="ecp5-25", lut=2050, ff=0, dsp=4, bram=6, fmax_mhz=71.26, met=False, critical_path=steps,
                           bitstream="x/top.bit", picture="x/area.svg", registers_for_memories={"tpu_store.queue": None})
    report["blocks"]["placement"] = dict.fromkeys(RESOURCES, 0)
    console = Console(file=io.StringIO(), width=120)
    show_synthesis(console, report)
    said = console.file.getvalue()
    for text in ("n = 2 on ecp5-25, placed by nextpnr", "97.6%", "24,288", "71.3 MHz, 80.0 MHz missed", "tpu_store.queue", "x/top.bit", "\nplacement: added by",
                 "2.00 ns, from array.row_0.x to system.bridge.left"):
        assert text in said, said
    rows = {cells[1].strip(): [cell.strip() for cell in cells[2:-1]] for cells in (line.split("│") for line in said.splitlines())
            if len(cells) == 7}
    assert rows["array"][1:] == ["1", "0.75", "1.00"] and rows["bridge"][1:] == ["0", "0.25", "0.00"]


def test_no_place_and_route_for_the_family(tmp_path):
    with pytest.raises(SynthesisError, match="xc7a100t can only be synthesized.*--pnr"):
        implement(Config(n=2), find_target("xc7a100t"), tmp_path / "x", pnr=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("part, n, said", [
    ("ecp5-25", 8, "n = 8 does not fit ecp5-25: its cells take at least 64 DSP of 28; try --n 4 or less, or a larger part"),
    ("ice40-hx8k", 4, "at least 8,000 LUT of 7,680; try --n 2 or less"),
    ("xc7k325t", 128, "at least 16,384 DSP of 840; try --n 16 or less"),
])
def test_too_many_cells_are_refused_before_the_work(tmp_path, part, n, said):
    with pytest.raises(SynthesisError, match=re.escape(said)):
        implement(Config(n=n), find_target(part), tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_largest_cores(tmp_path):
    """The search, with a core whose cells take 400 LUTs, and 10,000 more."""
    tried = []

    def measure(config, target, folder, progress):
        tried.append((target.name, config.n))
        return {"lut": 10_000 + 400 * config.n ** 2, "ff": 100, "dsp": config.n ** 2 + 1, "bram": 4 * config.n}

    names = ["ecp5-85", "ecp5-25", "ice40-up5k", "xc7a200t", "xc7k325t"]
    found = largest_cores(names, tmp_path, implement=measure)
    assert [figure["n"] for figure in found] == [8, 4, None, 16, 16]
    assert tried == [("ecp5-85", 8), ("ecp5-25", 4), ("ice40-up5k", 2), ("xc7a200t", 16)]
    assert found[0]["next"] == {"dsp": 256} and found[2]["next"] == found[2]["used"] and found[2]["used"]["lut"] == 11_600
    [figure] = largest_cores(["ecp5-45"], tmp_path,
                             implement=lambda config, *_, progress: dict.fromkeys(RESOURCES, 10 * config.n ** 2))
    assert figure["n"] == 2 and figure["used"]["bram"] == 40 and figure["next"]["bram"] == 160 > figure["available"]["bram"]


def test_missing_tools_are_found_out_first(tmp_path, monkeypatch):
    monkeypatch.setattr("amaranth_tpu.hw.fpga.run_tool.importlib.util.find_spec", lambda name: None if name == "apycula" else True)
    with pytest.raises(ToolError, match="gowin_pack not found; install it with: .*pip install Apycula"):
        implement(Config(n=2), find_target("gw2a-18"), tmp_path / "x", pnr=True)
    assert not list(tmp_path.iterdir())


def test_squarify():
    values = [60, 25, 10, 4, 1]
    places = squarify(values, 10, 20, 300, 200)
    assert [wide * high for *_, wide, high in places] == pytest.approx([value * 600 for value in values])
    for x, y, wide, high in places:
        assert x >= 10 - 1e-9 and y >= 20 - 1e-9 and x + wide <= 310 + 1e-6 and y + high <= 220 + 1e-6
    for index, (x, y, wide, high) in enumerate(places):
        for u, v, wider, higher in places[index + 1:]:
            assert x + wide <= u + 1e-6 or u + wider <= x + 1e-6 or y + high <= v + 1e-6 or v + higher <= y + 1e-6
    assert squarify([], 0, 0, 1, 1) == []


def test_picture():
    report, _, _ = _report(fmax_mhz=81.5)
    text = area_picture(report)
    labels = [element.text for element in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}title")]
    assert labels == ["array: 2,000 LUTs, 97.6%", "accumulators: 50 LUTs, 2.4%"]
    assert "81.5 MHz" in text and "LUT: 2,050 of 24,288 (8%)" in text


# --- With the tools -----------------------------------------------------------------------------------------------

def test_scan_chain_takes_every_port():
    core = "module tpu (\n  input  wire aclk,\n  input  wire aresetn,\n  input  wire [3:0] a,\n  output reg  [2:0] b = 3'h0,\n" \
           "  output wire irq\n);\nendmodule\n"
    text = on_scan_chain(core)
    for connection in (".aclk(clk)", ".aresetn(drive[0:0])", ".a(drive[4:1])", ".b(seen[2:0])", ".irq(seen[3:3])"):
        assert connection in text


@pytest.mark.slow
@pytest.mark.parametrize("part", [part.name for part in PARTS.values() if FAMILIES[part.family].place_and_route])
def test_to_a_bitstream(part, tmp_path):
    """Every tool on a part, with next to nothing in the core."""
    core = """
module tpu_unit (
  input  wire clk,
  input  wire [7:0] a,
  output reg  [15:0] y
);
  always @(posedge clk) y <= y + a * 3;
endmodule
module tpu (
  input  wire aclk,
  input  wire [7:0] a,
  output wire [15:0] y
);
  tpu_unit unit (
    .clk(aclk), .a(a), .y(y)
  );
endmodule
"""
    target = find_target(part)
    blocks, memories, layout = synthesize(core + on_scan_chain(core), target, tmp_path, top="top", flat=True)
    assert set(blocks) == {"unit", "top"} and blocks["unit"]["ff"] == 16 and blocks["top"]["ff"] == 8 + 16 and memories == {}
    report, bitstream = place_and_route(target, tmp_path)
    assert bitstream.stat().st_size > 10_000
    for resource, count in used(report, target.family.place_and_route).items():
        assert sum(block[resource] for block in blocks.values()) <= count <= target.part.available[resource]
    clock = core_clock(report, target.clock_mhz)
    assert clock["constraint"] == target.clock_mhz and clock["achieved"] > 50
    path = critical_path(report, clock["name"], layout)
    assert path[0]["kind"] == "clk-to-q" and path[-1]["kind"] == "setup" and path[-1]["to"] == "unit.y"


@pytest.mark.parametrize("flat, across_blocks", [(False, False), (True, False), (True, True)])
def test_board_with_a_pll(tmp_path, flat, across_blocks):
    """What is not in the Verilog, but in the family."""
    core = "module tpu (\n  input  wire clk,\n  output reg  q\n);\n  always @(posedge clk) q <= ~q;\nendmodule\n"
    top = "module top (input wire c, output wire q);\n  wire clk;\n  EHXPLLL pll (.CLKI(c), .CLKOP(clk));\n" \
          "  tpu core (.clk(clk), .q(q));\nendmodule\n"
    blocks, _, layout = synthesize(core + top, find_target("ulx3s-25f"), tmp_path, top="top", flat=flat, across_blocks=across_blocks)
    assert sum(block["ff"] for block in blocks.values()) == 1
    assert across_blocks or blocks["tpu"]["ff"] == 1 and layout.chain == {"top": "", "tpu": "core"}


@pytest.mark.parametrize("flat", [False, True])
def test_latch(tmp_path, flat):
    verilog = "module tpu (\n  input  wire e,\n  input  wire d,\n  output reg  q\n);\n  always_latch if (e) q = d;\nendmodule\n"
    with pytest.raises(SynthesisError, match="latches: tpu/"):
        synthesize(verilog, find_target("ecp5-25"), tmp_path, top="tpu", flat=flat)


@pytest.mark.slow
def test_routed(tmp_path):
    """A core of 2 x 2 on the smallest ECP5, to a bitstream."""
    said = []
    config = Config(n=2, cell_stages=5, unified_buffer_depth=1024, accumulator_depth=256, **PLAIN)
    report = implement(config, find_target("ecp5-25"), tmp_path, pnr=True, progress=said.append)
    assert report["errors"] == [] and report["fits"] and report["placed"]
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert open(report["bitstream"], "rb").read(2) == b"\xff\x00"
    for resource in RESOURCES:
        assert sum(block[resource] for block in report["blocks"].values()) == report[resource]
    assert {"array", "unified_buffer", "dispatcher", "placement"} <= set(report["blocks"])
    assert report["fmax_mhz"] > 20 and report["critical_path"][0]["kind"] == "clk-to-q"
    assert 1000 / report["fmax_mhz"] == pytest.approx(sum(step["delay_ns"] for step in report["critical_path"]), rel=0.02)
    assert {"yosys.log", "nextpnr.log"} <= {path.name for path in tmp_path.iterdir()}
    for stage in ("yosys: ", "placing", "routing"):
        assert any(stage in text for text in said)
