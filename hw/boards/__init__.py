"""Boards: FPGA designs with a core, a clock, a memory and a serial line to a host."""

from amaranth_boards import ulx3s

from .board import Board
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
    )
}
