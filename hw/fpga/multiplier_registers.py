"""Moves registers around a hard multiplier of an ECP5 into it, in a netlist that Yosys wrote: Yosys does not."""

__all__ = ["move_registers"]

_WIDTH = 18


def _is_net(bits):
    return len(bits) == 1 and isinstance(bits[0], int)


def _is_plain(cell):
    """A flip-flop without enable and reset."""
    return (
        cell["type"] == "TRELLIS_FF"
        and cell["parameters"].get("CEMUX", "1").strip() == "1"
        and cell["parameters"].get("CLKMUX", "CLK") == "CLK"
        and not _is_net(cell["connections"].get("LSR", []))
    )


def move_registers(netlist):
    """Moves them, in place, where all bits of both factors come from flip-flops without enable and reset, or all bits of the
    product go to such, and nowhere else. What these hold after power-up is undefined then.

    Parameters
    ----------
    netlist : dict
        Yosys' JSON, after `synth_ecp5`.

    Returns
    -------
    int
        How many of the multipliers' ports got their registers.
    """
    return sum(_move_in(module) for module in netlist["modules"].values())


def _move_in(module):
    moved, (drivers, loads) = 0, _ends_of_nets(module)
    for name, cell in list(module["cells"].items()):
        if cell["type"] != "MULT18X18D":
            continue
        clocks = set()
        moved += _take_input_registers(name, module["cells"], drivers, loads, clocks)
        moved += _take_output_registers(cell, module["cells"], loads, clocks)
        if len(clocks) > 1:
            raise ValueError(f"{name}: registers of several clocks")
        if clocks:
            for pin, bit in (("CLK0", clocks.pop()), ("CE0", "1"), ("RST0", "0")):
                cell["connections"][pin], cell["port_directions"][pin] = [bit], "input"
    return moved


def _ends_of_nets(module):
    """`(drivers, loads)`: net to the cell that drives it, and to `(cell, pin)` of all that read it, None for a port."""
    drivers, loads = {}, {}
    for name, cell in module["cells"].items():
        for pin, bits in cell["connections"].items():
            for bit in bits:
                if cell["port_directions"][pin] == "output":
                    drivers[bit] = name
                else:
                    loads.setdefault(bit, []).append((name, pin))
    for port in module["ports"].values():
        for bit in port["bits"]:
            loads.setdefault(bit, []).append((None, None))
    return drivers, loads


def _take_input_registers(name, cells, drivers, loads, clocks):
    """Both factors' registers, or none: nextpnr does not know the timing of one. Returns how many."""
    cell = cells[name]
    connections = cell["connections"]
    inputs = {
        side: {
            pin: drivers.get(connections[pin][0])
            for pin in (f"{side}{i}" for i in range(_WIDTH))
            if _is_net(connections.get(pin, []))
        }
        for side in "AB"
    }
    if not all(
        registers and all(register and _is_plain(cells[register]) for register in registers.values())
        for registers in inputs.values()
    ):
        return 0
    for side, registers in inputs.items():
        clocks |= {cells[register]["connections"]["CLK"][0] for register in registers.values()}
        for pin, register in registers.items():
            loads[connections[pin][0]].remove((name, pin))
            connections[pin] = list(cells[register]["connections"]["DI"])
            loads.setdefault(connections[pin][0], []).append((name, pin))
        for unread in {*registers.values()}:
            if not loads.get(cells[unread]["connections"]["Q"][0]):
                del cells[unread]
        cell["parameters"][f"REG_INPUT{side}_CLK"] = "CLK0"
    return len(inputs)


def _take_output_registers(cell, cells, loads, clocks):
    """The product's register. Returns how many: 0 or 1."""
    connections = cell["connections"]
    outputs = {
        pin: loads[connections[pin][0]]
        for pin in (f"P{i}" for i in range(2 * _WIDTH))
        if _is_net(connections.get(pin, [])) and loads.get(connections[pin][0])
    }
    if not outputs or not all(
        len(readers) == 1 and readers[0][1] == "DI" and _is_plain(cells[readers[0][0]]) for readers in outputs.values()
    ):
        return 0
    for pin, ((register, _),) in outputs.items():
        clocks.add(cells[register]["connections"]["CLK"][0])
        connections[pin] = list(cells[register]["connections"]["Q"])
        del cells[register]
    cell["parameters"]["REG_OUTPUT_CLK"] = "CLK0"
    return 1
