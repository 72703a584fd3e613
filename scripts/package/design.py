"""The record of a packaged design, from which all descriptions for tools are written: its ports and its bus interfaces."""

import re
from dataclasses import dataclass
from functools import cached_property

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.verilog.port_lists import ports_of

__all__ = ["AXI4", "AXI4_LITE", "AXI4_STREAM", "CLOCK", "INTERRUPT", "RESET", "Design", "Interface"]

#: Kinds of interfaces.
AXI4, AXI4_LITE, AXI4_STREAM, CLOCK, RESET, INTERRUPT = "axi4", "axi4_lite", "axi4_stream", "clock", "reset", "interrupt"

#: The interface of a port: the core's prefix in a ring, the interface, and the signal.
_PORT = re.compile(r"(core\d_)?(aclk|aresetn|irq|s_axil|m_axi|s_axis_ring|m_axis_ring)(?:_(\w+))?")
_KINDS = {
    "aclk": (CLOCK, False),
    "aresetn": (RESET, False),
    "s_axil": (AXI4_LITE, False),
    "m_axi": (AXI4, True),
    "s_axis_ring": (AXI4_STREAM, False),
    "m_axis_ring": (AXI4_STREAM, True),
    "irq": (INTERRUPT, True),
}


@dataclass(frozen=True)
class Interface:
    """A bus interface, or a clock, reset or interrupt. `signals` maps the signal's name in the bus standard to the port."""

    name: str
    kind: str
    manager: bool  # True: it drives the bus
    signals: dict

    @property
    def core(self):
        """The prefix of the core's ports: `core1_` in a ring, else empty."""
        return _PORT.match(self.name)[1] or ""


@dataclass(frozen=True)
class Design:
    """The generated Verilog of a core, or of cores in a ring, and its origin."""

    top: str  # Name of the top module.
    config: Config
    cores: int
    verilog: str
    version: str  # Version of the generator, such as 0.2.0.
    origin: str  # A line with the generator, its version, and the commit if known.
    command: str  # The command that writes the same package.
    mhz: float  # Clock frequency for the constraints.

    @cached_property
    def ports(self):
        """All ports as a list of `(name, direction, width)`."""
        return ports_of(self.verilog, self.top)

    @cached_property
    def interfaces(self):
        """The list of :class:`Interface`, in the order of the ports."""
        found = {}
        for name, _, _ in self.ports:
            core, bus, signal = _PORT.fullmatch(name).groups()
            kind, manager = _KINDS[bus]
            interface = found.setdefault(f"{core or ''}{bus}", Interface(f"{core or ''}{bus}", kind, manager, {}))
            interface.signals[signal.upper() if signal else ""] = name
        return [*found.values()]

    def of_kind(self, kind):
        """Returns the interfaces of a kind."""
        return [one for one in self.interfaces if one.kind == kind]

    @property
    def lines(self):
        """The lines at the head of each file: licence, origin and command."""
        return ["SPDX-License-Identifier: Apache-2.0", f"By {self.origin}.", f"Made again by: {self.command}"]

    def comment(self, mark):
        """Returns :attr:`lines` as comment lines that start with `mark`."""
        return "".join(f"{mark} {line}\n" for line in self.lines)
