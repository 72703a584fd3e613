"""Tests of copies of registers with readers in many blocks, on a small netlist with known readers."""

import copy

import pytest

from amaranth_tpu.hw.fpga.netlist import BlockHierarchy
from amaranth_tpu.hw.fpga.register_copies import copy_registers
from netlists import VERILOG

LAYOUT = BlockHierarchy(VERILOG, "top")
CLK, DATA, RESET = 2, 3, 4


def register(data, output, **connections):
    wires = {"CLK": [CLK], "DI": [data], "Q": [output], **connections}
    directions = {port: "output" if port == "Q" else "input" for port in wires}
    return {"type": "TRELLIS_FF", "connections": wires, "port_directions": directions, "parameters": {}, "attributes": {}}


def design(**counts):
    cells, net = {"system.core.stopped": register(DATA, RESET)}, 100
    for path, count in counts.items():
        for _ in range(count):
            cells[f"{path.replace('__', '.')}.r{net}"] = register(5, net, LSR=[RESET])
            net += 1
    return {"cells": cells, "ports": {"clk": {"bits": [CLK]}}}


def resets(module):
    """Returns {register: the inputs of the register that resets it}."""
    cells = module["cells"]
    drivers = {cell["connections"]["Q"][0]: cell for cell in cells.values()}
    return {
        name: {port: bits for port, bits in drivers[cell["connections"]["LSR"][0]]["connections"].items() if port != "Q"}
        for name, cell in cells.items()
        if "LSR" in cell["connections"]
    }


def test_each_block_reads_its_own_copy():
    module = design(system__core__array__row_0=40, system__core__array__row_1=30, system__core__memory=50, system__bridge=3)
    before = resets(copy.deepcopy(module))
    assert copy_registers(module, LAYOUT) == 2
    assert resets(module) == before, "every register is reset by a register with the same inputs"
    nets = {}
    for name, cell in module["cells"].items():
        if "LSR" in cell["connections"]:
            nets.setdefault(name.rpartition(".")[0], set()).add(cell["connections"]["LSR"][0])
    assert all(len(found) == 1 for found in nets.values())
    own, rows, bridge = nets["system.core.memory"], [nets[f"system.core.array.row_{r}"] for r in (0, 1)], nets["system.bridge"]
    assert own == bridge == {RESET}, "the largest group and small groups keep the register"
    assert rows[0] != rows[1] and RESET not in rows[0] | rows[1]
    copies = [name for name in module["cells"] if "_copy_" in name]
    assert sorted(LAYOUT.place_of(name)[1] for name in copies) == ["row_0", "row_1"], "a copy counts in the block that reads it"
    assert copy_registers(module, LAYOUT) == 0


@pytest.mark.parametrize(
    "counts", [{"system__core__array__row_0": 40, "system__core__memory": 40}, {"system__core__memory": 200}]
)
def test_other_registers_are_left_alone(counts):
    """A register with few readers, or with readers in one block, gets no copy."""
    module = design(**counts)
    before = copy.deepcopy(module)
    assert copy_registers(module, LAYOUT) == 0 and module == before
