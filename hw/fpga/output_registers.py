"""A pass over ECP5 netlists that moves registers into the outputs of block RAMs, which Yosys does not do.

The data of a block RAM is valid 5.8 ns after the clock, most of a cycle. With the output register it is valid almost at once
(Lattice FPGA-TN-02204, "Output Register").
"""

from collections import defaultdict

__all__ = ["take_in_output_registers"]


def take_in_output_registers(module):
    """Moves registers into the block RAMs (`DP16KD`) of a flat module of Yosys' JSON, in place. Returns the number of moved
    registers."""
    cells = module["cells"]
    readers = defaultdict(list)
    for name, cell in cells.items():
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] != "output":
                for bit in bits:
                    readers[bit].append((name, port))
    for port in module["ports"].values():
        for bit in port["bits"]:
            readers[bit].append((None, None))

    taken = 0
    for memory in [cell for cell in cells.values() if cell["type"] == "DP16KD"]:
        wires, parameters = memory["connections"], memory["parameters"]
        if max(int(parameters[f"DATA_WIDTH_{side}"], 2) for side in "AB") > 18:
            continue  # the two ports form one wide port
        for side in "AB":
            outputs = [port for port, bits in wires.items() if port.startswith(f"DO{side}") and readers[bits[0]]]
            registers = [_register(cells, readers[wires[port][0]], wires[f"CLK{side}"]) for port in outputs]
            if not outputs or None in registers or len({_enable(cells[name]) for name in registers}) > 1:
                continue
            parameters[f"REGMODE_{side}"] = "OUTREG"
            wires[f"OCE{side}"] = [_enable(cells[registers[0]])]
            for port, name in zip(outputs, registers):
                wires[port] = cells.pop(name)["connections"]["Q"]
            taken += len(outputs)
    return taken


def _register(cells, readers, clock):
    """Returns the name of the register that reads an output of a block RAM. Returns None if there is none, or if it cannot move
    into the block RAM."""
    (name, port), *others = readers
    cell = cells.get(name)
    if others or cell is None or cell["type"] != "TRELLIS_FF" or port != "DI":
        return None
    wires, parameters = cell["connections"], cell["parameters"]
    plain = parameters["CLKMUX"] == "CLK" and parameters["CEMUX"].strip() in ("1", "CE") and parameters["REGSET"] == "RESET"
    return name if plain and wires["CLK"] == clock and wires.get("LSR", ["0"]) == ["0"] else None


def _enable(cell):
    """Returns the net that enables a register; "1" if it is always enabled."""
    return cell["connections"]["CE"][0] if cell["parameters"]["CEMUX"] == "CE" else "1"
