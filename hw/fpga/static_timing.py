"""Static timing analysis of a mapped ECP5 netlist, before place and route: the longest paths inside and between blocks."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from math import log2, sqrt

from .place_and_route import design_name

__all__ = ["FAMILY", "worst_paths"]

#: The family of :data:`hw.fpga.targets.FAMILIES` whose cells this analysis knows.
FAMILY = "ecp5"

#: Delays in ns of cells of speed grade 6, as nextpnr uses them, rounded up to 0.01 ns.
_LUT, _CLOCK_TO_Q = 0.24, 0.53
_INTO_CARRY, _ALONG_CARRY, _OUT_OF_CARRY, _THROUGH_SUM = 0.45, 0.08, 0.45, 0.45
_RAM, _RAM_REGISTER, _PRODUCT, _PRODUCT_REGISTER = 5.83, 0.98, 3.93, 0.61
#: An estimate of a wire in ns: for one reader, and more for each doubling of the readers. Carries have wires of their own. The
#: constants fit the wires on the longest paths of a routed `ulx3s-25f`.
_WIRE, _WIRE_PER_DOUBLING = 0.7, 0.1
#: More for a wire between two blocks, in ns, in a design of `_CELLS` cells. It grows with the side of the placed design.
_BETWEEN_BLOCKS, _CELLS = 0.4, 17_000


@dataclass(frozen=True)
class _Arc:
    """A way through a cell without a register: from net `source` to net `sink`, in `delay` ns. `carried` is True if the net
    `source` is the dedicated wire of a carry chain."""

    cell: str
    source: int
    sink: int
    delay: float
    carried: bool = False


@dataclass(frozen=True)
class _Arrival:
    """The latest arrival at a net from one block: the time in ns, the arc that it came through (None at a register), and the
    cell with the register."""

    time: float
    arc: _Arc | None
    register: str


def _is_net(bit):
    return isinstance(bit, int)


class _Netlist:
    """The registers and the arcs of a flat module of Yosys' JSON.

    Attributes
    ----------
    launches : list of (cell, net, delay)
    arcs : list of _Arc
    captures : list of (cell, net)
        Nets that end in a register.
    readers, drivers : dict
        {net: number of cells that read it}, {net: cell that drives it}.
    """

    def __init__(self, module):
        self.launches, self.arcs, self.captures = [], [], []
        self.readers, self.drivers = Counter(), {}
        for name, cell in module["cells"].items():
            inputs, outputs = defaultdict(list), defaultdict(list)
            for port, bits in cell["connections"].items():
                nets = list(filter(_is_net, bits))
                if cell["port_directions"][port] == "output":
                    outputs[port] += nets
                    self.drivers.update(dict.fromkeys(nets, name))
                else:
                    inputs[port] += nets
                    self.readers.update(nets)
            add = getattr(self, f"_add_{cell['type'].lower()}", None)
            if add:
                add(name, inputs, outputs, cell["parameters"])

    def _join(self, name, sources, sinks, delay, carried=False):
        self.arcs += [_Arc(name, source, sink, delay, carried) for source in sources for sink in sinks]

    def _capture(self, name, inputs, clocks):
        self.captures += [(name, net) for port, nets in inputs.items() if not port.startswith(clocks) for net in nets]

    def _launch(self, name, sinks, delay):
        self.launches += [(name, net, delay) for net in sinks]

    def _add_lut4(self, name, inputs, outputs, parameters):
        self._join(name, [net for nets in inputs.values() for net in nets], outputs["Z"], _LUT)

    def _add_ccu2c(self, name, inputs, outputs, parameters):
        low, high = ([net for port in "ABCD" for net in inputs[f"{port}{half}"]] for half in (0, 1))
        self._join(name, low + high, outputs["COUT"], _INTO_CARRY)
        self._join(name, inputs["CIN"], outputs["COUT"], _ALONG_CARRY, carried=True)
        self._join(name, inputs["CIN"], outputs["S0"] + outputs["S1"], _OUT_OF_CARRY, carried=True)
        self._join(name, low, outputs["S0"], _LUT)
        self._join(name, high, outputs["S1"], _LUT)
        self._join(name, low, outputs["S1"], _THROUGH_SUM)

    def _add_trellis_ff(self, name, inputs, outputs, parameters):
        self._launch(name, outputs["Q"], _CLOCK_TO_Q)
        self._capture(name, inputs, "CLK")

    def _add_trellis_dpr16x4(self, name, inputs, outputs, parameters):
        self._join(name, inputs.pop("RAD"), outputs["DO"], _LUT)
        self._launch(name, outputs["DO"], _CLOCK_TO_Q)
        self._capture(name, inputs, "WCK")

    def _add_dp16kd(self, name, inputs, outputs, parameters):
        for side in "AB":
            registered = parameters.get(f"REGMODE_{side}", "NOREG") == "OUTREG"
            nets = [net for port, nets in outputs.items() if port.startswith(f"DO{side}") for net in nets]
            self._launch(name, nets, _RAM_REGISTER if registered else _RAM)
        self._capture(name, inputs, "CLK")

    def _add_mult18x18d(self, name, inputs, outputs, parameters):
        product = [net for port, nets in outputs.items() if port.startswith("P") for net in nets]
        factors = [net for port, nets in inputs.items() if port[0] in "AB" for net in nets]
        before = parameters.get("REG_INPUTA_CLK", "NONE") != "NONE"
        after = parameters.get("REG_OUTPUT_CLK", "NONE") != "NONE"
        if before or after:
            self._launch(name, product, _PRODUCT_REGISTER if after else _PRODUCT)
            self.captures += [(name, net) for net in factors]
        else:
            self._join(name, factors, product, _PRODUCT)


def _in_order(arcs):
    """Returns the arcs in topological order. Arcs of a combinational loop, and arcs after it, are missing."""
    waiting, following = Counter(arc.sink for arc in arcs), defaultdict(list)
    for arc in arcs:
        following[arc.source].append(arc)
    ready, order = [net for net in following if not waiting[net]], []
    while ready:
        for arc in following[ready.pop()]:
            order.append(arc)
            waiting[arc.sink] -= 1
            if not waiting[arc.sink]:
                ready.append(arc.sink)
    return order


def _arrivals(netlist, block_of, wire):
    """Returns {net: {block: _Arrival}}: the latest arrival from the registers of each block. `wire` maps a net and a
    cell that reads it to the delay between them."""
    arrivals = defaultdict(dict)

    def arrive(net, block, arrival):
        known = arrivals[net].get(block)
        if known is None or known.time < arrival.time:
            arrivals[net][block] = arrival

    for cell, net, delay in netlist.launches:
        arrive(net, block_of(cell), _Arrival(delay, None, cell))
    for arc in _in_order(netlist.arcs):
        delay = arc.delay + (0 if arc.carried else wire(arc.source, arc.cell))
        for block, before in arrivals[arc.source].items():
            arrive(arc.sink, block, _Arrival(before.time + delay, arc, before.register))
    return arrivals


def _steps(arrivals, net, block):
    arcs = []
    while (arc := arrivals[net][block].arc) is not None:
        arcs.append(arc)
        net = arc.source
    return arcs[::-1]


def worst_paths(module, layout, *, most=10):
    """Returns the slowest path between registers for each pair of a first and a last block, the slowest pair first.

    The delays of cells are nextpnr's. A wire's delay is an estimate from its number of readers; it
    is longer between two blocks. Clock skew and setup are ignored.

    Parameters
    ----------
    module : dict
        A flat module of Yosys' JSON.
    layout : hw.fpga.netlist.BlockHierarchy
    most : int
        Most paths to return.

    Returns
    -------
    list of dict
        `from_block`, `to_block`; `from`, `to`: names of the registers; `through`: the blocks of the cells between them, in order;
        `luts`, `carries`: numbers of cells, where a carry chain counts once; `delay_ns`: the estimate.
    """
    netlist = _Netlist(module)

    blocks = {name: layout.block_of(name) for name in module["cells"]}
    border = _BETWEEN_BLOCKS * sqrt(len(blocks) / _CELLS)

    def wire(net, reader):
        inside = net not in netlist.drivers or blocks[netlist.drivers[net]] == blocks[reader]
        return _WIRE + _WIRE_PER_DOUBLING * log2(netlist.readers[net]) + (0 if inside else border)

    types = {name: cell["type"] for name, cell in module["cells"].items()}
    arrivals, worst = _arrivals(netlist, layout.block_of, wire), {}
    for cell, net in netlist.captures:
        end = layout.block_of(cell)
        for block, arrival in arrivals[net].items():
            time = arrival.time + wire(net, cell)
            if (block, end) not in worst or worst[block, end][0] < time:
                worst[block, end] = time, cell, net
    slowest = sorted(worst.items(), key=lambda entry: -entry[1][0])[:most]
    return [_described(arrivals, types, layout, block, *entry) for (block, _), entry in slowest]


def _described(arrivals, types, layout, block, time, cell, net):
    arcs = _steps(arrivals, net, block)
    carried = sum(types[arc.cell] == "CCU2C" and not arc.carried for arc in arcs)
    return {
        "from_block": block,
        "to_block": layout.block_of(cell),
        "from": design_name(arrivals[net][block].register, layout),
        "to": design_name(cell, layout),
        "through": list(dict.fromkeys(layout.block_of(arc.cell) for arc in arcs)),
        "luts": sum(types[arc.cell] == "LUT4" for arc in arcs),
        "carries": carried,
        "delay_ns": round(time, 2),
    }
