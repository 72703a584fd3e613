"""Tests of moving registers into the output of block RAMs, and of registers that must stay outside."""

import copy

import pytest

from amaranth_tpu.hw.fpga.output_registers import take_in_output_registers

CLK, OUT, NEXT, CE = 2, [10, 11], [20, 21], 30


def register(d, q, **connections):
    wires = {"CLK": [CLK], "DI": [d], "Q": [q], **connections}
    return {
        "type": "TRELLIS_FF",
        "connections": wires,
        "port_directions": {port: "output" if port == "Q" else "input" for port in (*wires, "CE", "LSR")},
        "parameters": {"CLKMUX": "CLK", "CEMUX": "CE" if "CE" in wires else "1 ", "REGSET": "RESET"},
    }


def module(**connections):
    wires = {"CLKA": [CLK], "CLKB": [CLK], "OCEA": ["1"], "OCEB": ["1"], "DOA0": [5], "DOB0": [OUT[0]], "DOB1": [OUT[1]]}
    memory = {
        "type": "DP16KD",
        "connections": wires,
        "port_directions": {port: "output" if port.startswith("DO") else "input" for port in wires},
        "parameters": {"DATA_WIDTH_A": "10", "DATA_WIDTH_B": "10", "REGMODE_A": "NOREG", "REGMODE_B": "NOREG"},
    }
    cells = {"memory": memory, **{f"ff{i}": register(OUT[i], NEXT[i], **connections) for i in range(2)}}
    return {"cells": cells, "ports": {"q": {"bits": NEXT}}}


@pytest.mark.parametrize("connections, enable", [({}, "1"), ({"CE": [CE]}, CE), ({"LSR": ["0"]}, "1")])
def test_taken_in(connections, enable):
    design = module(**connections)
    assert take_in_output_registers(design) == 2
    assert list(design["cells"]) == ["memory"]
    memory = design["cells"]["memory"]
    assert (memory["connections"]["DOB0"], memory["connections"]["DOB1"]) == ([NEXT[0]], [NEXT[1]])
    assert memory["connections"]["OCEB"] == [enable]
    assert (memory["parameters"]["REGMODE_A"], memory["parameters"]["REGMODE_B"]) == ("NOREG", "OUTREG")


@pytest.mark.parametrize(
    "change",
    [
        lambda cells: cells["ff0"]["connections"].update(LSR=[40]),  # a reset
        lambda cells: cells["ff0"]["connections"].update(CLK=[3]),  # another clock
        lambda cells: cells["ff0"]["parameters"].update(CLKMUX="INV"),
        lambda cells: cells["ff0"]["parameters"].update(REGSET="SET"),
        lambda cells: (cells["ff0"]["parameters"].update(CEMUX="CE"), cells["ff0"]["connections"].update(CE=[CE])),  # one of two
        lambda cells: cells.update(other=register(OUT[1], 50)),  # another reader
        lambda cells: cells["ff1"].update(type="LUT4"),
        lambda cells: cells["memory"]["parameters"].update(DATA_WIDTH_B=f"{36:b}"),
    ],
)
def test_left_alone(change):
    design = module()
    change(design["cells"])
    before = copy.deepcopy(design)
    assert take_in_output_registers(design) == 0 and design == before


def test_port_of_the_design():
    design = module()
    design["ports"]["raw"] = {"bits": [OUT[0]]}
    assert take_in_output_registers(design) == 0
