"""Tests of place and route, covering parsed files of nextpnr, reports and errors, and (in the slow suite) a small core up to the
bitstream."""

import io
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from rich.console import Console

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.fpga import place_and_route as routing
from amaranth_tpu.hw.fpga.area_picture import area_picture, squarify
from amaranth_tpu.hw.fpga.implement import advice, implement, shortcomings
from amaranth_tpu.hw.fpga.netlist import BlockHierarchy
from amaranth_tpu.hw.fpga.place_and_route import core_clock, critical_path, place_and_route, used
from amaranth_tpu.hw.fpga.scan_chain import on_scan_chain
from amaranth_tpu.hw.fpga.synthesis import SynthesisError, synthesize
from amaranth_tpu.hw.fpga.targets import FAMILIES, PARTS, RESOURCES, find_target
from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.hw.tools.tool_phase import phase
from amaranth_tpu.scripts.show.terminal import show_synthesis
from netlists import VERILOG

# --- Place and route ----------------------------------------------------------------------------------------------


def _step(kind, start, end, delay, net=None):
    start, end = ({"cell": cell, "port": port} for cell, port in (start, end))
    return {"type": kind, "from": start, "to": end, "delay": delay} | ({"net": net} if net else {})


PATH = [
    _step("clk-to-q", ("system.core.array.row_0.x_TRELLIS_FF_Q_3", "Q"), ("system.core.array.row_0.x_TRELLIS_FF_Q_3", "Q"), 0.5),
    _step(
        "routing",
        ("system.core.array.row_0.x_TRELLIS_FF_Q_3", "Q"),
        ("$nextpnr_CCU2C_7$CCU2_COMB0", "A"),
        1.0,
        "system.core.array.row_0.x[3]",
    ),
    _step("logic", ("$nextpnr_CCU2C_7$CCU2_COMB0", "A"), ("$nextpnr_CCU2C_7$CCU2_COMB0", "F"), 0.25),
    _step("setup", ("system.bridge.left_LUT4_Z_1_D_LUT4_Z", "F"), ("system.bridge.left_TRELLIS_FF_Q", "DI"), 0.25),
]


@pytest.mark.parametrize("name", ["ulx3s-25f", "ice40-up5k", "gw2a-18", "tang-primer-20k", "crosslink-nx"])
def test_packer_gets_the_part(name, monkeypatch, tmp_path):
    """nextpnr and the packer are called for each family. Gowin's packer gets the family that nextpnr gets."""
    calls = {}
    monkeypatch.setattr(routing, "run_tool", lambda tool, words, **_: calls.update({tool: words}))
    (tmp_path / "timing.json").write_text("{}")
    target = find_target(name)
    place_and_route(target, tmp_path, constraints="pins")
    router, packer = calls.values()
    assert len(calls) == 2 and {*target.options} <= {*router}
    if target.family.name == "gw2a":
        assert f"family={packer[packer.index('-d') + 1]}" in router


def test_critical_path():
    short = [_step("clk-to-q", ("a", "Q"), ("a", "Q"), 0.5)]
    slow = [_step("routing", ("pin", "O"), ("x", "D"), 9.0)]
    report = {
        "critical_paths": [
            {"from": "posedge clk", "to": "posedge clk", "path": PATH},
            {"from": "negedge clk", "to": "posedge clk", "path": short},
            {"from": "posedge io", "to": "posedge io", "path": slow},
            {"from": "<async>", "to": "posedge clk", "path": slow},
        ]
    }
    steps = critical_path(report, "clk", BlockHierarchy(VERILOG, "top"))
    assert [step["block"] for step in steps] == ["array", "array", "array", "bridge"]
    assert sum(step["delay_ns"] for step in steps) == 2
    assert steps[0]["from"] == "array.row_0.x" and steps[1]["net"] == "system.core.array.row_0.x[3]"
    assert steps[-1]["from"] == "system.bridge.left" and steps[-1]["to_cell"] == "system.bridge.left_TRELLIS_FF_Q.DI"
    assert critical_path({"critical_paths": []}, "clk", BlockHierarchy(VERILOG, "top")) == []


def test_critical_path_of_a_pod():
    """In the critical path of a pod, blocks are named by their core, and signal names lose their hierarchical prefix."""
    pod = VERILOG
    for name, other in (("module system", "module tpu_pod"), ("system system", "tpu_pod core"), ("tpu core", "tpu core0")):
        pod = pod.replace(name, other)
    path = [_step("setup", ("core.core0.array.x_LUT4_Z", "F"), ("core.core0.array.x_TRELLIS_FF_Q", "DI"), 1.0)]
    report = {"critical_paths": [{"from": "posedge clk", "to": "posedge clk", "path": path}]}
    (step,) = critical_path(report, "clk", BlockHierarchy(pod, "top"))
    assert step["from"] == "core0.array.x" and step["block"] == "core0"


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
    yosys = "1. Executing RTLIL frontend.\n2.1. Executing PROC pass (x).\n3.2.1. Executing ABC9_EXE pass (y).\n"
    assert phase(yosys) == "ABC9_EXE"
    assert phase("Info: Packing LUTs...\n") == "packing"
    assert phase("Info: Running main analytical placer, max\nInfo:     at iteration #12, type ALL\n") == "placing, iteration 12"
    routing = (
        "Info: Routing..\nInfo:    IterCnt |  w/ripup   wo/ripup |  w/r\n"
        "Info:       1000 |       22        977 |   22   977 |     52518|       0.83       0.83|\n"
    )
    assert phase(routing) == "routing, 52,518 arcs to go"


# --- Reports ------------------------------------------------------------------------------------------------------


def _report(**changes):
    config = Config(n=2, unified_buffer_depth=1024, accumulator_depth=256)
    block = dict.fromkeys(RESOURCES, 0)
    blocks = {
        "array": block | {"lut": 2000, "dsp": 4},
        "unified_buffer": block | {"bram": 2},
        "accumulators": block | {"lut": 50, "bram": 4},
    }
    report = {
        "target": "ecp5-25",
        "n": 2,
        "blocks": blocks,
        "total": {"lut": 2050, "ff": 0, "dsp": 4, "bram": 6},
        "met": None,
        "available": PARTS["ecp5-25"].available,
        "fmax_mhz": None,
        "clock_mhz": 80.0,
        "registers_for_memories": {},
        "with_output_registers": None,
        "paths": [],
    }
    return report | changes, config, find_target("ecp5-25")


def test_nothing_is_wrong():
    assert shortcomings(*_report()) == []


@pytest.mark.parametrize(
    "change, said",
    [
        (
            {"total": {"lut": 30_000, "ff": 0, "dsp": 4, "bram": 57}},
            "n = 2 does not fit ecp5-25: it takes 30,000 LUT of 24,288, 57 BRAM of 56$",
        ),
        ({"met": False, "fmax_mhz": 71.26}, "missed: 71.3 MHz < 80.0 MHz"),
    ],
)
def test_what_is_wrong(change, said):
    found = shortcomings(*_report(**change))
    assert len(found) == 1
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(found[0])


@pytest.mark.parametrize(
    "changes, total, said",
    [
        (
            {},
            {"lut": 25_000},
            ["try fewer functions (--no-pooling, --no-softmax, --table-lanes 0)", "try a larger part (--target)"],
        ),
        ({}, {"lut": 30_000}, ["try a larger part (--target): no core is small enough for this one"]),
        (PLAIN, {"lut": 25_000}, ["try a larger part (--target): no core is small enough for this one"]),
        ({"n": 4} | PLAIN, {"lut": 30_000}, ["try a smaller --n", "try a larger part (--target)"]),
        (
            PLAIN,
            {"bram": 57},
            ["try smaller buffers (--unified-buffer-depth, --accumulator-depth)", "try a larger part (--target)"],
        ),
        ({}, {"bram": 57, "lut": 30_000}, ["try a larger part (--target): no core is small enough for this one"]),
        ({}, {}, []),
    ],
)
def test_advice_on_size(changes, total, said):
    """The advice for a core that is too large names only options that can suffice. Here the functions take 2,000 LUTs and the
    buffers 6 block RAMs."""
    report, config, target = _report()
    report["blocks"]["activation"] = {"lut": 2000, "ff": 0, "dsp": 0, "bram": 0}
    report["total"] |= total
    assert advice(report, Config(**{"n": 2} | changes), target) == said


def test_advice_on_speed():
    """If the core misses the target frequency, the advice is more cell stages or, at nine stages, another seed. If the core
    meets the target frequency, there is no advice."""
    report, _, target = _report(fmax_mhz=39.6, clock_mhz=100.0)
    assert advice(report, Config(n=2), target) == [
        "39.6 MHz reached, 100.0 MHz aimed at: a cell of more stages is faster (--cell-stages, now 3, at most 9)"
    ]
    assert "--seed" in advice(report, Config(n=2, cell_stages=9), target)[0]
    assert advice(report | {"fmax_mhz": 101.0}, Config(n=2), target) == []


@pytest.mark.parametrize(
    "block, resource, said",
    [
        ("array", "dsp", "3 DSPs for the 4 multipliers"),
        ("unified_buffer", "bram", "1 block RAMs for the 2 memories of unified_buffer"),
        ("accumulators", "bram", "of accumulators"),
    ],
)
def test_not_where_it_should_be(block, resource, said):
    report, config, target = _report()
    report["blocks"][block][resource] = {"dsp": 3, "bram": 1}[resource]
    found = shortcomings(report, config, target)
    assert len(found) == 1 and said in found[0]


def test_slowest_paths_for_people():
    path = {"from_block": "load", "to_block": "reader", "from": "load.left", "to": "reader.len", "through": ["load"]}
    report, _, _ = _report(placed=False, part="ecp5-25", lut=0, ff=0, dsp=0, bram=0, bitstream=None, picture=None)
    report["paths"] = [path | {"luts": 5, "carries": 2, "delay_ns": 8.934}]
    console = Console(file=io.StringIO(), width=140)
    show_synthesis(console, report)
    said = console.file.getvalue()
    assert all(text in said for text in ("1 slowest paths", "load.left", "reader.len", "8.93")), said


def test_report_for_people():
    steps = critical_path(
        {"critical_paths": [{"from": "posedge clk", "to": "posedge clk", "path": PATH}]}, "clk", BlockHierarchy(VERILOG, "top")
    )
    made = dict(bitstream="x/top.bit", picture="x/area.svg", registers_for_memories={"tpu_store.queue": None})
    figures = dict(part="ecp5-25", lut=2050, ff=0, dsp=4, bram=6, fmax_mhz=71.26, met=False, with_output_registers=4)
    report, _, _ = _report(placed=True, critical_path=steps, **figures, **made)
    report["blocks"]["placement"] = dict.fromkeys(RESOURCES, 0)
    console = Console(file=io.StringIO(), width=120)
    show_synthesis(console, report)
    said = console.file.getvalue()
    for text in (
        "n = 2 on ecp5-25, placed by nextpnr",
        "97.6%",
        "24,288",
        "71.3 MHz, 80.0 MHz missed",
        "tpu_store.queue",
        "\n4 of 6 block RAMs use their output registers\n",
        "x/top.bit",
        "\nplacement: added by",
        "2.00 ns, from array.row_0.x to system.bridge.left",
    ):
        assert text in said, said
    rows = {
        cells[1].strip(): [cell.strip() for cell in cells[2:-1]]
        for cells in (line.split("│") for line in said.splitlines())
        if len(cells) == 7
    }
    assert rows["array"][1:] == ["1", "0.75", "1.00"] and rows["bridge"][1:] == ["0", "0.25", "0.00"]


def test_no_place_and_route_for_the_family(tmp_path):
    with pytest.raises(SynthesisError, match="xc7a100t can only be synthesized.*--pnr"):
        implement(Config(n=2), find_target("xc7a100t"), tmp_path / "x", pnr=True)
    assert not list(tmp_path.iterdir())


def test_missing_tools_are_found_out_first(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "amaranth_tpu.hw.tools.run_tool.importlib.util.find_spec", lambda name: None if name == "apycula" else True
    )
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
        for u, v, wider, higher in places[index + 1 :]:
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
    core = (
        "module tpu (\n  input  wire aclk,\n  input  wire aresetn,\n  input  wire [3:0] a,\n  output reg  [2:0] b = 3'h0,\n"
        "  output wire irq\n);\nendmodule\n"
    )
    text = on_scan_chain(core)
    for connection in (".aclk(clk)", ".aresetn(drive[0:0])", ".a(drive[4:1])", ".b(outputs[2:0])", ".irq(outputs[3:3])"):
        assert connection in text


@pytest.mark.slow
@pytest.mark.parametrize("part", [part.name for part in PARTS.values() if FAMILIES[part.family].place_and_route])
def test_bitstream_for_each_part(part, tmp_path):
    """Yosys, nextpnr and the packer make a bitstream for each part, from a nearly empty core."""
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
    blocks, memories, registered, layout = synthesize(core + on_scan_chain(core), target, tmp_path, top="top", flat=True)
    assert set(blocks) == {"unit", "top"} and blocks["unit"]["ff"] == 16 and blocks["top"]["ff"] == 8 + 16 + 16 and memories == {}
    assert registered == (0 if target.family.name == "ecp5" else None)
    report, bitstream = place_and_route(target, tmp_path)
    assert bitstream.stat().st_size > 10_000
    for resource, count in used(report, target.family.place_and_route).items():
        assert sum(block[resource] for block in blocks.values()) <= count <= target.part.available[resource]
    clock = core_clock(report, target.clock_mhz)
    assert clock["constraint"] == target.clock_mhz and clock["achieved"] > 50
    path = critical_path(report, clock["name"], layout)
    assert path[0]["kind"] == "clk-to-q" and path[-1]["kind"] == "setup" and path[-1]["to"] == "unit.y"


@pytest.mark.slow
def test_small_core_is_routed(tmp_path):
    """A 2 x 2 core on the smallest ECP5 is placed and routed, and its report agrees with the bitstream, the blocks' totals and
    the critical path."""
    said = []
    config = Config(n=2, cell_stages=5, unified_buffer_depth=1024, accumulator_depth=256, **PLAIN)
    report = implement(config, find_target("ecp5-25"), tmp_path, pnr=True, progress=said.append)
    assert report["errors"] == [] and report["fits"] and report["placed"]
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert Path(report["bitstream"]).read_bytes()[:2] == b"\xff\x00"
    for resource in RESOURCES:
        assert sum(block[resource] for block in report["blocks"].values()) == report[resource]
    assert {"array", "unified_buffer", "dispatcher", "placement"} <= set(report["blocks"])
    assert report["fmax_mhz"] > 20 and report["critical_path"][0]["kind"] == "clk-to-q"
    assert 1000 / report["fmax_mhz"] == pytest.approx(sum(step["delay_ns"] for step in report["critical_path"]), rel=0.02)
    assert {"yosys.log", "nextpnr.log"} <= {path.name for path in tmp_path.iterdir()}
    for stage in ("yosys (about ", "placing", "routing"):
        assert any(stage in text for text in said)
