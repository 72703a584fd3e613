"""Tests of moving registers into a hard multiplier, and of registers that must stay outside."""

import copy

import pytest

from amaranth_tpu.hw.fpga.multiplier_registers import move_registers


def register(d, q, **parameters):
    return {
        "type": "TRELLIS_FF",
        "parameters": {"CEMUX": "1 ", "CLKMUX": "CLK", **parameters},
        "port_directions": {"CLK": "input", "LSR": "input", "DI": "input", "Q": "output"},
        "connections": {"CLK": [2], "LSR": ["0"], "DI": [d], "Q": [q]},
    }


def cell(kind, pins, outputs):
    """Returns a cell without parameters. Names of its outputs begin with `outputs`."""
    directions = {pin: "output" if pin[0] == outputs else "input" for pin in pins}
    return {"type": kind, "parameters": {}, "connections": pins, "port_directions": directions}


def design():
    """Returns the netlist of a 2 x 1 bit product with registers at inputs and outputs. A LUT also reads the register of A0."""
    pins = {"A0": [11], "A1": ["1"], "B0": [12], "P0": [13], "P1": [14], "P2": [99]}
    return {
        "modules": {
            "top": {
                "ports": {"q": {"bits": [23, 24, 25]}},
                "cells": {
                    "a": register(3, 11),
                    "b": register(4, 12),
                    "p": register(13, 23),
                    "q": register(14, 24),
                    "lut": cell("LUT4", {"A": [11], "Z": [25]}, "Z"),
                    "multiplier": cell("MULT18X18D", pins, "P"),
                },
            }
        }
    }


def test_registers_move_into_the_multiplier():
    netlist = design()
    assert move_registers(netlist) == 3
    cells = netlist["modules"]["top"]["cells"]
    multiplier = cells["multiplier"]
    assert set(cells) == {"a", "lut", "multiplier"}
    moved = {"A0": [3], "A1": ["1"], "B0": [4], "P0": [23], "P1": [24], "P2": [99]}
    assert multiplier["connections"] == moved | {"CLK0": [2], "CE0": ["1"], "RST0": ["0"]}
    ports = "INPUTA", "INPUTB", "OUTPUT"
    assert multiplier["parameters"] == {f"REG_{port}_{pin}": f"{pin}0" for port in ports for pin in ("CLK", "CE")}


def enable(cells, name, net):
    cell = cells[name]
    cell["parameters"]["CEMUX"], cell["connections"]["CE"], cell["port_directions"]["CE"] = "CE", [net], "input"
    cells[f"enable_{net}"] = register(5, net)


def test_registers_with_enables_move():
    """Registers with clock enables move too: factors and product use two of the multiplier's four enables."""
    netlist = design()
    cells = netlist["modules"]["top"]["cells"]
    for name, net in (("a", 31), ("b", 31), ("p", 32), ("q", 32)):
        enable(cells, name, net)
    assert move_registers(netlist) == 3
    multiplier = cells["multiplier"]
    assert (multiplier["connections"]["CE0"], multiplier["connections"]["CE1"]) == ([31], [32])
    chosen = {port: multiplier["parameters"][f"REG_{port}_CE"] for port in ("INPUTA", "INPUTB", "OUTPUT")}
    assert chosen == {"INPUTA": "CE0", "INPUTB": "CE0", "OUTPUT": "CE1"}


@pytest.mark.parametrize(
    "change, left, moved",
    [
        (lambda cells: cells["b"]["parameters"].update(CEMUX="INV"), "ab", 1),
        (lambda cells: enable(cells, "q", 31), "pq", 2),
        (lambda cells: [enable(cells, name, 31) for name in "pq"] and cells["enable_31"].update(type="LUT4"), "pq", 2),
        (lambda cells: cells["b"]["connections"].update(LSR=[7]), "ab", 1),
        (lambda cells: cells["p"]["parameters"].update(CLKMUX="INV"), "p", 2),
        (lambda cells: cells["lut"]["connections"].update(A=[13]), "p", 2),
    ],
)
def test_stays(change, left, moved):
    netlist = design()
    change(netlist["modules"]["top"]["cells"])
    assert move_registers(netlist) == moved and set(left) <= set(netlist["modules"]["top"]["cells"])


def test_nothing_to_move():
    netlist = design()
    del netlist["modules"]["top"]["cells"]["multiplier"]
    before = copy.deepcopy(netlist)
    assert move_registers(netlist) == 0 and netlist == before


def test_two_clocks():
    netlist = design()
    netlist["modules"]["top"]["cells"]["a"]["connections"]["CLK"] = [5]
    with pytest.raises(ValueError, match="several clocks"):
        move_registers(netlist)
