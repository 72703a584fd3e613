"""The configuration of one core: every size that the generator takes, checked once, with named presets."""

from dataclasses import dataclass, field, fields

from .spec.cell_stages import STAGES, split_stages

__all__ = ["Config", "ConfigError", "PLAIN", "PRESETS", "from_preset"]


class ConfigError(ValueError):
    """A parameter that no core can be made from; the message names it and says what is allowed."""


def _is_power_of_two(value):
    return value > 0 and value & (value - 1) == 0


def _parameter(default, text):
    """A field, and what it means: the text of the command line's help and of the datasheet's table."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class Config:
    """A core. `Config()` is the preset `default`.

    What each field means, in which unit and range, is its `metadata["help"]`. A field that is None when the object is made gets
    the value that its text names, so that all fields hold numbers or truth values afterwards. Derived sizes are properties.

    Raises
    ------
    ConfigError
        For values that no core can be made from.
    """

    n: int = _parameter(16, "Rows and columns of the systolic array: a power of two, 2 to 128. A vector is n bfloat16.")
    cell_stages: int = _parameter(3, "Pipeline stages of a cell, 1 to 9. More stages give a faster clock.")
    unified_buffer_depth: int = _parameter(4096, "Vectors in the unified buffer: a power of two, 2 n to 32768.")
    accumulator_depth: int = _parameter(512, "Rows of n binary32 sums: a power of two, n to 32768.")
    bias_depth: int | None = _parameter(
        None, "Rows of n binary32 biases: a power of two, 2 to 32768. If not given: 64, with `training` 512."
    )
    weight_fifo_depth: int | None = _parameter(
        None,
        "Tiles of n x n weights in the weight FIFO: a power of two, 2 to 32768 / n. If not given: 256 / n, at least 8, "
        "which cells of many stages need to take a tile every n cycles.",
    )
    bus_width: int | None = _parameter(
        None, "Bits of the AXI4 data bus: a power of two, 32 to 1024, at most 16 n. If not given: the widest."
    )
    address_width: int = _parameter(32, "Bits of an AXI4 address, 32 to 64.")
    in_flight: int = _parameter(16, "Instructions in flight, between dispatch and completion: a power of two, 4 to 32.")
    pooling: bool = _parameter(True, "POOL: maxima of windows on the way out of the accumulators.")
    table_lanes: int | None = _parameter(
        None,
        "Lanes of a vector that the function table serves, or that are multiplied, in a cycle: a power of two up to n. "
        "0: no TABLE, LOAD_TABLE and MULTIPLY. If not given: 4, at most n.",
    )
    softmax: bool = _parameter(True, "SOFTMAX: softmax over rows on the way out of the accumulators.")
    training: bool = _parameter(
        False,
        "What gradients and updates take beyond inference: SELECT, transposed tiles, a bias row for each row of sums, halves of "
        "binary32, indices of maxima. Needs `pooling` and `softmax`.",
    )
    transpose: bool = _parameter(False, "LOAD of transposed tiles, so that lanes are positions instead of channels.")
    ring: bool = _parameter(False, "RING: sums over a ring of up to 8 cores, by AXI4-Stream links.")
    ring_depth: int = _parameter(
        64,
        "Vectors that the ring unit takes in before it works on them, and so the longest segment: a power of two, 4 to 32768. "
        "Below the latency of the links in cycles, these idle.",
    )

    def __post_init__(self):
        for entry in fields(self):
            self._check_type(entry, getattr(self, entry.name))
        if not (_is_power_of_two(self.n) and 2 <= self.n <= 128):
            raise ConfigError(f"n must be a power of two from 2 to 128, not {self.n}")
        if self.cell_stages not in STAGES:
            raise ConfigError(f"cell_stages must be {STAGES[0]} to {STAGES[-1]}, not {self.cell_stages}")
        widest = min(1024, 16 * self.n)
        for name, value in (
            ("bias_depth", 512 if self.training else 64),
            ("weight_fifo_depth", max(8, 256 // self.n)),
            ("bus_width", widest),
            ("table_lanes", min(4, self.n)),
        ):
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if not (_is_power_of_two(self.bus_width) and 32 <= self.bus_width <= widest):
            raise ConfigError(
                f"bus_width must be a power of two from 32 to {widest} (at most one vector of n = {self.n}), not {self.bus_width}"
            )
        if not 32 <= self.address_width <= 64:
            raise ConfigError(f"address_width must be 32 to 64, not {self.address_width}")
        for name, low, high in (
            ("unified_buffer_depth", 2 * self.n, 1 << 15),
            ("accumulator_depth", self.n, 1 << 15),
            ("bias_depth", 2, 1 << 15),
            ("weight_fifo_depth", 2, (1 << 15) // self.n),
            ("in_flight", 4, 32),
            ("ring_depth", 4, 1 << 15),
        ):
            value = getattr(self, name)
            if not (_is_power_of_two(value) and low <= value <= high):
                raise ConfigError(f"{name} must be a power of two from {low} to {high}, not {value}")
        if self.table_lanes != 0 and not (_is_power_of_two(self.table_lanes) and self.table_lanes <= self.n):
            raise ConfigError(f"table_lanes must be 0 or a power of two up to n = {self.n}, not {self.table_lanes}")
        missing = [name for name in ("pooling", "softmax") if self.training and not getattr(self, name)]
        if missing:
            raise ConfigError(f"training needs {' and '.join(missing)}; switch on what is missing, or training off")

    def _check_type(self, entry, value):
        if entry.type is bool:
            # A core's registers and files of parameters have 0 and 1.
            if not isinstance(value, int) or value not in (0, 1):
                raise ConfigError(f"{entry.name} must be True or False, not {value!r}")
            object.__setattr__(self, entry.name, bool(value))
        elif not (value is None and entry.default is None) and (not isinstance(value, int) or isinstance(value, bool)):
            raise ConfigError(f"{entry.name} must be an integer, not {value!r}")

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


#: A core without the functions that are optional.
PLAIN = {"pooling": False, "table_lanes": 0, "softmax": False}

_CHANGES = {
    "tiny": {"n": 4, "unified_buffer_depth": 1024, "accumulator_depth": 256},
    "default": {},
    "plain": PLAIN,
    "training": {"training": True},
    "ulx3s-25f": {"n": 2, "cell_stages": 9, "unified_buffer_depth": 1024, "accumulator_depth": 256, **PLAIN},
    "ulx3s-45f": {"n": 4, "cell_stages": 9, "unified_buffer_depth": 1024, **PLAIN},
    "ulx3s-85f": {"n": 8, "cell_stages": 9, "unified_buffer_depth": 2048, **PLAIN},
}

PRESETS = {name: Config(**changes) for name, changes in _CHANGES.items()}


def from_preset(name, **changes):
    """The :class:`Config` of a preset with some fields changed; what follows from `n` follows from the new one.

    Raises
    ------
    ConfigError
        When there is no such preset, and for values that no core can be made from.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}, not {name!r}")
    return Config(**_CHANGES[name] | changes)
