"""The register map of the AXI4-Lite port: the only source for hardware, driver, tests and datasheet."""

from dataclasses import dataclass
from functools import reduce
from operator import or_

from .isa import Fault, Region
from .ring_size import MOST_CORES

__all__ = [
    "Register",
    "REGISTERS",
    "REGISTER",
    "STALLS",
    "IDENTIFIER",
    "VERSION",
    "ADDRESS_WIDTH",
    "MOST_CORES",
    "COUNTER_INDEX",
    "counter_index",
    "registers_of",
    "stalls_of",
]

#: Bits of an AXI4-Lite address.
ADDRESS_WIDTH = 9
#: "ATPU" in ASCII, first letter in the high byte.
IDENTIFIER = 0x41545055
#: Major and minor version of the programming interface, 16 bits each; the datasheet says which changes raise them.
VERSION = 0x00010001

#: Stall reasons of the array, in the order of the counters. The counters and `busy` add up to `cycles`.
STALLS = {
    "fetch": "no MATMUL is queued: instructions are being fetched, decoded or dispatched",
    "load": "the next MATMUL waits for operands or biases from host memory",
    "activate": "the next MATMUL waits for the activation unit",
    "store": "the next MATMUL waits for a STORE",
    "weights": "the next pass waits for a tile from host memory",
    "shift": "the next pass waits for its tile to shift into the array",
    "accumulate": "the next pass waits for a read-after-write hazard on the accumulators",
    "drain": "no MATMUL is left before SYNC or HALT: the pipeline drains",
    "ring": "the next MATMUL waits for the ring unit",
}
#: Bits of the index of a counter in :class:`hw.control.cycle_counters.CycleCounters`.
COUNTER_INDEX = 4
#: Stall reasons that need a field of :class:`hw.config.Config`.
_STALLS_OF = {"ring": "ring"}


@dataclass(frozen=True)
class Register:
    """One 32-bit register.

    `access` is `ro`, `rw` or `w1`. `w1` means that a written 1 is a command, and that reads return 0 unless the text says
    otherwise. `fields` maps a name to `(first bit, width, text)`. A written 1 clears a field in `clears`. `group` identifies a
    register of an array: the name of the array, the index, and the part if each element has several registers. `needs` is a field
    of :class:`hw.config.Config`. If the core lacks it, the register reads as 0.
    """

    name: str
    offset: int
    access: str
    text: str
    fields: dict | None = None
    reset: int = 0
    group: tuple = ()
    clears: tuple = ()
    needs: str | None = None

    def pack(self, **values):
        """Returns the value of the register for the values of all its fields, ints or Amaranth values.

        Raises
        ------
        ValueError
            If `values` are not exactly the fields of the register.
        """
        fields = self.fields or {}
        if values.keys() != fields.keys():
            raise ValueError(f"{self.name} has the fields {', '.join(fields)}, not {', '.join(values)}")
        return reduce(or_, (value << fields[name][0] for name, value in values.items()))

    def unpack(self, value):
        """Returns `{name: part of value}` for all fields. `value` is an Amaranth value of 32 bits."""
        return {name: value[first : first + width] for name, (first, width, _) in (self.fields or {}).items()}


# fmt: off
_FEATURES = {
    "pooling": (0, 1, "POOL"), "softmax": (1, 1, "SOFTMAX"),
    "training": (2, 1, "SELECT, and the fields, formats and codes that need `training`"),
    "ring": (3, 1, "RING, and the registers that need `ring`"),
    "transpose": (4, 1, "LOAD of transposed tiles"), "attention": (5, 1, "the fields that need `attention`"),
    "weight_formats": (6, 1, "LOAD_WEIGHTS of weights in OCP MX formats"), "normalize": (7, 1, "NORMALIZE"),
    "table_lanes": (8, 8, "lanes of the function table a cycle; 0: no TABLE, LOAD_TABLE, MULTIPLY"),
    "update_lanes": (16, 8, "lanes of UPDATE a cycle; 0: no UPDATE, STORE_UPDATE"),
    "softmax_lanes": (24, 8, "elements of SOFTMAX and NORMALIZE a cycle; 0 in older cores")}


_DEPTHS = ("unified_buffer_depth", "accumulator_depth", "bias_depth", "weight_fifo_depth", "ring_depth")


def _registers():
    yield Register("id", 0x000, "ro", f"0x{IDENTIFIER:08X}, 'ATPU'.")
    yield Register("version", 0x004, "ro", f"0x{VERSION:08X}: version of the programming interface: major, minor (16 bits each).")
    yield Register("config", 0x008, "ro", "Parameters of the core.", {
        "n": (0, 8, "rows and columns of the array"),
        "lead": (8, 4, "cell: lead stages"), "latency": (12, 4, "cell: latency"),
        "bus_bytes": (16, 8, "bytes of one bus beat"), "in_flight": (24, 6, "instructions in flight"),
        "weight_rows": (30, 2, "2 if two vectors of weights enter the array in a cycle, else 0")})
    yield Register("unified_buffer_depth", 0x00C, "ro", "Depth of the unified buffer in vectors.")
    yield Register("accumulator_depth", 0x010, "ro", "Depth of the accumulators in rows.")
    yield Register("bias_depth", 0x014, "ro", "Depth of the bias memory in rows.")
    yield Register("weight_fifo_depth", 0x018, "ro", "Capacity of the weight FIFO in tiles.")
    yield Register("features", 0x01C, "ro", "Optional features of the core.", _FEATURES)
    yield Register("control", 0x020, "w1", "Commands.", {
        "start": (0, 1, "starts a run; ignored during a run, and after a fault until a reset"),
        "reset": (1, 1, "ends the run; clears all units, status, fault and pending interrupt; other registers keep values")})
    yield Register("status", 0x024, "ro", "State of the core.", {
        "running": (0, 1, "a run is in progress"),
        "done": (1, 1, "the last run reached HALT; cleared by start and reset"),
        "fault": (2, 1, "the last run ended early; cleared by reset"),
        "quiet": (3, 1, "no bus transaction is outstanding")})
    yield Register("interrupt", 0x028, "rw", "Interrupt.", {
        "enable": (0, 1, "drive `irq`"),
        "pending": (1, 1, "set when a run ends; write 1 to clear")}, clears=("pending",))
    yield Register("fault_cause", 0x02C, "ro", "Cause of the fault: " + ", ".join(
        f"{f.value} {f.name}" for f in Fault) + ".")
    yield Register("fault_pc", 0x030, "ro", "Offset in region MODEL of the instruction at fault.")
    yield Register("timeout", 0x034, "rw", "Cycles without progress after which a run ends with TIMEOUT; 0 counts as 1.",
                   reset=1 << 20)
    yield Register("pc", 0x038, "rw", "Offset in region MODEL of the first instruction.")
    for region in Region:
        base, name = 0x040 + 0x10 * region.value, region.name.lower()
        for index, (part, text) in enumerate({
                "base_low": "address, low 32 bits", "base_high": "address, high 32 bits",
                "size": "size in bytes; the core accesses nothing outside"}.items()):
            yield Register(f"{name}_{part}", base + 4 * index, "rw", f"Region {region.name}: {text}.",
                           group=("regions", region.value, part))
    yield Register("cycles", 0x080, "ro", "Cycles from start to the end of the last run.")
    yield Register("busy", 0x084, "ro", "Cycles in which a row entered the array.")
    for index, (name, text) in enumerate(STALLS.items()):
        yield Register(f"stall_{name}", 0x088 + 4 * index, "ro", f"Cycles in which {text}.", group=("stalls", index),
                       needs=_STALLS_OF.get(name))
    yield Register("read_beats", 0x0C0, "ro", "Beats read from the bus.")
    yield Register("write_beats", 0x0C4, "ro", "Beats written to the bus.")
    yield Register("ring", 0x0C8, "rw", "Position of the core in a ring. Write only between runs.", {
        "rank": (0, 3, "rank of this core, below `size`; its `m_axis_ring` drives the next rank, modulo `size`"),
        "size": (8, 4, f"number of cores in the ring, 1 to {MOST_CORES}"),
        "flush": (16, 1, "discards the vectors in the link FIFO and all that arrive; RING is refused meanwhile")},
        reset=1 << 8, needs="ring")
    yield Register("ring_depth", 0x0CC, "ro", "Input buffer of the ring unit in vectors; also the longest segment.", needs="ring")
    yield Register("ring_sent", 0x0D0, "ro", "32-bit words sent to the ring in the last run.", needs="ring")
    yield Register("ring_received", 0x0D4, "ro", "32-bit words received from the ring in the last run.", needs="ring")
    yield Register("ring_state", 0x0D8, "ro", "State of the links.", {
        "held": (0, 1, "the link FIFO holds a vector"),
        "offered": (1, 1, "a vector is offered at `m_axis_ring`"),
        "refused": (2, 1, "RING needs a `flush`, except with `size` 1: after `aresetn`, a fault, a reset in a run or on a link")},
        reset=1 << 2, needs="ring")
# fmt: on


REGISTERS = tuple(_registers())
#: Registers by name.
REGISTER = {register.name: register for register in REGISTERS}


def counter_index(name):
    """Returns the index of the counter `busy` or `stall_<reason>`: the low bits of its word address."""
    return REGISTER[name].offset >> 2 & (1 << COUNTER_INDEX) - 1


def registers_of(config):
    """Returns a tuple of the registers that a core has."""
    return tuple(register for register in REGISTERS if register.needs is None or getattr(config, register.needs))


def stalls_of(config):
    """Returns the names of the stall reasons of a core, in order of priority."""
    return tuple(name for name in STALLS if name not in _STALLS_OF or getattr(config, _STALLS_OF[name]))


def described(config):
    """Returns {name: value} of the registers that describe a core."""
    own = {name: getattr(config, name) for name in REGISTER["config"].fields}
    return {
        "id": IDENTIFIER,
        "version": VERSION,
        "config": REGISTER["config"].pack(**own | {"weight_rows": config.weight_rows & 2}),
        **{name: getattr(config, name) for name in _DEPTHS},
        "features": REGISTER["features"].pack(**{name: getattr(config, name) for name in _FEATURES}),
    }
