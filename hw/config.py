"""The configuration of one core: all parameters of the generator, checked once, with named presets."""

import inspect
import textwrap
from dataclasses import dataclass, field, fields

from .spec.cell_stages import STAGES, split_stages

__all__ = ["Config", "ConfigError", "PLAIN", "PRESETS", "from_preset"]


class ConfigError(ValueError):
    """An invalid parameter. The message names the parameter and its valid range."""


def _is_power_of_two(value):
    return value > 0 and value & (value - 1) == 0


def _parameter(default, text):
    """Returns a field of Config. The option help and the datasheet show its text."""
    return field(default=default, metadata={"help": text})


def _with_parameters(config):
    """Adds the section Parameters to the docstring of Config, from the texts of its fields."""
    entries = [
        f"{one.name} : {getattr(one.type, '__name__', one.type)}, default {one.default}\n"
        + textwrap.fill(one.metadata["help"], 124, initial_indent="    ", subsequent_indent="    ")
        for one in fields(config)
    ]
    before, raises, after = inspect.cleandoc(config.__doc__ or "").partition("Raises\n")
    config.__doc__ = "\n".join([before + "Parameters\n----------", *entries, "", raises + after])
    return config


@_with_parameters
@dataclass(frozen=True, kw_only=True)
class Config:
    """The parameters of one core. `Config()` is the preset `default`.

    The constructor replaces None by the default in the parameter's text, so every field of the object holds an int or a bool.
    Derived sizes are properties.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    n: int = _parameter(16, "Rows and columns of the systolic array: a power of two, 2 to 128. A vector is n bfloat16.")
    cell_stages: int = _parameter(
        3, "Pipeline stages of each multiply-accumulate cell of the array, 1 to 9. More stages give a faster clock."
    )
    unified_buffer_depth: int = _parameter(4096, "Vectors in the unified buffer: a power of two, 2 n to 32768.")
    accumulator_depth: int = _parameter(512, "Rows of n binary32 sums: a power of two, n to 32768.")
    bias_depth: int | None = _parameter(
        None, "Rows of n binary32 biases: a power of two, 2 to 32768. Default: 64, or 512 with `attention`."
    )
    weight_fifo_depth: int | None = _parameter(
        None,
        "Tiles of n x n weights in the weight FIFO: a power of two, 2 to 32768 / n. Cells with many stages need 8 tiles "
        "for a throughput of one tile every n cycles. Default: 256 / n, at least 8.",
    )
    weight_rows: int = _parameter(
        1,
        "Vectors of weights that enter the array in a cycle, 1 or 2. With 2, a tile takes n / 2 cycles, if they arrive as fast. "
        "2 needs n of 4 or more.",
    )
    weight_formats: bool = _parameter(
        False,
        "Add the decoder of weights in OCP MX formats (mxfp8, mxfp6, mxfp4, mxint8), which take half the bus or less. "
        "Needs n of 8 to 32.",
    )
    bus_width: int | None = _parameter(
        None, "Bits of the AXI4 data bus: a power of two, 32 to 1024, at most 16 n. Default: the maximum."
    )
    address_width: int = _parameter(32, "Bits of an AXI4 address, 32 to 64.")
    axi_cache: int = _parameter(
        3,
        "AxCACHE of all bursts, 0 to 15. 3: normal, non-cacheable, bufferable. 15 for a coherent port of a processor, "
        "such as ACP or HPC of a Zynq.",
    )
    axi_prot: int = _parameter(0, "AxPROT of all bursts, 0 to 7. 0: unprivileged, secure, data. 2: non-secure.")
    axi_id_width: int = _parameter(1, "Bits of an AXI4 ID, 1 to 32. The core uses bit 0, and the others are 0.")
    in_flight: int = _parameter(8, "Instructions in flight, between dispatch and completion: a power of two, 4 to 32.")
    pooling: bool = _parameter(True, "Add POOL: max pooling of accumulator rows.")
    table_lanes: int | None = _parameter(
        None,
        "Values a cycle that pass through the function table (sigmoid, tanh, GELU, ...) and through MULTIPLY: a power of two up "
        "to n. 0 leaves out the instructions TABLE, LOAD_TABLE and MULTIPLY. Default: 4, at most n.",
    )
    softmax: bool = _parameter(True, "Add SOFTMAX: softmax over accumulator rows.")
    softmax_lanes: int = _parameter(
        1,
        "Throughput of SOFTMAX, in elements a cycle: a power of two up to n. "
        "1: one row at a time, in the smallest unit; more: several rows in flight.",
    )
    normalize: bool = _parameter(
        False, "Add NORMALIZE: LayerNorm and RMSNorm over accumulator rows, on the lanes of SOFTMAX. Needs 2 `softmax_lanes`."
    )
    attention: bool = _parameter(
        True,
        "Add the hardware for products of two tensors, as in attention: LOAD_WEIGHTS of transposed tiles, a bias row for each "
        "row of sums.",
    )
    training: bool = _parameter(
        False,
        "Add the hardware that `tpu train --rtl-steps` needs: the instruction SELECT, binary32 operands in two halves, and "
        "indices of maxima. Needs `pooling`, `softmax` and `attention`.",
    )
    update_lanes: int = _parameter(
        0,
        "Values a cycle that UPDATE computes: stochastic gradient descent with momentum, beside the array. A power of two up to "
        "n; 0 leaves out UPDATE, and the array updates parameters. Needs `training`.",
    )
    transpose: bool = _parameter(
        False,
        "Let LOAD transpose tiles of n x n, so that convolutions with few channels fill the array "
        "with pixels instead of channels.",
    )
    ring: bool = _parameter(False, "Add RING: all-reduce over a ring of up to 8 cores with AXI4-Stream links.")
    ring_depth: int = _parameter(
        64,
        "Input buffer of the ring unit, in vectors; also the longest segment: a power of two, 4 to 32768. "
        "Make it at least the link latency in cycles, or links idle.",
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
            ("bias_depth", 512 if self.attention else 64),
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
        if not (self.weight_rows == 1 or self.weight_rows == 2 and self.n >= 4):
            raise ConfigError(f"weight_rows must be 1, or 2 with n of 4 or more, not {self.weight_rows} with n = {self.n}")
        if self.weight_formats and not 8 <= self.n <= 32:
            raise ConfigError(f"weight_formats needs n of 8 to 32, not {self.n}; switch it off")
        if not 32 <= self.address_width <= 64:
            raise ConfigError(f"address_width must be 32 to 64, not {self.address_width}")
        for name, least, most in (("axi_cache", 0, 15), ("axi_prot", 0, 7), ("axi_id_width", 1, 32)):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be {least} to {most}, not {getattr(self, name)}")
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
        if not (_is_power_of_two(self.softmax_lanes) and self.softmax_lanes <= self.n):
            raise ConfigError(f"softmax_lanes must be a power of two up to n = {self.n}, not {self.softmax_lanes}")
        if self.normalize and not (self.softmax and self.softmax_lanes > 1):
            raise ConfigError("normalize needs softmax on at least two lanes; set softmax_lanes to 2 or more")
        if self.update_lanes != 0 and not (_is_power_of_two(self.update_lanes) and self.update_lanes <= self.n):
            raise ConfigError(f"update_lanes must be 0 or a power of two up to n = {self.n}, not {self.update_lanes}")
        if self.update_lanes and not self.training:
            raise ConfigError("update_lanes needs training; switch on training, or set update_lanes to 0")
        missing = [name for name in ("pooling", "softmax", "attention") if self.training and not getattr(self, name)]
        if missing:
            raise ConfigError(f"training needs {' and '.join(missing)}; switch on what is missing, or training off")

    def _check_type(self, entry, value):
        if entry.type is bool:
            # Registers and parameter files hold 0 and 1.
            if not isinstance(value, int) or value not in (0, 1):
                raise ConfigError(f"{entry.name} must be True or False, not {value!r}")
            object.__setattr__(self, entry.name, bool(value))
        elif not (value is None and entry.default is None) and (not isinstance(value, int) or isinstance(value, bool)):
            raise ConfigError(f"{entry.name} must be an integer, not {value!r}")

    @property
    def lead(self):
        """Returns the number of cycles from an operand's entry into a cell to the entry of the sum to which its product is
        added."""
        return split_stages(self.cell_stages)[0]

    @property
    def latency(self):
        """Returns the number of cycles from a sum's entry into a cell to its exit. This is also the skew between two rows of the
        array."""
        return split_stages(self.cell_stages)[1]

    @property
    def read_latency(self):
        """Returns the read latency of the accumulators in cycles: 3 if the lead leaves a cycle for a second register after the
        memory, and 2 otherwise."""
        return min(3, 1 + self.array_lead)

    @property
    def port_latency(self):
        """Returns the read latency of the vector port of the unified buffer in cycles: 2, with a register behind the selection
        between the units, if only stores read. It is 1 if the activation unit or the ring unit reads, too, as their rows wait."""
        return 1 if self.table_lanes or self.training or self.ring else 2

    @property
    def array_lead(self):
        """Returns the number of cycles from an operand's entry into the register before the array to the entry of the sum to
        which its product is added."""
        return self.lead + 1

    @property
    def update_depth(self):
        """Returns the rows of the update memory: as many as there are bias rows."""
        return self.bias_depth

    @property
    def vector_width(self):
        """Returns the bits of one vector of ``n`` bfloat16."""
        return 16 * self.n

    @property
    def vector_bytes(self):
        """Returns the bytes of one vector in host memory."""
        return 2 * self.n

    @property
    def bus_bytes(self):
        """Returns the bytes of one bus beat. Offsets in host memory are multiples of this size."""
        return self.bus_width // 8

    @property
    def tile_cycles(self):
        """Returns the cycles in which a tile of weights is shifted into the array."""
        return self.n // self.weight_rows

    @property
    def beats_per_vector(self):
        """Returns the number of bus beats per vector."""
        return self.vector_width // self.bus_width

    @property
    def instruction_bytes(self):
        """Returns the distance between two instructions in host memory, in bytes: 32, or one beat if the bus is wider."""
        return max(32, self.bus_bytes)


#: The parameters of a core without optional functions.
PLAIN = {"pooling": False, "table_lanes": 0, "softmax": False, "attention": False}

_CHANGES = {
    "tiny": {"n": 4, "unified_buffer_depth": 1024, "accumulator_depth": 256},
    "default": {},
    "plain": PLAIN,
    "training": {"training": True},
    "transformer": {
        "unified_buffer_depth": 16384,
        "accumulator_depth": 1024,
        "training": True,
        "table_lanes": 16,
        "softmax_lanes": 8,
        "normalize": True,
        "update_lanes": 4,
    },
    "vision": {"transpose": True, "unified_buffer_depth": 16384},
    "ulx3s-25f": {"n": 2, "cell_stages": 9, "unified_buffer_depth": 1024, "accumulator_depth": 256, **PLAIN},
    "ulx3s-45f": {"n": 4, "cell_stages": 9, "unified_buffer_depth": 1024, **PLAIN},
    "ulx3s-85f": {"n": 8, "cell_stages": 9, "unified_buffer_depth": 4096, **PLAIN, "pooling": True},
}

PRESETS = {name: Config(**changes) for name, changes in _CHANGES.items()}


def from_preset(name, **changes):
    """Returns the :class:`Config` of a preset with some fields changed. Defaults that depend on `n` use the new `n`, and the
    preset's lanes are at most the new `n`.

    Parameters
    ----------
    name : str
        `default`; `tiny`, for quick simulations; `plain`, without optional hardware; `training`; `transformer`; `vision`; or a
        board: `ulx3s-25f`, `ulx3s-45f`, `ulx3s-85f`.
    changes
        Parameters of :class:`Config`, such as `n=8`.

    Raises
    ------
    ConfigError
        If the preset does not exist, or a value is out of range.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}, not {name!r}")
    preset = dict(_CHANGES[name])
    if isinstance(most := changes.get("n"), int) and most > 0:
        preset |= {
            lanes: min(preset[lanes], most) for lanes in ("table_lanes", "softmax_lanes", "update_lanes") if lanes in preset
        }
    return Config(**preset | changes)
