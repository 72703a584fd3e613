"""Faster versions of four functions of Amaranth's netlist. The text that Amaranth writes stays the same.

Amaranth works on single bits. It checks the type of each bit whenever it copies a value, and follows every bit to find
combinational cycles.
"""

import contextlib
import gc

from amaranth.back import rtlil
from amaranth.hdl import _nir

__all__ = ["quick_netlists"]

_BITS = _nir.Net(0), _nir.Net(1)
#: Cells whose outputs depend on no input within the same clock cycle.
_SOURCES = (_nir.Top, _nir.SyncReadPort, _nir.Initial, _nir.AnyValue, _nir.Instance)
_check_every_bit = _nir.Netlist.check_comb_cycles
_emit_memory_by_bits = rtlil.ModuleEmitter.emit_memory


def _new_value(cls, nets=()):
    return tuple.__new__(cls, (nets,) if isinstance(nets, _nir.Net) else nets)


def _constant(cls, value, width):
    return tuple.__new__(cls, [_BITS[value >> bit & 1] for bit in range(width)])


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
    (_nir.Value, "__new__", _new_value),
    (_nir.Value, "from_const", classmethod(_constant)),
    (_nir.Netlist, "check_comb_cycles", _check_cycles),
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
            gc.enable()
        for owner, name, function in theirs:
            setattr(owner, name, function)
