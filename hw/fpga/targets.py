"""The targets of `tpu synth`: FPGA families, parts with their resources, and boards."""

from dataclasses import dataclass

__all__ = ["FAMILIES", "PARTS", "RESOURCES", "Family", "Part", "Target", "TargetError", "find_target", "target_names"]

RESOURCES = ("lut", "ff", "dsp", "bram")

#: Lower bound of the LUTs of a cell whose multiplier is made of LUTs.
_LUTS_A_CELL = 500


class TargetError(ValueError):
    """The error of an unknown target. Its message lists the targets."""


@dataclass(frozen=True)
class Family:
    """A family of parts that are synthesized with the same Yosys command."""

    name: str
    synthesis: str  # yosys command, without the option that keeps or flattens the hierarchy
    #: {cell: (resource, count)}: the resources of each type of cell. Carry cells and memories in LUTs count as the LUTs that they
    #: occupy.
    cells: dict
    #: flat, hierarchical: Options of that command that flatten or keep the hierarchy.
    flat: str = ""
    hierarchical: str = "-noflatten"
    before: str = ""  # yosys command before all others
    pads: str = ""  # yosys command that adds pads to the top, if nextpnr does not
    place_and_route: str | None = None  # family name in nextpnr's program; None if PyPI has no open tool for it
    effort: tuple = ()  # Tuple of str. nextpnr's options that are used for all parts of the family.


def _cells(resource, *names, count=1):
    return dict.fromkeys(names, (resource, count))


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "ecp5",
            "synth_ecp5 -nowidelut",
            place_and_route="ecp5",
            effort=("--placer-heap-timingweight", "30"),
            # A CCU2C is two LUTs; a 16 x 4 memory is four, and two for its write port.
            cells=_cells("lut", "LUT4")
            | _cells("lut", "CCU2C", count=2)
            | _cells("lut", "TRELLIS_DPR16X4", count=6)
            | _cells("ff", "TRELLIS_FF")
            | _cells("dsp", "MULT18X18D")
            | _cells("bram", "DP16KD"),
        ),
        Family(
            "ice40",
            "synth_ice40",
            place_and_route="ice40",
            cells=_cells("lut", "SB_LUT4")
            | _cells("dsp", "SB_MAC16")
            | _cells("bram", "SB_RAM40_4K")
            | _cells("ff", *(f"SB_DFF{kind}" for kind in ("", "E", "SR", "ESR", "SS", "ESS", "R", "ER", "S", "ES"))),
        ),
        Family(
            "gw2a",
            "synth_gowin -family gw2a -nowidelut -noiopads",
            place_and_route="himbaechel-gowin",
            pads="iopadmap -bits -inpad IBUF O:I -outpad OBUF I:O",
            # Yosys' own script for LUTs without its last step, &mfs, which in 0.70 aborts on some carry chains of this family.
            before='scratchpad -set abc9.script "+&scorr; &sweep; &dc2; &dch -f -r; &ps; &if {W} {D} {R} -v"',
            cells=_cells("lut", "LUT1", "LUT2", "LUT3", "LUT4", "ALU")
            | _cells("lut", "RAM16SDP4", "RAM16SDP2", "RAM16SDP1", count=6)
            | _cells("ff", *(f"DFF{kind}" for kind in ("", "E", "S", "SE", "R", "RE", "P", "PE", "C", "CE")))
            | _cells("dsp", "MULT9X9", "MULT18X18")
            | _cells("dsp", "MULT36X36", count=4)
            | _cells("bram", "SP", "SPX9", "SDPB", "SDPX9B", "DPB", "DPX9B"),
        ),
        Family(
            "nexus",
            "synth_nexus",
            place_and_route="nexus",
            cells=_cells("lut", "LUT4", "INV")
            | _cells("lut", "CCU2", "WIDEFN9", count=2)
            | _cells("lut", "DPR16X4", count=6)
            | _cells("ff", *(f"FD1P3{kind}X" for kind in "BDIJ"))
            | _cells("dsp", "MULT9X9", "MULT18X18", "MULT18X36", "MULT36X36")
            | _cells("bram", "DP16K", "PDP16K", "PDPSC16K", "SP16K"),
        ),
        Family(
            "xilinx7",
            "synth_xilinx -family xc7 -noiopad -noclkbuf",
            flat="-flatten",
            hierarchical="",
            cells=_cells("lut", *(f"LUT{size}" for size in range(1, 7)), "SRL16E", "SRLC32E")
            | _cells("lut", "RAM32M", "RAM64M", count=4)
            | _cells("lut", "RAM32X1D", "RAM64X1D", count=2)
            | _cells("ff", "FDRE", "FDSE", "FDCE", "FDPE")
            | _cells("dsp", "DSP48E1")
            | _cells("bram", "RAMB18E1")
            | _cells("bram", "RAMB36E1", count=2),
        ),
    )
}


@dataclass(frozen=True)
class Part:
    """An FPGA and its resources. The counts are from the manufacturer's data sheet (`source`).

    `options` are nextpnr's options for part, package and speed grade. `synthesis` has more options for Yosys. `clock_mhz` is the
    target clock of place and route without a board. `pins` has the pins of :mod:`hw.fpga.scan_chain`, for families in which
    nextpnr does not choose them.
    """

    name: str
    family: str
    source: str
    lut: int
    ff: int
    dsp: int
    bram: int
    options: tuple = ()
    synthesis: str = ""
    pins: str = ""
    clock_mhz: float = 100.0

    @property
    def available(self):
        """Returns the part's resources, {resource: count}."""
        return {resource: getattr(self, resource) for resource in RESOURCES}

    def least(self, n):
        """Returns `(resource, count)`: a lower bound of the resources that the n x n cells of a core need."""
        return ("dsp", n**2) if self.dsp else ("lut", _LUTS_A_CELL * n**2)

    @property
    def sizes(self):
        """Returns the sizes n of cores whose cells can fit the part, the largest first."""

        def possible(n):
            resource, count = self.least(n)
            return count <= self.available[resource]

        return list(filter(possible, (128, 64, 32, 16, 8, 4, 2)))


_ECP5 = ("--package", "CABGA381", "--speed", "6")
_ECP5_SOURCE = "Lattice FPGA-DS-02012"
_XILINX_SOURCE = "AMD DS180 and UG474"
_ICE40_UP_SOURCE = "Lattice FPGA-DS-02008"

PARTS = {
    part.name: part
    for part in (
        # The same die as the 25F, with another ID in the bitstream: all resources can be used.
        Part("ecp5-12", "ecp5", _ECP5_SOURCE, lut=24_288, ff=24_288, dsp=28, bram=56, options=("--12k", *_ECP5)),
        Part("ecp5-25", "ecp5", _ECP5_SOURCE, lut=24_288, ff=24_288, dsp=28, bram=56, options=("--25k", *_ECP5)),
        Part("ecp5-45", "ecp5", _ECP5_SOURCE, lut=43_848, ff=43_848, dsp=72, bram=108, options=("--45k", *_ECP5)),
        Part("ecp5-85", "ecp5", _ECP5_SOURCE, lut=83_640, ff=83_640, dsp=156, bram=208, options=("--85k", *_ECP5)),
        Part(
            "ice40-up5k",
            "ice40",
            _ICE40_UP_SOURCE,
            lut=5_280,
            ff=5_280,
            dsp=8,
            bram=30,
            options=("--up5k", "--package", "sg48"),
            synthesis="-device u -dsp",
            clock_mhz=24.0,
        ),
        Part(
            "ice40-hx8k",
            "ice40",
            "Lattice FPGA-DS-02029",
            lut=7_680,
            ff=7_680,
            dsp=0,
            bram=32,
            options=("--hx8k", "--package", "ct256"),
            synthesis="-device hx",
            clock_mhz=48.0,
        ),
        Part(
            "gw2a-18",
            "gw2a",
            "Gowin DS102",
            lut=20_736,
            ff=15_552,
            dsp=48,
            bram=46,
            options=("--device", "GW2A-LV18PG256C8/I7", "--vopt", "family=GW2A-18"),
            clock_mhz=50.0,
            pins='IO_LOC "clk" H11;\nIO_LOC "scan_i" T10;\nIO_LOC "load" T3;\nIO_LOC "scan_o" L16;\n',
        ),
        Part(
            "lifcl-40",
            "nexus",
            "Lattice FPGA-DS-02049",
            lut=32_256,
            ff=32_256,
            dsp=56,
            bram=84,
            options=("--device", "LIFCL-40-9BG400C"),
            clock_mhz=75.0,
            pins="".join(
                f"ldc_set_location -site {{{site}}} [get_ports {port}]\n"
                for port, site in (("clk", "L13"), ("scan_i", "G14"), ("load", "G15"), ("scan_o", "E17"))
            ),
        ),
        Part("xc7a100t", "xilinx7", _XILINX_SOURCE, lut=63_400, ff=126_800, dsp=240, bram=270),
        Part("xc7a200t", "xilinx7", _XILINX_SOURCE, lut=134_600, ff=269_200, dsp=740, bram=730),
        Part("xc7k325t", "xilinx7", _XILINX_SOURCE, lut=203_800, ff=407_600, dsp=840, bram=890),
    )
}

#: The part that is meant by the name of a family.
_FAMILY_PARTS = {"ecp5": "ecp5-85", "ice40": "ice40-up5k", "xilinx7": "xc7k325t"}


@dataclass(frozen=True)
class Target:
    """A target of synthesis: a part, and its board, if any."""

    name: str
    part: Part
    board: object = None

    @property
    def family(self):
        return FAMILIES[self.part.family]

    @property
    def clock_mhz(self):
        """Returns the target clock of place and route, in MHz."""
        return self.board.clock_mhz if self.board else self.part.clock_mhz

    @property
    def options(self):
        """Returns nextpnr's options for part, package, speed grade and effort."""
        return (*(self.board.place_and_route_options if self.board else self.part.options), *self.family.effort)


def _boards():
    from ..boards import BOARDS  # imported here, as it takes a second

    return BOARDS


def target_names():
    """Returns the names of boards, parts and families, as a list."""
    return [*_boards(), *PARTS, *_FAMILY_PARTS]


def find_target(name):
    """Returns the :class:`Target` with this name.

    Raises
    ------
    TargetError
        If the name is unknown.
    """
    boards = _boards()
    if name in boards:
        return Target(name, PARTS[boards[name].part], boards[name])
    if name in PARTS or name in _FAMILY_PARTS:
        return Target(name, PARTS[_FAMILY_PARTS.get(name, name)])
    raise TargetError(f"target must be one of {', '.join(target_names())}, not {name!r}")
