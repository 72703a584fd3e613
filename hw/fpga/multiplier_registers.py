"""A pass over ECP5 netlists that moves registers into hard multipliers, which Yosys does not do."""

__all__ = ["move_registers"]

_WIDTH = 18


def _is_net(bits):
    return len(bits) == 1 and isinstance(bits[0], int)


def _control(cell):
    """Returns `(clock, enable)` of a flip-flop without reset; `enable` is "1" if it is always enabled."""
    if (
        cell["type"] != "TRELLIS_FF"
        or cell["parameters"].get("CLKMUX", "CLK") != "CLK"
        or _is_net(cell["connections"].get("LSR", []))
    ):
        return None
    mux, clock = cell["parameters"].get("CEMUX", "1").strip(), cell["connections"]["CLK"][0]
    return {"1": (clock, "1"), "CE": (clock, *cell["connections"].get("CE", ["1"]))}.get(mux)


def _common_control(registers, cells, drivers):
    """Returns the clock and the enable that all registers have in common. Returns None if the registers differ in clock or
    enable.

    Also returns None if the enable does not come from a flip-flop: nextpnr does not analyse the timing of the enable path into a
    multiplier.
    """
    controls = {_control(cells[register]) for register in registers}
    control = controls.pop() if len(controls) == 1 else None
    if control is None or control[1] == "1":
        return control
    return control if cells.get(drivers.get(control[1]), {}).get("type") == "TRELLIS_FF" else None


def move_registers(netlist):
    """Moves registers into the multipliers of a netlist, in place.

    Input registers move if all bits of both factors come from flip-flops without reset. Output registers move if all bits of the
    product drive only such flip-flops. The registers of a port must have one clock, and either no enable or an enable directly
    from a flip-flop. The contents of moved registers are undefined after power-up.

    Parameters
    ----------
    netlist : dict
        Yosys' JSON, after `synth_ecp5`.

    Returns
    -------
    int
        Number of multiplier ports that got their registers.
    """
    return sum(_move_in(module) for module in netlist["modules"].values())


def _move_in(module):
    moved, (drivers, loads) = 0, _ends_of_nets(module)
    for name, cell in list(module["cells"].items()):
        if cell["type"] != "MULT18X18D":
            continue
        controls = {
            **_take_input_registers(name, module["cells"], drivers, loads),
            **_take_output_registers(cell, module["cells"], drivers, loads),
        }
        moved += len(controls)
        _connect_controls(name, cell, controls)
    return moved


def _connect_controls(name, cell, controls):
    """Enables the registers of a multiplier. `controls` is {port: (clock, enable)}."""
    clocks = {clock for clock, _ in controls.values()}
    if len(clocks) > 1:
        raise ValueError(f"{name}: registers of several clocks")
    enables = list(dict.fromkeys(enable for _, enable in controls.values()))
    for port, (_, enable) in controls.items():
        cell["parameters"][f"REG_{port}_CLK"] = "CLK0"
        cell["parameters"][f"REG_{port}_CE"] = f"CE{enables.index(enable)}"
    pins = {"CLK0": clocks.pop(), "RST0": "0", **{f"CE{i}": enable for i, enable in enumerate(enables)}} if controls else {}
    for pin, bit in pins.items():
        cell["connections"][pin], cell["port_directions"][pin] = [bit], "input"


def _ends_of_nets(module):
    """Returns `(drivers, loads)`: {net: cell that drives it}, and {net: [(cell, pin) that reads it]}. A reader that is a port of
    the module is (None, None)."""
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


def _take_input_registers(name, cells, drivers, loads):
    """Moves the input registers of both factors into a multiplier, or none: nextpnr has no timing for only one. Returns {port:
    (clock, enable)} of the moved registers."""
    connections = cells[name]["connections"]
    inputs = {
        side: {
            pin: drivers.get(connections[pin][0])
            for pin in (f"{side}{i}" for i in range(_WIDTH))
            if _is_net(connections.get(pin, []))
        }
        for side in "AB"
    }
    controls = {
        f"INPUT{side}": _common_control(registers.values(), cells, drivers)
        for side, registers in inputs.items()
        if all(registers.values())
    }
    if len(controls) < len(inputs) or not all(controls.values()):
        return {}
    for registers in inputs.values():
        for pin, register in registers.items():
            loads[connections[pin][0]].remove((name, pin))
            connections[pin] = list(cells[register]["connections"]["DI"])
            loads.setdefault(connections[pin][0], []).append((name, pin))
        for unread in {*registers.values()}:
            if not loads.get(cells[unread]["connections"]["Q"][0]):
                del cells[unread]
    return controls


def _take_output_registers(cell, cells, drivers, loads):
    """Moves the output register of the product into a multiplier, if possible. Returns {port: (clock, enable)} of the moved
    register."""
    connections = cell["connections"]
    outputs = {
        pin: loads[connections[pin][0]]
        for pin in (f"P{i}" for i in range(2 * _WIDTH))
        if _is_net(connections.get(pin, [])) and loads.get(connections[pin][0])
    }
    if not all(len(readers) == 1 and readers[0][1] == "DI" for readers in outputs.values()):
        return {}
    control = _common_control([register for ((register, _),) in outputs.values()], cells, drivers)
    if not control:
        return {}
    for pin, ((register, _),) in outputs.items():
        connections[pin] = list(cells[register]["connections"]["Q"])
        del cells[register]
    return {"OUTPUT": control}
