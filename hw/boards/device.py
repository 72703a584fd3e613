"""The FPGAs of boards, by family: the part, nextpnr's options, and the file of constraints."""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Device", "device_of"]

#: nextpnr's names of the packages of an ECP5.
_PACKAGES = {"BG256": "CABGA256", "MG285": "CSFBGA285", "BG381": "CABGA381", "BG554": "CABGA554", "BG756": "CABGA756"}
#: nextpnr's options for the series of an ECP5, before the size in thousands of LUTs.
_SERIES = {"LFE5U": "--", "LFE5UM": "--um-", "LFE5UM5G": "--um5g-"}


@dataclass(frozen=True)
class Device:
    """The FPGA of a board."""

    part: str  # key of :data:`hw.fpga.targets.PARTS`
    options: tuple  # Tuple of str. nextpnr's options for part, package and speed grade.
    #: Callable. Called with a list of :class:`.Pin`, the port of the clock and its MHz. Returns the text of the constraints.
    constraints: Callable
    has_pll: bool = False  # True if a PLL makes the clock of the core. Otherwise, the core has the clock of the board.


def _attributes(pin):
    return " ".join(f"{key}={value}" for key, value in pin.attributes.items())


def _preferences(pins, clock, mhz):
    """Returns Lattice's preferences (LPF)."""
    lines = []
    for pin in pins:
        lines.append(f'LOCATE COMP "{pin.port}" SITE "{pin.site}";')
        if pin.attributes:
            lines.append(f'IOBUF PORT "{pin.port}" {_attributes(pin)};')
    return "\n".join([*lines, f'FREQUENCY PORT "{clock}" {mhz:g} MHZ;', ""])


def _physical_constraints(pins, clock, mhz):
    """Returns Lattice's constraints for Nexus (PDC)."""
    lines = [f"create_clock -name {{{clock}}} -period {1000 / mhz:.3f} [get_ports {{{clock}}}]"]
    for pin in pins:
        lines.append(f"ldc_set_location -site {{{pin.site}}} [get_ports {{{pin.port}}}]")
        lines.append(f"ldc_set_port -iobuf {{{_attributes(pin)}}} [get_ports {{{pin.port}}}]")
    return "\n".join([*lines, ""])


def _gowin_constraints(pins, _clock, _mhz):
    """Returns Gowin's constraints (CST), which have no clocks."""
    return "".join(f'IO_LOC "{pin.port}" {pin.site};\nIO_PORT "{pin.port}" {_attributes(pin)};\n' for pin in pins)


def device_of(platform):
    """Returns the :class:`Device` of a platform's class: Lattice's ECP5 or Nexus, or Gowin's GW2A."""
    if hasattr(platform, "family"):
        part = platform.family.lower().removesuffix("c")
        return Device(part, ("--device", platform.part, "--vopt", f"family={platform.family}"), _gowin_constraints)
    if platform.device.startswith("LIFCL"):
        name = f"{platform.device}-{platform.speed}{platform.package}{platform.grade}"
        return Device(platform.device.lower(), ("--device", name), _physical_constraints)
    series, size = platform.device.removesuffix("F").split("-")
    options = (f"{_SERIES[series]}{size}k", "--package", _PACKAGES[platform.package], "--speed", str(platform.speed))
    return Device(f"ecp5-{size}", options, _preferences, has_pll=True)
