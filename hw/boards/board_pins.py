"""The pins of a board, from its platform in the package amaranth-boards."""

import re
from dataclasses import dataclass

from amaranth.build import ResourceError
from amaranth.lib.io import DifferentialPort, SingleEndedPort

from ..config import ConfigError

__all__ = ["Pin", "request_pins"]

_RESOURCE = re.compile(r"(\w+)#(\d+)(?:\.(\w+)(?:\[(\d+)\])?)?")


@dataclass(frozen=True)
class Pin:
    """A pin of the FPGA that belongs to a port of `top`."""

    port: str
    site: str  # ball on the package; for a differential pair, the positive ball
    attributes: dict  # Dict of str to str. I/O attributes, such as `IO_TYPE`.
    inverted: bool  # True if the pin is active low

    def read(self):
        """Returns the Verilog expression for the value of an input, active high."""
        return f"~{self.port}" if self.inverted else self.port


def request_pins(platform, resources):
    """Returns {port: :class:`Pin`} of resources of a platform.

    Parameters
    ----------
    platform : amaranth.build.Platform
    resources : dict of str to str
        {port: resource}. A resource is written as `led#0`, or with a signal if it has several, as `uart#0.rx`. A pin of a signal
        with several is written as `sdram#0.a[3]`.

    Raises
    ------
    ConfigError
        If the platform does not have a resource, a resource has several pins, or two resources share a pin.
    """
    requested, pins = {}, {}
    for port, resource in resources.items():
        match = _RESOURCE.fullmatch(resource)
        if not match:
            raise ConfigError(f"{port}: {resource!r} is not the name of a resource; write it as led#0 or uart#0.rx")
        name, number, signal, index = match[1], int(match[2]), match[3], match[4]
        if (name, number) not in platform.resources:
            has = ", ".join(f"{name}#{number}" for name, number in sorted(platform.resources))
            raise ConfigError(f"{port}: {type(platform).__name__} has no {name}#{number}; it has {has}")
        try:
            if (name, number) not in requested:
                requested[name, number] = platform.request(name, number, dir="-")
        except ResourceError as error:
            raise ConfigError(f"{port}: {error}") from None
        found = requested[name, number]
        found = getattr(found, signal, None) if signal else found
        if not isinstance(found, (SingleEndedPort, DifferentialPort)):
            signals = ", ".join(getattr(one, "name", "no signals") for one in platform.resources[name, number].ios)
            raise ConfigError(f"{port}: {resource!r} is not a pin; {name}#{number} has {signals}")
        if int(index or 0) >= len(found) or not index and len(found) != 1:
            raise ConfigError(f"{port}: {resource!r} has {len(found)} pins; name a resource of one pin")
        found = found[int(index or 0)]
        [pin] = (found.p if isinstance(found, DifferentialPort) else found.io).metadata
        pins[port] = Pin(port, pin.name, dict(pin.attrs), any(found.invert))
    return pins
