"""Names for the values of signals, from the hardware description: states of state machines, and codes."""

import contextlib
import functools
import re

from amaranth.hdl import Signal

from amaranth_tpu.hw.tpu import Tpu
from amaranth_tpu.hw.verilog.export import component_to_rtlil

__all__ = ["enumerations"]

_LINE = re.compile(
    r'module \\(?P<module>\S+)|  attribute \\enum_value_(?P<value>[01]+) "(?P<name>[^"]*)"|  wire .*\\(?P<wire>\S+)$'
)


@contextlib.contextmanager
def _named_states():
    """Makes Amaranth attach the names of a state machine's states to its state register, as it does for enumerations."""
    plain = Signal.__init__

    def init(signal, *shape, src_loc_at=0, **options):
        plain(signal, *shape, src_loc_at=src_loc_at + 1, **options)
        if callable(signal.decoder):
            with contextlib.suppress(KeyError):  # the value is beyond the last state
                for number in range(1 << len(signal)):
                    signal.attrs[f"enum_value_{number:0{len(signal)}b}"] = signal.decoder(number).partition("/")[0]

    Signal.__init__ = init
    try:
        yield
    finally:
        Signal.__init__ = plain


@functools.cache
def enumerations(config):
    """Returns the names of signal values in a core: {(module, signal): {value: name}}."""
    with _named_states():
        text = component_to_rtlil(Tpu(config), name="tpu", clocked=False)
    found, names, module = {}, {}, ""
    for match in filter(None, map(_LINE.match, text.split("\n"))):
        if match["module"]:
            module = match["module"]
        elif match["value"]:
            names[int(match["value"], 2)] = match["name"]
        elif names:
            found[module, match["wire"]], names = names, {}
    return found
