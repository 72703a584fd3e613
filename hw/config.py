"""The configuration of one core: every size that the generator takes, checked once, with named presets."""

from dataclasses import dataclass, fields

from .cell import STAGES, split_stages

__all__ = ["Config", "ConfigError", "PRESETS"]


class ConfigError(ValueError):
    """A parameter that no core can be made from; the message names it and says what is allowed."""


def _is_power_of_two(value):
    return value > 0 and value & (value - 1) == 0


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of a core. Derived sizes are properties.

    Parameters
    ----------
    n : int
        Rows and columns of the systolic array: a power of two from 2 to 128. One *vector* is ``n`` bfloat16.
    cell_stages : int
        Pipeline stages of a cell, 1 to 9 (see :func:`hw.cell.split_stages`).
    unified_buffer_depth : int
        Vectors in the unified buffer.
    accumulator_depth : int
        Rows of ``n`` binary32 sums.
    bias_depth : int
        Rows of ``n`` binary32 biases.
    weight_fifo_depth : int
        Tiles of ``n`` x ``n`` weights that the weight FIFO holds. 0 chooses 256 vectors' worth, at least
        8 tiles, which is what cells of many stages need to take a tile every n cycles.
    bus_width : int
        Bits of the AXI4 data bus: a power of two from 32 to 1024, at most ``16 n``. 0 chooses the widest.
    address_width : int
        Bits of an AXI4 address, 32 to 64.
    window : int
        Instructions in flight between dispatch and completion.
    pooling : int
        1: the core has POOL.
    table_lanes : int
        Lanes of a vector that read the function table in one cycle, or are multiplied by another vector: a power of two up
        to n. 0: the core has neither TABLE nor LOAD_TABLE nor MULTIPLY.
    softmax : int
        1: the core has SOFTMAX.
    """

    n: int = 16
    cell_stages: int = 3
    unified_buffer_depth: int = 4096
    accumulator_depth: int = 512
    bias_depth: int = 64
    weight_fifo_depth: int = 0
    bus_width: int = 0
    address_width: int = 32
    window: int = 16
    pooling: int = 0
    table_lanes: int = 0
    softmax: int = 0

    def __post_init__(self):
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(f"{entry.name} must be an integer, not {value!r}")
        if not (_is_power_of_two(self.n) and 2 <= self.n <= 128):
            raise ConfigError(f"n must be a power of two from 2 to 128, not {self.n}")
        if self.cell_stages not in STAGES:
            raise ConfigError(f"cell_stages must be {STAGES[0]} to {STAGES[-1]}, not {self.cell_stages}")
        if self.weight_fifo_depth == 0:
            object.__setattr__(self, "weight_fifo_depth", max(8, 256 // self.n))
        if self.bus_width == 0:
            object.__setattr__(self, "bus_width", min(1024, 16 * self.n))
        if not (_is_power_of_two(self.bus_width) and 32 <= self.bus_width <= min(1024, 16 * self.n)):
            raise ConfigError(f"bus_width must be a power of two from 32 to {min(1024, 16 * self.n)} "
                              f"(at most one vector of n = {self.n}), not {self.bus_width}")
        if not 32 <= self.address_width <= 64:
            raise ConfigError(f"address_width must be 32 to 64, not {self.address_width}")
        for name, low, high in (
                ("unified_buffer_depth", 2 * self.n, 1 << 15),
                ("accumulator_depth", self.n, 1 << 15),
                ("bias_depth", 2, 1 << 15),
                ("weight_fifo_depth", 2, (1 << 15) // self.n),
                ("window", 4, 32)):
            value = getattr(self, name)
            if not (_is_power_of_two(value) and low <= value <= high):
                raise ConfigError(f"{name} must be a power of two from {low} to {high}, not {value}")
        for name in ("pooling", "softmax"):
            if getattr(self, name) not in (0, 1):
                raise ConfigError(f"{name} must be 0 or 1, not {getattr(self, name)}")
        if self.table_lanes != 0 and not (_is_power_of_two(self.table_lanes) and self.table_lanes <= self.n):
            raise ConfigError(f"table_lanes must be 0 or a power of two up to n = {self.n}, not {self.table_lanes}")

    @property
    def lead(self):
        """Cycles that an operand enters a cell before the sum that its product joins."""
        return split_stages(self.cell_stages)[0]

    @property
    def latency(self):
        """Cycles from a sum's entry into a cell to its exit; the skew between two rows of the array."""
        return split_stages(self.cell_stages)[1]

    @property
    def read_latency(self):
        """Cycles that the accumulators take to read a sum: 2 where the lead has room for a register behind the memory."""
        return min(2, 1 + self.lead)

    @property
    def vector_width(self):
        """Bits of one vector: ``n`` bfloat16."""
        return 16 * self.n

    @property
    def vector_bytes(self):
        """Bytes of one vector in host memory."""
        return 2 * self.n

    @property
    def bus_bytes(self):
        """Bytes of one bus beat. Host offsets are multiples of it."""
        return self.bus_width // 8

    @property
    def beats_per_vector(self):
        """Bus beats that carry one vector."""
        return self.vector_width // self.bus_width

    @property
    def instruction_bytes(self):
        """Distance of two instructions in host memory: 32 bytes, or one beat of a wider bus."""
        return max(32, self.bus_bytes)


PRESETS = {
    "tiny": Config(n=4, unified_buffer_depth=1024, accumulator_depth=256, pooling=1, table_lanes=4, softmax=1),
    "default": Config(pooling=1, table_lanes=4, softmax=1),
    "ulx3s-25f": Config(n=2, cell_stages=9, unified_buffer_depth=1024, accumulator_depth=256),
    "ulx3s-45f": Config(n=4, cell_stages=9, unified_buffer_depth=1024, accumulator_depth=512),
    "ulx3s-85f": Config(n=8, cell_stages=9, unified_buffer_depth=2048, accumulator_depth=512),
}
