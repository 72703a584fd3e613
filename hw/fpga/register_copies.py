"""A pass over ECP5 netlists that copies registers with readers in many blocks, so that each block reads a copy near to it."""

from collections import defaultdict

__all__ = ["copy_registers"]

#: Fewest readers of a register that is copied, and fewest readers of a copy.
_MANY, _ENOUGH = 96, 16


def copy_registers(module, layout):
    """Copies registers (`TRELLIS_FF`) of a flat module of Yosys' JSON, in place. Returns the number of copies.

    A register with at least `_MANY` readers gets a copy for each block, or submodule of a block, with at least `_ENOUGH` of its
    readers. A copy has the inputs of its register, so no cycle changes. A wire over the whole part becomes one wire to each copy
    and short wires behind it.

    Parameters
    ----------
    layout : hw.fpga.netlist.BlockHierarchy
    """
    cells, readers = module["cells"], _readers(module)
    net = 1 + max(bit for bit in readers if isinstance(bit, int))
    copies = 0
    for name, cell in [(name, cell) for name, cell in cells.items() if cell["type"] == "TRELLIS_FF"]:
        (output,) = cell["connections"]["Q"]
        if len(readers[output]) < _MANY:
            continue
        for place, group in _groups(readers[output], layout)[1:]:
            cells[f"{place}.{name.rpartition('.')[2]}_copy_{net}"] = cell | {
                "connections": cell["connections"] | {"Q": [net]},
                "attributes": dict(cell["attributes"]),
                "parameters": dict(cell["parameters"]),
            }
            for reader, port in group:
                wires = cells[reader]["connections"]
                wires[port] = [net if bit == output else bit for bit in wires[port]]
            net, copies = net + 1, copies + 1
    return copies


def _readers(module):
    """Returns {net: [(cell, port) that reads it]}. Nets that nothing reads have an empty list."""
    readers = defaultdict(list)
    for name, cell in module["cells"].items():
        for port, bits in cell["connections"].items():
            for bit in bits:
                readers[bit] += [(name, port)] if cell["port_directions"][port] != "output" else []
    return readers


def _groups(readers, layout):
    """Returns the groups of readers that get a register each, as [(path, readers)], the largest group first. Readers of small
    groups stay with the register itself."""
    places = defaultdict(list)
    for reader in readers:
        places[layout.place_of(reader[0])].append(reader)
    blocks = defaultdict(list)
    for (block, submodule), few in places.items():
        blocks[f"{block}.{submodule}" if submodule and len(few) >= _ENOUGH else block] += few
    large = [(path, group) for path, group in blocks.items() if path and len(group) >= _ENOUGH]
    return sorted(large, key=lambda entry: -len(entry[1]))
