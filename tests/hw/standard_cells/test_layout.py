"""Tests of the layout of the cell: figures by hand, errors, and real layouts against function and golden model."""

import io
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from test_standard_cells import TINY, expected_sums

from amaranth_tpu.hw.array.cell import Cell
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.standard_cells import layout as module
from amaranth_tpu.hw.standard_cells.energy import run_cell
from amaranth_tpu.hw.standard_cells.gate_run import GateRun
from amaranth_tpu.hw.standard_cells.layout import cell_layout, layout_figures
from amaranth_tpu.hw.standard_cells.libraries import LIBRARIES, load_library
from amaranth_tpu.hw.standard_cells.mapping import map_design
from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.hw.verilog.export import component_to_verilog
from amaranth_tpu.scripts.cli.command_line import RunFailed
from amaranth_tpu.scripts.cli.synth_cells import synth_cells
from amaranth_tpu.scripts.show.standard_cells import show_standard_cells

PROGRAMS = ("qflow", "graywolf", "qrouter", "magic", "netgen-lvs")
with_qflow = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)) or not LIBRARIES["osu018"][0].exists(), reason="needs Debian's qflow and its osu018"
)

#: Two cells and a cell that fills a row, 30 x 20 micrometres. A net has wires of 5, 2 and 3 micrometres, the other has none.
DEF = """
UNITS DISTANCE MICRONS 100 ;
DIEAREA ( -500 0 ) ( 2500 2000 ) ;
COMPONENTS 3 ;
- INVX1_1 INVX1 + PLACED ( 0 0 ) N ;
- FILL_1 FILL + PLACED ( 80 0 ) N ;
- NAND2X1_1 NAND2X1 + PLACED ( 160 0 ) N ;
END COMPONENTS

NETS 2 ;
- n1
  ( INVX1_1 Y )
  ( NAND2X1_1 A )
+ ROUTED metal1 ( 100 100 ) ( 600 * ) M2_M1
  NEW metal2 ( 600 100 ) ( * 300 ) M3_M2
  NEW metal1 ( 100 400 ) ( 400 * ) ;
- n2
  ( PIN a )
  ( INVX1_1 A ) ;
END NETS
"""
#: The input `clk` is ideal at its pin: the delay of its wires is no path.
TIMING = """
Path DFF_1/CLK to DFF_2/D delay 1075.96 ps
Path input pin b[0] to DFF_2/D delay 2921.5 ps
Path input pin clk to DFF_3/CLK delay 9000 ps
"""
RULES, COMPARISON = "\ndrc = 0\n", "\nResult: Circuits match uniquely.\n\nTotal errors = 0\n"


def test_figures_by_hand():
    figures = layout_figures(DEF, TIMING, RULES, COMPARISON)
    assert figures == {
        "area_um2": 600,
        "cells": 2,
        "nets": 1,
        "wire_mm": 0.01,
        "delay_ns": 2.9215,
        "drc_errors": 0,
        "lvs_errors": 0,
    }


@pytest.mark.parametrize(
    "place, text, cause",
    [
        (2, "\ndrc = 12\n", "design rules of the layout: 12 errors"),
        (2, "Segmentation fault", "design rules of the layout: unknown errors"),
        (3, COMPARISON.replace("= 0", "= 3"), "not the mapped netlist: 3 errors"),
        (3, COMPARISON.replace("match uniquely", "do not match"), "not the mapped netlist"),
        (3, "", "not the mapped netlist: unknown errors"),
        (1, "", "no delay"),
        (0, "", "no outline"),
    ],
)
def test_failed_check_is_an_error(place, text, cause):
    """A layout has figures only if each check has ended without an error."""
    texts = [DEF, TIMING, RULES, COMPARISON]
    texts[place] = text
    with pytest.raises(ToolError, match=cause):
        layout_figures(*texts)


def _fake_programs(folder, script):
    folder.mkdir()
    for name in PROGRAMS:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)


NETLIST = {"ports": {"a": {"direction": "input", "bits": [2]}, "q": {"direction": "output", "bits": [3, 4]}}, "cells": {}}


def test_errors_are_one_line(tmp_path, monkeypatch):
    """A missing program, a folder that qflow cannot use and a failing step end with their cause and remedy."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(
        ToolError, match="qflow not found; .* apt install qflow graywolf qrouter magic netgen-lvs qflow-tech-osu018$"
    ):
        cell_layout(NETLIST, "osu018", tmp_path / "layout")
    says = 'echo "LVS reports:"; echo "Design fails LVS  with 3 errors."; echo "Synthesis flow stopped due to error condition."'
    _fake_programs(tmp_path / "bin", f'[ "$5" = lvs ] || exit 0; {says}; exit 1')
    with pytest.raises(ToolError, match="without spaces"):
        cell_layout(NETLIST, "osu018", tmp_path / "my layout")
    with pytest.raises(
        ToolError, match=r"^qflow lvs stopped with status 1; it said: Design fails LVS with 3 errors. \(log: .*lvs.log\)$"
    ):
        cell_layout(NETLIST, "osu018", tmp_path / "layout")
    assert ".outputs q[0] q[1]\n" in (tmp_path / "layout" / "tpu_cell.blif").read_text()
    monkeypatch.setitem(module._STEPS, "place", 0.2)
    _fake_programs(tmp_path / "bin2", "exec /bin/sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path / "bin2"))
    with pytest.raises(ToolError, match="qflow did not end within 0 s in its step place"):
        cell_layout(NETLIST, "osu018", tmp_path / "layout")


def _extracted(text):
    """Returns the netlist that magic extracted from a layout, SPICE, as a module of Yosys' JSON, without cells that fill rows."""
    lines = [line.split() for line in text.replace("\n+", "").splitlines()]
    pins = {line[1]: line[2:] for line in lines if line[:1] == [".subckt"]}
    cells = [(line[-1], dict(zip(pins[line[-1]], line[1:-1]))) for line in lines if line and line[0].startswith("X")]
    ports = {}
    for port in sorted(pins["tpu_cell"], key=lambda name: [int(digits) for digits in re.findall(r"\[(\d+)\]", name)]):
        ports.setdefault(port.partition("[")[0], {"bits": []})["bits"].append(port)
    return {
        "ports": ports,
        "cells": {
            number: {"type": kind, "connections": {pin: [net] for pin, net in nets.items() if pin not in ("vdd", "gnd")}}
            for number, (kind, nets) in enumerate(cells)
            if kind != "FILL"
        },
    }


def _mapped(verilog, folder):
    text, library = load_library("osu018")
    return map_design(verilog, "tpu_cell", text, library, folder).netlist["tpu_cell"], library


@with_qflow
def test_layout_of_a_small_design(tmp_path, monkeypatch):
    """The netlist of the layout computes the function of the Verilog. A layout without one of its wires is refused."""
    verilog = (
        "module tpu_cell (input clk, input [1:0] a, b, output reg [1:0] q);\n always @(posedge clk) q <= a + b;\nendmodule\n"
    )
    netlist, library = _mapped(verilog, tmp_path)
    figures = cell_layout(netlist, "osu018", tmp_path / "layout")
    assert figures["cells"] == len(netlist["cells"]) and figures["delay_ns"] > 0.2
    area = sum(library.cells[cell["type"]].area for cell in netlist["cells"].values())
    assert area < figures["area_um2"] < 5 * area
    run = GateRun(_extracted((tmp_path / "layout" / "tpu_cell.spice").read_text()), library, 16)
    a, b = ([sum((number >> shift + bit & 1) << number for number in range(16)) for bit in range(2)] for shift in (0, 2))
    run.cycle({"a": a, "b": b})
    run.cycle({})
    assert run.read("q") == [sum(((n & 3) + (n >> 2) >> bit & 1) << n for n in range(16)) for bit in range(2)]

    step_of_qflow = module._run

    def cut(step, target, folder):
        file = folder / "tpu_cell.def"
        if step == "migrate":
            before, wires, after = re.split(r"(?<=\n)(\+ ROUTED [^;]*)(?=;\n- a\[1\])", file.read_text(), maxsplit=1)
            file.write_text(before + after)
        return step_of_qflow(step, target, folder)

    monkeypatch.setattr(module, "_run", cut)
    with pytest.raises(ToolError, match="qflow lvs stopped .* Design fails LVS"):
        cell_layout(netlist, "osu018", tmp_path / "layout")


@with_qflow
@pytest.mark.slow
def test_layout_of_the_cell_has_the_golden_sums(tmp_path, seed):
    """The netlist extracted from the layout of the cell computes the golden model's sums, bit for bit."""
    stages = 3
    netlist, library = _mapped(component_to_verilog(Cell(stages=stages), name="tpu_cell"), tmp_path)
    figures = cell_layout(netlist, "osu018", tmp_path / "layout")
    assert figures["cells"] == len(netlist["cells"])
    _, given, sums, _ = run_cell(_extracted((tmp_path / "layout" / "tpu_cell.spice").read_text()), library, seed)
    for found, expected in zip(sums, expected_sums(given, stages), strict=True):
        assert expected is None or np.array_equal(np.array(found, np.uint32), expected)


def test_options_and_report(tmp_path, monkeypatch):
    """A Liberty file has no layouts. Missing programs are an error before the core is mapped. Figures are printed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "tiny.lib"
    file.write_text(TINY)
    core = SimpleNamespace(config=lambda preset: Config(n=2))
    monkeypatch.setitem(LIBRARIES, "osu018", (file, "qflow-tech-osu018"))
    for liberty, error, cause in ((file, RunFailed, "name a library with --target"), (None, ToolError, "apt install qflow")):
        with pytest.raises(error, match=cause):
            synth_cells(core, "osu018", liberty, True, {}, tmp_path / "out", False)
    counts = dict.fromkeys(("area_um2", "gate_equivalents", "registers", "memory_bits"), 1)
    cell = counts | dict.fromkeys(("delay_ns", "energy_pj", "energy_with_glitches_pj"), 1.0)
    report = {"n": 2, "target": "osu018", "blocks": {}, **counts, "cell": cell, "slowest_module": "tpu", "slowest_delay_ns": 1.0}
    console = Console(record=True, width=200, file=io.StringIO())
    show_standard_cells(console, report | {"layout": layout_figures(DEF, TIMING, RULES, COMPARISON), "left_out": ""})
    line = "layout of the cell: 600 µm², 2 cells, 2.92 ns with wires, 0 mm of wires in 1 nets, 0 DRC errors, 0 LVS errors"
    assert line in console.export_text()
