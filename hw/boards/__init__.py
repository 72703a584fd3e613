"""Boards: a core with a clock, a memory and a serial line, from Verilog with the board's pins to a USB cable."""

from dataclasses import dataclass

from . import ulx3s

__all__ = ["Board", "BOARDS"]


@dataclass(frozen=True)
class Board:
    """A board that a core can be put on.

    Parameters
    ----------
    name : str
        As in ``tpu synth --target``.
    part, package, speed : str, str, int
        The FPGA, as nextpnr calls it.
    preset : str
        The configuration, of :data:`hw.config.PRESETS`, that is meant for it.
    clock_mhz : float
        The core's clock.
    memory : int
        Bytes of block RAM that serve as the host's memory, a power of two.
    baud : int
        Bits a second on the serial line.
    silence : float
        Seconds without a byte after which the board gives up a frame.
    """

    name: str
    part: str
    preset: str
    clock_mhz: float
    memory: int
    package: str = "CABGA381"
    speed: int = 6
    baud: int = 3_000_000
    silence: float = 0.02

    def to_verilog(self, config):
        """Verilog of the board: module `top`, whose ports are pins.

        Raises
        ------
        ConfigError
            For a clock that the PLL can't make, and a line that is too fast for it.
        """
        return ulx3s.verilog(
            config,
            ulx3s.PLATFORMS[self.name](),
            clock_mhz=self.clock_mhz,
            memory=self.memory,
            baud=self.baud,
            silence=self.silence,
        )

    def constraints(self):
        """The pins of `top` and the frequency of its oscillator, as LPF."""
        return ulx3s.constraints(ulx3s.PLATFORMS[self.name]())


#: By name. The 12F is sold as a smaller part, but has all of a 25F.
BOARDS = {
    board.name: board
    for board in (
        Board("ulx3s-12f", "ecp5-12", "ulx3s-25f", clock_mhz=80, memory=1 << 15),
        Board("ulx3s-25f", "ecp5-25", "ulx3s-25f", clock_mhz=80, memory=1 << 15),
        Board("ulx3s-45f", "ecp5-45", "ulx3s-45f", clock_mhz=95, memory=1 << 17),
        Board("ulx3s-85f", "ecp5-85", "ulx3s-85f", clock_mhz=90, memory=1 << 18),
    )
}
