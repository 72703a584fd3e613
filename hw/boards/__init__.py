"""Boards: FPGA designs with a core, a clock, a memory and a serial line to a host."""

from amaranth.build import Attrs
from amaranth_boards import ecpix5, orangecrab_r0_2, tang_primer_20k, ulx3s, versa_ecp5_5g
from amaranth_boards.resources import UARTResource

from .board import Board
from .crosslink_nx import CrosslinkNxPlatform
from .sdram_chip import SDRAM_32M

__all__ = ["Board", "BOARDS"]

_ULX3S = {"button": "button_fire#0", "leds": ("led#0", "led#1", "led#2", "led#3")}

#: {name: board}. The 12F is sold as a smaller part, but has all resources of a 25F.
BOARDS = {
    board.name: board
    for board in (
        Board("ulx3s-12f", ulx3s.ULX3S_12F_Platform, "ulx3s-25f", clock_mhz=100, memory=1 << 15, **_ULX3S),
        Board("ulx3s-25f", ulx3s.ULX3S_25F_Platform, "ulx3s-25f", clock_mhz=100, memory=1 << 15, **_ULX3S),
        Board("ulx3s-45f", ulx3s.ULX3S_45F_Platform, "ulx3s-45f", clock_mhz=110, memory=1 << 17, **_ULX3S),
        Board("ulx3s-85f", ulx3s.ULX3S_85F_Platform, "ulx3s-85f", clock_mhz=90, memory=SDRAM_32M, **_ULX3S),
        Board(
            "ecpix5-85f",
            ecpix5.ECPIX585Platform,
            "ulx3s-85f",
            clock_mhz=90,
            memory=1 << 18,
            button="rst#0",
            leds=("rgb_led#0.g", "rgb_led#1.g", "rgb_led#2.r", "rgb_led#3.g"),
        ),
        Board(
            "orangecrab-25f",
            orangecrab_r0_2.OrangeCrabR0_2_25FPlatform,
            "ulx3s-25f",
            clock_mhz=100,
            memory=1 << 15,
            button="button#0",
            leds=("rgb_led#0.g", "rgb_led#0.b", "rgb_led#0.r"),
            resources=(UARTResource(0, rx="0", tx="1", conn=("io", 0), attrs=Attrs(IO_TYPE="LVCMOS33")),),
        ),
        Board(
            "versa-5g",
            versa_ecp5_5g.VersaECP55GPlatform,
            "ulx3s-45f",
            clock_mhz=100,
            memory=1 << 17,
            button="rst#0",
            leds=("led#0", "led#1", "led#2", "led#3"),
        ),
        Board(
            "tang-primer-20k",
            tang_primer_20k.TangPrimer20kDockPlatform,
            "ulx3s-25f",
            clock_mhz=27,
            memory=1 << 15,
            button="button#0",
            leds=("led#2", "led#3", "led#4", "led#5"),
            baud=1_000_000,
        ),
        Board(
            "crosslink-nx",
            CrosslinkNxPlatform,
            "ulx3s-25f",
            clock_mhz=12,
            memory=1 << 15,
            button="button#0",
            leds=("led#0", "led#1", "led#2", "led#3"),
            baud=1_500_000,
        ),
    )
}
