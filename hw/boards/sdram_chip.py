"""Single-data-rate SDRAM chips: their organisation, and their times in cycles of a clock."""

from dataclasses import dataclass
from math import ceil, floor

__all__ = ["SdramChip", "SDRAM_32M"]


@dataclass(frozen=True)
class SdramChip:
    """An SDRAM chip with 16 data bits and four banks. Times are in ns, and the longest of the parts that a board may hold."""

    row_bits: int
    column_bits: int
    power_up: float  # from a stable clock to the first command
    refresh_interval: float  # average, from one refresh to the next
    refresh: float  # tRFC: from a refresh to the next command
    activate: float  # tRCD: from the activation of a row to its first access
    open: float  # tRAS: from the activation of a row to its precharge
    precharge: float  # tRP: from a precharge to the next activation
    write: float  # tWR: from the last word of a write to the precharge of its row
    cas_latency: int  # CL in cycles
    highest_mhz: float  # with this CAS latency

    @property
    def size(self):
        """Returns the number of bytes."""
        return 8 << self.row_bits + self.column_bits

    def cycles(self, name, mhz):
        """Returns the least whole number of cycles of a clock that cover the time `name`."""
        return max(1, ceil(round(getattr(self, name) * mhz / 1000, 6)))

    def refresh_cycles(self, mhz):
        """Returns the cycles from one refresh to the next."""
        return floor(self.refresh_interval * mhz / 1000)


#: ISSI IS42S16160G-7, and the lower half of Alliance AS4C32M16SB-7.
SDRAM_32M = SdramChip(
    row_bits=13,
    column_bits=9,
    power_up=200_000,
    refresh_interval=64e6 / 8192,
    refresh=63,
    activate=21,
    open=42,
    precharge=21,
    write=14,
    cas_latency=3,
    highest_mhz=143,
)
