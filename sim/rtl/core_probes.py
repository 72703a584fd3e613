"""Probes of a whole core, which record the activity of every unit in each cycle."""

from amaranth_tpu.hw.control.description import decoded_layout
from amaranth_tpu.hw.control.dispatcher import units_of
from amaranth_tpu.hw.spec.operations import instruction_layout, matmul_layout, pass_layout

from .probes import Net, Probe

__all__ = ["core_probes", "slot_net"]


def _part(path, layout, *names):
    """Returns the :class:`.Net` of a field of the signal at `path`. `layout` is the signal's layout; `names` lead to a nested
    field."""
    first = 0
    for name in names:
        field = layout[name]
        first, layout = first + field.offset, field.shape
    return Net(path, first, field.width)


def core_probes(config):
    """Returns the probes that :func:`sim.host.timeline.timeline` needs. They read ports of blocks, or documented signals.

    * `active`: a program is running. `state`, one cycle late: a row enters the array, else the stall reasons.
    * `asked`, `fetched`: instruction fetch requests, and beats of the responses. `decode`: the decoder accepts an instruction.
      `offered`: the dispatcher holds an instruction. `placed`: that instruction gets its slot.
    * `begin_*`, `end_*`: a unit starts an operation, and retires its oldest.
    * `passes`: passes of the MATMUL in `slot`. `first`, `last`: the first and last row of a pass enter the array.
    * `reads`, `writes`: beats on the bus; `client` is an index in :data:`hw.bus.axi_reader.CLIENTS`.
    """
    operation = _part("dispatcher.i__payload", decoded_layout(config), "pc")
    row = Net("matmul.issuer.active")
    probes = [
        Probe("active", {"active": Net("run.registers__active")}),
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
        Probe("reads", {"beat": Net("reader.control__beat"), "client": Net("reader.r_data")}),
        Probe("writes", {"beat": Net("writer.control__beat")}),
    ]
    for unit in units_of(config):
        port = f"dispatcher.{unit}__"
        probes += [
            Probe(f"begin_{unit}", {"slot": slot_net(unit, config)}, when=(Net(f"{port}op__valid"), Net(f"{port}op__ready"))),
            Probe(f"end_{unit}", when=(Net(f"{port}done"),)),
        ]
    return tuple(probes)


def slot_net(unit, config):
    """Returns the :class:`Net` with the slot of the operation that the dispatcher offers to a unit. The operations of all units
    have it at the same place. A port that is mostly read from a memory has a name only in its unit."""
    instance = {"activate": "activation", "ring": "ring_unit"}.get(unit)
    port = f"{instance}.port__op__payload" if instance else f"dispatcher.{unit}__op__payload"
    return _part(port, matmul_layout(config), "tag", "slot")
