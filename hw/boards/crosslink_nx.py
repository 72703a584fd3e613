"""The CrossLink-NX evaluation board, which the package amaranth-boards does not have. Pins: Lattice FPGA-EB-02028."""

from amaranth.build import Attrs, Clock, Pins, Resource
from amaranth.vendor import LatticePlatform
from amaranth_boards.resources import ButtonResources, LEDResources, UARTResource

__all__ = ["CrosslinkNxPlatform"]

_ATTRIBUTES = Attrs(IO_TYPE="LVCMOS33")


class CrosslinkNxPlatform(LatticePlatform):
    """The board LIFCL-40-EVN. Its serial line needs the jumpers R15 and R17, its clock the jumper JP2."""

    device = "LIFCL-40"
    package = "BG400"
    speed = "9"
    grade = "C"
    default_clk = "clk12"
    resources = [
        Resource("clk12", 0, Pins("L13", dir="i"), Clock(12e6), _ATTRIBUTES),
        UARTResource(0, rx="F16", tx="F18", attrs=_ATTRIBUTES),
        *LEDResources(pins="E17 F13 G13 F14", invert=True, attrs=_ATTRIBUTES),
        *ButtonResources(pins="G14 G15", invert=True, attrs=_ATTRIBUTES),
    ]
    connectors = []
