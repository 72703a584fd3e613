"""Tests of areas and energies in standard cells, with figures by hand, and of the mapped cell against the golden model."""

import itertools

import numpy as np
import pytest

from amaranth_tpu.hw.spec.cell_stages import split_stages
from amaranth_tpu.hw.standard_cells.energy import energy_per_cycle, run_cell
from amaranth_tpu.hw.standard_cells.gate_run import GateRun
from amaranth_tpu.hw.standard_cells.liberty import LibertyError, parse_library
from amaranth_tpu.hw.standard_cells.liberty_function import compile_function
from amaranth_tpu.hw.standard_cells.libraries import LIBRARIES, load_library
from amaranth_tpu.hw.standard_cells.mapping import map_design
from amaranth_tpu.hw.standard_cells.report import array_figures
from amaranth_tpu.sim.golden import arithmetic as golden
from suites import slow

#: Two volts, femtofarads, femtojoules per edge: an inverter of 1 fF, a NAND of 2 fF, and a register whose clock pin has 4 fF.
TINY = """
library (tiny) {
  time_unit : "1ns"; voltage_unit : "1V"; current_unit : "1uA"; capacitive_load_unit (1, ff); leakage_power_unit : "1nW";
  nom_voltage : 2.0;
  power_lut_template (energy) { variable_1 : input_transition_time; variable_2 : total_output_net_capacitance;
    index_1 ("0.0, 1.0"); index_2 ("0.0, 10.0"); }
  lu_table_template (delay) { variable_1 : input_net_transition; variable_2 : total_output_net_capacitance;
    index_1 ("0.0, 1.0"); index_2 ("0.0, 10.0"); }
  cell (INV) { area : 3; cell_leakage_power : 1;
    pin (A) { direction : input; capacitance : 1.0; }
    pin (Y) { direction : output; function : "!A"; timing () { related_pin : "A"; timing_sense : negative_unate; DELAY }
      internal_power () { rise_power (energy) { values ("0.0, 10.0", \\
        "4.0, 14.0"); } fall_power (energy) { values ("0.0, 10.0", "4.0, 14.0"); } } } }
  cell (NAND) { area : 4;
    pin (A) { direction : input; capacitance : 2.0; }
    pin (B) { direction : input; capacitance : 2.0; }
    pin (Y) { direction : output; function : "(A B)'"; timing () { related_pin : "A"; timing_sense : negative_unate; DELAY }
      timing () { related_pin : "B"; timing_sense : negative_unate; DELAY } } }
  cell (NOR) { area : 4;
    pin (A) { direction : input; capacitance : 2.0; }
    pin (B) { direction : input; capacitance : 2.0; }
    pin (Y) { direction : output; function : "!(A + B)"; timing () { related_pin : "A"; timing_sense : negative_unate; DELAY }
      timing () { related_pin : "B"; timing_sense : negative_unate; DELAY } } }
  cell (BUF) { area : 5;
    pin (A) { direction : input; capacitance : 1.0; }
    pin (Y) { direction : output; function : "A"; timing () { related_pin : "A"; timing_sense : positive_unate; DELAY } } }
  cell (DFF) { area : 10; ff (IQ, IQN) { next_state : "D"; clocked_on : "CK"; }
    pin (CK) { direction : input; capacitance : 4.0; clock : true; }
    pin (D) { direction : input; capacitance : 1.0; }
    pin (Q) { direction : output; function : "IQ"; } }
}
""".replace(
    "DELAY",
    " ".join(
        f'{name} (delay) {{ values ("{values}", "{values}"); }}'
        for name, values in (
            *(("cell_rise", "0.1, 0.3"), ("cell_fall", "0.1, 0.3")),
            *(("rise_transition", "0.0, 0.1"), ("fall_transition", "0.0, 0.1")),
        )
    ),
)


@pytest.mark.parametrize(
    "text, truth",
    [
        ("!A", lambda a, b, c: not a),
        ("A'", lambda a, b, c: not a),
        ("!(A B)", lambda a, b, c: not (a and b)),
        ("A & B ^ C", lambda a, b, c: a and b != c),
        ("(A * B) + C'", lambda a, b, c: (a and b) or not c),
        ("!A B | 0", lambda a, b, c: not a and b),
        ("(!((A|B)&C))", lambda a, b, c: not ((a or b) and c)),
    ],
)
def test_function(text, truth):
    """A function of Liberty has the precedence of the format, on every bit of its operands."""
    rows = list(itertools.product((0, 1), repeat=3))
    planes = {name: sum(row[i] << k for k, row in enumerate(rows)) for i, name in enumerate("ABC")}
    expected = sum(bool(truth(*row)) << k for k, row in enumerate(rows))
    assert compile_function(text)(planes, 255) == expected


@pytest.mark.parametrize("text", ["", "A &", "(A", "A)", "A ? B", "& A"])
def test_text_that_is_no_function(text):
    with pytest.raises(ValueError, match="Boolean function"):
        compile_function(text)


def test_table_is_interpolated():
    """The axes are told apart by their meaning, not their order: 1 fJ per fF of load, and 4 fJ per ns of transition."""
    table = parse_library(TINY).cells["INV"].pins["Y"].energy[0]
    for load, transition in ((0, 0), (5, 0.25), (10, 1), (2.5, 0.5)):
        assert table.at(load * 1e-15, transition * 1e-9) * 1e15 == pytest.approx(load + 4 * transition)
    assert table.at(99e-15, 0) * 1e15 == pytest.approx(10)


def _netlist(cells, **ports):
    return {"ports": {name: {"bits": [net]} for name, net in ports.items()}, "cells": dict(enumerate(cells))}


def _cell(kind, **nets):
    return {"type": kind, "connections": {pin: [net] for pin, net in nets.items()}}


def test_energy_by_hand():
    """A register drives an inverter, which drives a NAND. In each cycle, the register toggles."""
    library = parse_library(TINY)
    cells = [_cell("DFF", CK=2, D=3, Q=4), _cell("INV", A=4, Y=5), _cell("NAND", A=5, B="1", Y=6)]
    run = GateRun(_netlist(cells, d=3), library, 1)
    for cycle in range(10):
        run.cycle({"d": [cycle & 1]})
    # Edges: net 3 in 9 cycles, nets 4, 5 and 6 in 8. Loads: 1, 1, 2 and 0 fF at 2 V, half of C V^2. The clock: 2 edges of 4 fF.
    pins = 9 * 1 * 2 + 8 * 1 * 2 + 8 * 2 * 2 + 2 * 10 * 4 * 2
    internal = 8 * (2 + 4 * 0)  # the inverter's load is 2 fF, and its driver has a transition of 0
    assert run.settled == {3: 9, 4: 8, 5: 8, 6: 8} == run.all_edges
    assert energy_per_cycle(run, library, 10, run.settled) * 1e15 == pytest.approx((pins + internal) / 10)


def test_glitches_are_counted_apart():
    """NAND(a, !a) has a glitch of one gate delay when a rises, and ends where it began."""
    cells = [_cell("INV", A=2, Y=3), _cell("NAND", A=2, B=3, Y=4)]
    run = GateRun(_netlist(cells, a=2), parse_library(TINY), 2)
    run.cycle({"a": [0b01]})
    assert run.settled == {2: 1, 3: 1} and run.all_edges == {2: 1, 3: 1, 4: 2}


def test_mapping_of_a_small_design(tmp_path):
    """Yosys maps to cells of the library; a memory stays whole. The mapped gates compute the design's function."""
    verilog = (
        "module tpu_cell (input clk, input a, input b, output reg q);\n  initial q = 1;\n"
        "  always @(posedge clk) q <= a ^ b;\nendmodule\n"
    )
    library = parse_library(TINY)
    mapped = map_design(verilog, "tpu_cell", TINY, library, tmp_path)
    assert set(mapped.modules["tpu_cell"]) <= {"INV", "NAND", "NOR", "BUF", "DFF"} and mapped.modules["tpu_cell"]["DFF"] == 1
    assert 0 < mapped.delays["tpu_cell"] < 1e-7
    run = GateRun(mapped.netlist["tpu_cell"], library, 4)
    run.cycle({"a": [0b0011], "b": [0b0101]})
    run.cycle({})
    assert run.read("q") == [0b0110]


def test_mapping_shortens_paths(tmp_path, rng):
    """A sum of 16 bits takes 2.3 ns. Its carry from bit to bit would take 5.4 ns. The gates still add."""
    verilog = (
        "module tpu_cell (input clk, input [15:0] a, b, output reg [15:0] q);\n  always @(posedge clk) q <= a + b;\nendmodule\n"
    )
    library = parse_library(TINY)
    mapped = map_design(verilog, "tpu_cell", TINY, library, tmp_path)
    assert mapped.delays["tpu_cell"] < 3e-9
    a, b = rng.integers(0, 1 << 16, (2, 64))

    def planes(values):
        return [sum(int(value >> bit & 1) << lane for lane, value in enumerate(values)) for bit in range(16)]

    run = GateRun(mapped.netlist["tpu_cell"], library, 64)
    run.cycle({"a": planes(a), "b": planes(b)})
    run.cycle({})
    assert run.read("q") == planes(a + b)


@pytest.mark.parametrize(
    "text, cause",
    [("module x;", "not a Liberty file"), (TINY.replace("1ns", "1day"), "time_unit"), ("library (empty) { }", "no inverter")],
)
def test_liberty_file_is_refused(text, cause, tmp_path):
    with pytest.raises(LibertyError, match=cause):
        map_design("", "tpu", text, parse_library(text), tmp_path)


def test_missing_library_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(LIBRARIES, "osu018", (tmp_path / "none.lib", "qflow-tech-osu018"))
    for target, liberty, remedy in (
        ("osu018", None, "apt install qflow-tech-osu018"),
        ("nangate45", None, "--liberty FILE"),
        (None, tmp_path / "x.lib", "--liberty"),
    ):
        with pytest.raises(LibertyError, match=remedy):
            load_library(target, liberty)


def expected_sums(given, stages):
    """Returns the golden model's sums of a cell: for each cycle, an array of one sum per sample, or None before the first."""
    lead, latency = split_stages(stages)
    shadow = active = np.zeros(len(given[0]["x_i"]), np.uint32)
    products = []
    for inputs in given:
        products.append(golden.multiply(np.array(inputs["x_i"], np.uint32), active))
        before = shadow
        if inputs["mark_i"][0]:
            shadow = np.array(inputs["w_i"], np.uint32)
        if inputs["switch_i"][0]:
            active = before
    first = lead + latency
    return [None] * first + [
        golden.add(np.array(given[cycle - latency]["sum_i"], np.uint32), products[cycle - first])
        for cycle in range(first, len(given))
    ]


@pytest.mark.skipif(not LIBRARIES["osu018"][0].exists(), reason="needs Debian's qflow-tech-osu018")
@pytest.mark.parametrize("stages", slow(1, 3, 9))
def test_mapped_cell_has_the_golden_sums(stages, tmp_path, seed):
    """The gates whose transitions are counted compute the golden model's sums, bit for bit. The array's area is its cells'."""
    text, library = load_library("osu018")
    cell, array = array_figures(16, stages, text, library, tmp_path)
    netlist = map_design((tmp_path / "design.v").read_text(), "tpu_array", text, library, tmp_path).netlist["tpu_cell"]
    _, given, sums, _ = run_cell(netlist, library, seed)
    for found, expected in zip(sums, expected_sums(given, stages)):
        assert expected is None or np.array_equal(np.array(found, np.uint32), expected)
    assert array["area_um2"] == 256 * cell["area_um2"] and 1000 < cell["gate_equivalents"] < 10_000
    assert 0 < cell["energy_pj"] < cell["energy_with_glitches_pj"]
