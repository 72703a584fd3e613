"""The register map of the AXI4-Lite slave, described once: hardware, driver, tests and datasheet read it here."""

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
    "registers_of",
    "stalls_of",
]

#: Bits of an AXI4-Lite address.
ADDRESS_WIDTH = 9
#: "ATPU" in ASCII, first letter in the high byte.
IDENTIFIER = 0x41545055
#: Major and minor version of what hosts and programs see, 16 bits each: what it promises is in the datasheet.
VERSION = 0x00010001

#: Why the array did not take a row in a cycle of the run, in the order of the counters. With `busy` they add up to `cycles`.
STALLS = {
    "fetch": "no matmul is queued: instructions are being fetched, decoded or dispatched",
    "load": "the next matmul waits for its operands or biases from host memory",
    "activate": "the next matmul waits for the activation unit",
    "store": "the next matmul waits for a store",
    "weights": "the next pass waits for a tile from host memory",
    "shift": "the next pass waits for its tile to shift into the array",
    "accumulate": "the next pass waits for sums that are still in the array, or for its turn",
    "drain": "no matmul is left before SYNC or HALT: the last sums, activations and stores",
    "ring": "the next matmul waits for the ring",
}
#: Those of cores that have this field of :class:`hw.config.Config`.
_STALLS_OF = {"ring": "ring"}


@dataclass(frozen=True)
class Register:
    """One 32-bit register.

    `access` is `ro`, `rw` or `w1` (reads as 0 or as stated, acts where a 1 is written). `fields` maps a name to
    `(first bit, width, text)`; those in `clears` are cleared where a 1 is written. `group` tells registers of one kind apart: the
    name of the kind, an index, and, where each of the kind has several registers, the part. `needs` is the field of
    :class:`hw.config.Config` without which the register reads as 0.
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
        """The register's value from one for each of its fields, ints or Amaranth values.

        Raises
        ------
        ValueError
            For other fields than the register has.
        """
        fields = self.fields or {}
        if values.keys() != fields.keys():
            raise ValueError(f"{self.name} has the fields {', '.join(fields)}, not {', '.join(values)}")
        return reduce(or_, (value << fields[name][0] for name, value in values.items()))


# fmt: off
def _registers():
    yield Register("id", 0x000, "ro", f"0x{IDENTIFIER:08X}, 'ATPU'.")
    yield Register("version", 0x004, "ro", f"0x{VERSION:08X}: of what hosts and programs see: major (16 bits), minor (16 bits).")
    yield Register("config", 0x008, "ro", "What was built.", {
        "n": (0, 8, "rows and columns of the array"),
        "lead": (8, 4, "cell: lead stages"), "latency": (12, 4, "cell: latency of a row"),
        "bus_bytes": (16, 8, "bytes of one bus beat"), "in_flight": (24, 8, "instructions in flight")})
    yield Register("unified_buffer_depth", 0x00C, "ro", "Vectors.")
    yield Register("accumulator_depth", 0x010, "ro", "Rows.")
    yield Register("bias_depth", 0x014, "ro", "Rows.")
    yield Register("weight_fifo_depth", 0x018, "ro", "Tiles.")
    yield Register("features", 0x01C, "ro", "What the core can do beyond the rest.", {
        "pooling": (0, 1, "POOL"), "softmax": (1, 1, "SOFTMAX"),
        "training": (2, 1, "SELECT, and the fields, formats and codes that need `training`"),
        "ring": (3, 1, "RING, and the registers that need `ring`"),
        "transpose": (4, 1, "LOAD of transposed tiles"),
        "table_lanes": (8, 8, "lanes of a vector that the function table serves at a time; 0: no TABLE, LOAD_TABLE, MULTIPLY")})
    yield Register("control", 0x020, "w1", "Commands.", {
        "start": (0, 1, "starts a run; ignored while one runs, and after a fault until a reset"),
        "reset": (1, 1, "ends any run and clears every unit, the status, the fault and a pending interrupt; the rest stays")})
    yield Register("status", 0x024, "ro", "State of the core.", {
        "running": (0, 1, "a run is going on"),
        "done": (1, 1, "the last run reached HALT; cleared by start and reset"),
        "fault": (2, 1, "the last run ended early; cleared by reset"),
        "quiet": (3, 1, "no bus transaction is outstanding")})
    yield Register("interrupt", 0x028, "rw", "Interrupt.", {
        "enable": (0, 1, "drive `irq`"),
        "pending": (1, 1, "set when a run ends; write 1 to clear")}, clears=("pending",))
    yield Register("fault_cause", 0x02C, "ro", "Cause of the fault: " + ", ".join(
        f"{f.value} {f.name}" for f in Fault) + ".")
    yield Register("fault_pc", 0x030, "ro", "Offset in region MODEL of the instruction that faulted.")
    yield Register("timeout", 0x034, "rw", "Cycles without any progress that end a run; 0 counts as 1.", reset=1 << 20)
    yield Register("pc", 0x038, "rw", "Offset in region MODEL of the first instruction.")
    for region in Region:
        base, name = 0x040 + 0x10 * region.value, region.name.lower()
        for index, (part, text) in enumerate({
                "base_low": "address, low 32 bits", "base_high": "address, high 32 bits",
                "size": "size in bytes; nothing outside is touched"}.items()):
            yield Register(f"{name}_{part}", base + 4 * index, "rw", f"Region {region.name}: {text}.",
                           group=("regions", region.value, part))
    yield Register("cycles", 0x080, "ro", "Cycles from start to the end of the last run.")
    yield Register("busy", 0x084, "ro", "Cycles in which the array took a row.")
    for index, (name, text) in enumerate(STALLS.items()):
        yield Register(f"stall_{name}", 0x088 + 4 * index, "ro", f"Cycles in which {text}.", group=("stalls", index),
                       needs=_STALLS_OF.get(name))
    yield Register("read_beats", 0x0C0, "ro", "Beats read from the bus.")
    yield Register("write_beats", 0x0C4, "ro", "Beats written to the bus.")
    yield Register("ring", 0x0C8, "rw", "The core's place in a ring. It may change while no run goes on.", {
        "rank": (0, 3, "number of this core, below `size`; its `m_axis_ring` leads to the next number, the last one's to 0"),
        "size": (8, 4, f"cores of the ring, 1 to {MOST_CORES}"),
        "flush": (16, 1, "what comes from the link, and what has come, is dropped; RING is then refused")},
        reset=1 << 8, needs="ring")
    yield Register("ring_depth", 0x0CC, "ro", "Vectors that the ring unit takes in, and of the longest segment.", needs="ring")
    yield Register("ring_sent", 0x0D0, "ro", "Words of 32 bits that the last run sent into the ring.", needs="ring")
    yield Register("ring_received", 0x0D4, "ro", "Words of 32 bits that the last run took from the ring.", needs="ring")
    yield Register("ring_state", 0x0D8, "ro", "State of the links.", {
        "held": (0, 1, "the link FIFO holds a vector"),
        "offered": (1, 1, "a vector is offered at `m_axis_ring`"),
        "refused": (2, 1, "RING needs `flush`, but for `size` 1; set by a fault, and by a reset in a run or with a link in use")},
        needs="ring")
# fmt: on


REGISTERS = tuple(_registers())
#: The same, by name.
REGISTER = {register.name: register for register in REGISTERS}


def registers_of(config):
    """The registers that a core has."""
    return tuple(register for register in REGISTERS if register.needs is None or getattr(config, register.needs))


def stalls_of(config):
    """The names of the reasons that a core counts."""
    return tuple(name for name in STALLS if name not in _STALLS_OF or getattr(config, _STALLS_OF[name]))
