"""Faster versions of some functions of Amaranth's netlist. The text that Amaranth writes stays the same.

Amaranth works on single bits, with a call of a function for each. It checks the type of each bit whenever it copies a value, and
follows every bit to find combinational cycles.
"""

import contextlib
import gc
from itertools import count, repeat

from amaranth.back import rtlil
from amaranth.hdl import _ir, _nir

__all__ = ["quick_netlists"]

_BITS = _nir.Net(0), _nir.Net(1)
#: Cells whose outputs depend on no input within the same clock cycle.
_SOURCES = (_nir.Top, _nir.SyncReadPort, _nir.Initial, _nir.AnyValue, _nir.Instance)
_check_every_bit = _nir.Netlist.check_comb_cycles
_emit_memory_by_bits = rtlil.ModuleEmitter.emit_memory
_connect_by_bits = _ir.NetlistEmitter.connect


def _new_value(cls, nets=()):
    return tuple.__new__(cls, (nets,) if isinstance(nets, _nir.Net) else nets)


def _constant(cls, value, width):
    return tuple.__new__(cls, [_BITS[value >> bit & 1] for bit in range(width)])


def _output(cls, cell, bit):
    assert not bit >> 16, f"cell {cell} has more than 65,536 bits of outputs"
    return int.__new__(cls, cell << 16 | bit)


def _add_value_cell(netlist, width, cell):
    assert not width >> 16, f"a cell has {width} bits of outputs, more than 65,535"
    first = netlist.add_cell(cell) << 16
    return _nir.Value(map(_nir.Net, range(first, first + width)))


def _alloc_late_value(netlist, signal):
    last, netlist.last_late_net = netlist.last_late_net, netlist.last_late_net - len(signal)
    value = _nir.Value(map(_nir.Net, range(netlist.last_late_net, last)))
    netlist.late_to_signal.update(zip(value, zip(repeat(signal), count())))
    return value


def _connect(emitter, lhs, rhs, *, src_loc):
    known = emitter.netlist.connections
    if len(lhs) != len(rhs) or len(set(lhs)) != len(lhs) or not known.keys().isdisjoint(lhs):
        return _connect_by_bits(emitter, lhs, rhs, src_loc=src_loc)  # names the conflict
    known.update(zip(lhs, rhs))
    emitter.connect_src_loc.update(zip(lhs, repeat(src_loc)))


def _resolve_value(netlist, value):
    """Returns a value in which drivers replace the bits of signals, which are below zero."""
    drivers = netlist.connections
    while value and min(value) < 0:
        value = _nir.Value([drivers.get(net, net) for net in value])
    return value


def _compute_net_flows(netlist):
    """Enters each net into `net_flow` of the modules that it crosses: as internal into the smallest module that contains its
    driver and all its users, as output on the way from the driver, and as input on the way to a user."""
    modules, flow = netlist.modules, _nir.ModuleNetFlow
    top = {}  # net: the smallest module that contains what is known of it
    for index, cell in enumerate(netlist.cells):
        nets = cell.output_nets(index)
        top.update(dict.fromkeys(nets, cell.module_idx))
        modules[cell.module_idx].net_flow.update(dict.fromkeys(nets, flow.Internal))
    depths = [len(module.name) for module in modules]

    def use(nets, user):
        for net in nets.difference(modules[user].net_flow):
            if net < 2:
                continue  # a constant
            upper, lower = top[net], user
            while upper != lower:
                if depths[lower] >= depths[upper]:
                    flows, lower, way = modules[lower].net_flow, modules[lower].parent, flow.Input
                    if net in flows:
                        break  # another user below the same module
                else:
                    flows, upper, way = modules[upper].net_flow, modules[upper].parent, flow.Output
                flows[net] = way
            else:
                modules[upper].net_flow[net] = flow.Internal
                top[net] = upper

    for cell in netlist.cells:
        use(cell.input_nets(), cell.module_idx)
    for index, module in enumerate(modules):
        for signal in module.signal_names:
            use(set(netlist.signals[signal]), index)


def _sigspec(emitter, *parts):
    """Returns the text of a value in RTLIL: slices of wires, and constants."""
    nets = [net for part in parts for net in ((part,) if isinstance(part, _nir.Net) else part)]
    chunks, position, size, places = [], 0, len(nets), emitter.nets
    while position < size:
        begin = position
        if nets[begin] < 2:
            while position < size and nets[position] < 2:
                position += 1
            bits = "".join("1" if net else "0" for net in reversed(nets[begin:position]))
            chunks.append(f"{position - begin}'{bits}")
            continue
        wire, low = place = places[nets[begin]]
        while place == (wire, low + position - begin):
            position += 1
            place = places.get(nets[position]) if position < size else None
        high = low + position - begin - 1
        chunks.append(f"{wire.name} [{low}]" if high == low else f"{wire.name} [{high}:{low}]")
    return chunks[0] if len(chunks) == 1 else f"{{ {' '.join(reversed(chunks))} }}"


def _inputs(cell):
    """Returns the nets on which the outputs of a cell may depend within a clock cycle."""
    if isinstance(cell, _SOURCES):
        return ()
    return (cell.clk, cell.arst) if isinstance(cell, _nir.FlipFlop) else cell.input_nets()


def _is_whole(cell):
    """Returns True if every output bit of a cell depends on the same inputs, as those of an adder."""
    if isinstance(cell, _nir.Operator):
        return len(cell.inputs) < 3 and cell.operator not in ("~", "&", "|", "^")
    return isinstance(cell, (_nir.Part, _nir.Matches, _nir.AsyncReadPort))


def _after_a_cycle(needs):
    """Returns the nodes of a graph that are in a cycle or need a node that is. `needs` maps each node to a set of nodes."""
    users = {}
    for node, sources in needs.items():
        for source in sources:
            users.setdefault(source, []).append(node)
    missing = {node: len(sources) for node, sources in needs.items()}
    ready = [node for node, count in missing.items() if not count]
    while ready:
        node = ready.pop()
        del missing[node]
        for user in users.get(node, ()):
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    return missing.keys()


def _check_cycles(netlist):
    """Raises CombinationalCycle if the netlist has a combinational cycle.

    A cycle of bits is also a cycle of the cells and signals that they are bits of. So only these bits are followed.
    """
    # A net below zero is a bit of a signal, 0 and 1 are constants. A cell is a node below zero.
    signals = {net: id(signal) for net, (signal, _) in netlist.late_to_signal.items()}

    def nodes(nets):
        return {signals[net] if net < 0 else -(net >> 16) for net in nets if net < 0 or net > 1}

    needs = {-index: nodes(_inputs(cell)) for index, cell in enumerate(netlist.cells)}
    for net, source in netlist.connections.items():
        needs.setdefault(signals[net], set()).update(nodes([source]))
    region = _after_a_cycle(needs)
    users = {node: set() for node in region}
    for node in region:
        for source in needs[node] & region:
            users[source].add(node)
    region = _after_a_cycle(users)  # without nodes that merely need a cycle
    if not region:
        return

    whole = {index for index, cell in enumerate(netlist.cells) if -index in region and _is_whole(cell)}

    def bits(nets):
        inside = [net for net in nets if (signals[net] if net < 0 else -(net >> 16)) in region]
        return {net >> 16 << 16 if net >> 16 in whole else net for net in inside}

    needs = {net: bits([source]) for net, source in netlist.connections.items() if signals[net] in region}
    for node in region:
        if node < 0:
            cell = netlist.cells[-node]
            for net in bits(cell.output_nets(-node)):
                needs[net] = bits(source for source, _ in cell.comb_edges_to(net & 0xFFFF))
    if _after_a_cycle(needs):
        _check_every_bit(netlist)  # names the cycle


def _emit_memory(emitter, cell_idx, cell):
    """Writes the initial contents of a memory. `_emit_memory_by_bits` makes an object of each bit."""
    if not cell.width * len(cell.init):
        _emit_memory_by_bits(emitter, cell_idx, cell)
        return
    mask = (1 << cell.width) - 1
    rows = "".join(f"{row & mask:0{cell.width}b}" for row in reversed(cell.init))
    emitter.builder.cell(
        "$meminit_v2",
        ports={"ADDR": emitter.sigspec(), "DATA": f"{len(rows)}'{rows}", "EN": emitter.sigspec(_nir.Value.ones(cell.width))},
        parameters={
            "MEMID": emitter.memories[cell_idx].memid,
            "ABITS": 0,
            "WIDTH": cell.width,
            "WORDS": cell.depth,
            "PRIORITY": 0,
        },
        src_loc=cell.src_loc,
    )


_QUICK = (
    (_nir.Net, "from_cell", classmethod(_output)),
    (_nir.Value, "__new__", _new_value),
    (_nir.Value, "from_const", classmethod(_constant)),
    (_nir.Netlist, "add_value_cell", _add_value_cell),
    (_nir.Netlist, "alloc_late_value", _alloc_late_value),
    (_nir.Netlist, "resolve_value", _resolve_value),
    (_nir.Netlist, "check_comb_cycles", _check_cycles),
    (_ir.NetlistEmitter, "connect", _connect),
    (_ir, "_compute_net_flows", _compute_net_flows),
    (rtlil.ModuleEmitter, "sigspec", _sigspec),
    (rtlil.ModuleEmitter, "emit_memory", _emit_memory),
)


@contextlib.contextmanager
def quick_netlists():
    """Returns a context manager. In its `with` block, Amaranth converts designs with the functions of this file, and the garbage
    collector rests: it would scan millions of objects that are all in use."""
    theirs = [(owner, name, owner.__dict__[name]) for owner, name, _ in _QUICK]
    collects = gc.isenabled()
    for owner, name, function in _QUICK:
        setattr(owner, name, function)
    gc.disable()
    try:
        yield
    finally:
        if collects:
            # All objects become old ones, which the collector seldom scans.
            gc.freeze()
            gc.enable()
            gc.unfreeze()
        for owner, name, function in theirs:
            setattr(owner, name, function)
