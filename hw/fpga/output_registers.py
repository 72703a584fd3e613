"""Registers behind block RAMs of the ECP5 go into them, which Yosys leaves undone.

A block RAM gives its data 5.8 ns after the clock, most of a cycle; with its output register it does so almost at once
(Lattice FPGA-TN-02204, "Output Register").
"""

from collections import defaultdict

__all__ = ["take_in_output_registers"]


def take_in_output_registers(module):
    """Takes registers into the `DP16KD`s of a flat module, as Yosys' JSON has it, in place; returns how many.

    A port's registers go in if they are all that its outputs drive, have no reset, and the port's clock and one enable.
    """
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
            continue  # the two ports make one
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
    """The name of the one register that reads an output, if it can go into the block RAM."""
    (name, port), *others = readers
    cell = cells.get(name)
    if others or cell is None or cell["type"] != "TRELLIS_FF" or port != "DI":
        return None
    wires, parameters = cell["connections"], cell["parameters"]
    plain = parameters["CLKMUX"] == "CLK" and parameters["CEMUX"].strip() in ("1", "CE") and parameters["REGSET"] == "RESET"
    return name if plain and wires["CLK"] == clock and wires.get("LSR", ["0"]) == ["0"] else None


def _enable(cell):
    """The bit that enables a register."""
    return cell["connections"]["CE"][0] if cell["parameters"]["CEMUX"] == "CE" else "1"
