"""A pass over ECP5 netlists that moves registers into the outputs of block RAMs, which Yosys does not do.

The data of a block RAM is valid 5.8 ns after the clock, most of a cycle. With the output register it is valid after 1.0 ns
(Lattice FPGA-TN-02204, "Output Register"). A register outside can also be far away: the wire to it takes up to 3.8 ns.
"""

from collections import defaultdict

__all__ = ["take_in_output_registers"]

#: Most data bits of a port. A wider memory has a single read port, which uses the outputs of both ports.
_PORT_WIDTH = 18


def take_in_output_registers(module):
    """Moves registers into the block RAMs (`DP16KD`) of a flat module of Yosys' JSON, in place.

    The registers of a read port move if no logic reads an output of the memory, if they have the clock of the port and one enable
    in common, and if neither they nor the memory have a reset. No cycle changes: the output register has its own enable, `OCE`,
    and starts with 0, as a register without an initial value of 1 does.

    Returns
    -------
    int
        Number of memories that use their output registers.
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
    memories = [cell for cell in cells.values() if cell["type"] == "DP16KD"]
    return sum(any([_take_in(sides, memory, cells, readers) for sides in _read_ports(memory)]) for memory in memories)


def _read_ports(memory):
    """Returns the read ports of a memory, each as the names of the ports that its data and its clocks come from."""
    wide = any(int(memory["parameters"][f"DATA_WIDTH_{side}"], 2) > _PORT_WIDTH for side in "AB")
    return ("AB",) if wide else ("A", "B")


def _take_in(sides, memory, cells, readers):
    """Moves the registers of a read port into the memory. Returns True if they moved."""
    wires, parameters = memory["connections"], memory["parameters"]
    if not all(_is_plain(side, wires, parameters) for side in sides):
        return False
    clocks = {wires[f"CLK{side}"][0] for side in sides}
    outputs = [port for port, bits in wires.items() if port.startswith("DO") and port[2] in sides and readers[bits[0]]]
    registers = [_register(cells, readers[wires[port][0]], clocks) for port in outputs]
    if not outputs or None in registers or len({_enable(cells[name]) for name in registers}) > 1:
        return False
    for side in sides:
        parameters[f"REGMODE_{side}"] = "OUTREG"
        wires[f"OCE{side}"] = [_enable(cells[registers[0]])]
    for port, name in zip(outputs, registers):
        wires[port] = cells.pop(name)["connections"]["Q"]
    return True


def _is_plain(side, wires, parameters):
    """Returns True if a port has no output register yet, no reset, and the rising edge of its clock."""
    plain = parameters[f"REGMODE_{side}"] == "NOREG" and parameters.get(f"CLK{side}MUX") != "INV"
    return plain and wires.get(f"RST{side}", ["0"]) == ["0"]


def _register(cells, readers, clocks):
    """Returns the name of the register that reads an output of a block RAM. Returns None if there is none, or if it cannot move
    into the block RAM."""
    (name, port), *others = readers
    cell = cells.get(name)
    if others or cell is None or cell["type"] != "TRELLIS_FF" or port != "DI":
        return None
    wires, parameters = cell["connections"], cell["parameters"]
    plain = parameters["CLKMUX"] == "CLK" and parameters["CEMUX"].strip() in ("1", "CE") and parameters["REGSET"] == "RESET"
    return name if plain and {*wires["CLK"]} == clocks and wires.get("LSR", ["0"]) == ["0"] else None


def _enable(cell):
    """Returns the net that enables a register; "1" if it is always enabled."""
    return cell["connections"]["CE"][0] if cell["parameters"]["CEMUX"] == "CE" else "1"
