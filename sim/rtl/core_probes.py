"""Probes of a whole core: what it takes to say afterwards what every unit did in each cycle of a run."""

from amaranth_tpu.hw.control.description import decoded_layout
from amaranth_tpu.hw.control.dispatcher import units_of
from amaranth_tpu.hw.spec.operations import instruction_layout, matmul_layout, pass_layout

from .probes import Net, Probe

__all__ = ["core_probes"]


def _part(path, layout, *names):
    """A field, or a field of a field, of a signal that has this layout."""
    first = 0
    for name in names:
        field = layout[name]
        first, layout = first + field.offset, field.shape
    return Net(path, first, field.width)


def core_probes(config):
    """The probes that :func:`sim.host.timeline.timeline` reads: all on ports of blocks, or on what their docstrings name.

    * `active`: a run goes on. `state`, a cycle late: whether a row enters the array, else the reasons why not.
    * `asked`, `fetched`: instructions that are asked for, and beats of them that come. `decode`: the decoder takes one.
      `offered`: the dispatcher has one. `placed`: it has its place.
    * `begin_*`, `end_*`: a unit takes an operation, and ends its oldest.
    * `passes`: of a MATMUL, in `slot`; `first` and `last`: a pass's rows enter the array.
    * `reads`, `writes`: beats on the bus; `client` as :data:`hw.bus.axi_reader.CLIENTS` has them.
    """
    operation = _part("dispatcher.i__payload", decoded_layout(config), "transfer", "tag", "pc")
    row = Net("matmul.issuer.active")
    probes = [
        Probe("active", {"active": Net("run.active")}),
        Probe("state", {"busy": Net("run.busy"), "stall": Net("run.stall")}),
        Probe("asked", {"count": Net("fetch.count")}, when=(Net("fetch.asked"),)),
        Probe("fetched", when=(Net("reader.fetch__answer__valid"),)),
        Probe(
            "decode",
            {"pc": _part("decoder.i__payload", instruction_layout(), "pc")},
            when=(Net("decoder.i__valid"), Net("decoder.i__ready")),
        ),
        Probe("offered", {"valid": Net("dispatcher.i__valid")}),
        Probe(
            "placed",
            {"pc": operation, "slot": Net("dispatcher.slot"), "accept": Net("dispatcher.accept")},
            when=(Net("dispatcher.placed"),),
        ),
        Probe(
            "passes", {"slot": _part("matmul.issuer.i__payload", pass_layout(config), "slot")}, when=(Net("matmul.issuer.go"),)
        ),
        Probe("first", when=(row, Net("matmul.issuer.first"))),
        Probe("last", when=(row, Net("matmul.issuer.final"))),
        Probe("reads", {"beat": Net("reader.beat"), "client": Net("reader.r_data")}),
        Probe("writes", {"beat": Net("writer.beat")}),
    ]
    slot = _part("", matmul_layout(config), "tag", "slot")  # at the same place in the layouts of all units
    for unit in units_of(config):
        port = f"dispatcher.{unit}__"
        probes += [
            Probe(
                f"begin_{unit}",
                {"slot": Net(f"{port}op__payload", slot.first, slot.width)},
                when=(Net(f"{port}op__valid"), Net(f"{port}op__ready")),
            ),
            Probe(f"end_{unit}", when=(Net(f"{port}done"),)),
        ]
    return tuple(probes)
