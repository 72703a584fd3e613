"""The driver of a core. It accesses registers over any port: a bench, a recording, or a bridge to a board. A run is the execution
of one program, from its start to HALT or a fault."""

from amaranth_tpu.hw.spec.isa import Fault, Region
from amaranth_tpu.hw.spec.registers import IDENTIFIER, REGISTER, STALLS, VERSION

__all__ = ["Driver", "CoreFault", "CoreTimeout", "Script", "fault_of", "flush_ring"]

_COUNTERS = ("cycles", "busy", *(f"stall_{name}" for name in STALLS), "read_beats", "write_beats")


class CoreFault(RuntimeError):
    """A fault that ended a run before HALT.

    `cause` is a :class:`hw.spec.isa.Fault`, and `pc` the offset of the instruction. `quiet` is True if the bus has no outstanding
    transactions. Otherwise outstanding writes of the run may still change memory.
    """

    def __init__(self, cause, pc, quiet=True):
        super().__init__(f"fault {cause.name} at pc {pc:#x}" + ("" if quiet else "; bus transactions are still outstanding"))
        self.cause, self.pc, self.quiet = cause, pc, quiet


class CoreTimeout(RuntimeError):
    """An error for a run that did not end within its limit of cycles."""


def fault_of(error, batch):
    """Returns a fault as a dict for reports: `cause`, `pc`, and the number of the batch. `error` is an exception with the
    attributes `cause` and `pc`."""
    return {"cause": error.cause.name, "pc": error.pc, "batch": batch}


def _fields(register, value):
    """Splits the value of a register into its fields: {name: value}."""
    return {name: value >> first & (1 << width) - 1 for name, (first, width, _) in REGISTER[register].fields.items()}


class Driver:
    """The driver of one core.

    Parameters
    ----------
    port : object
        Object with async `read(offset)` and `write(offset, value)`. An optional async `interrupt(cycles)` waits for `irq` and
        returns True if it came; waiting then needs no register accesses. Default: the driver polls the status register.
    """

    def __init__(self, port):
        self._port = port

    async def read(self, name):
        """Returns the value of the register `name`."""
        return await self._port.read(REGISTER[name].offset)

    async def write(self, name, value):
        """Writes a value to the register `name`."""
        register = REGISTER[name]
        if register.access == "ro":
            raise ValueError(f"register {name} cannot be written")
        await self._port.write(register.offset, value)

    async def identify(self):
        """Reads the core's parameters, as a dict by register and field name. Raises RuntimeError if no core answers."""
        if (found := await self.read("id")) != IDENTIFIER:
            raise RuntimeError(f"no core here: the identification register reads {found:#010x}, not {IDENTIFIER:#010x}")
        version = await self.read("version")
        if version >> 16 != VERSION >> 16:
            raise RuntimeError(f"the core has version {version >> 16}, this driver supports {VERSION >> 16}")
        config = await self.read("config")
        sizes = {"version": version, **_fields("config", config), **_fields("features", await self.read("features"))}
        for name in ("unified_buffer_depth", "accumulator_depth", "bias_depth", "weight_fifo_depth"):
            sizes[name] = await self.read(name)
        return sizes

    async def configure_regions(self, regions):
        """Sets base address and size of regions. Keys are :class:`hw.spec.isa.Region` or names of regions; values are `(base,
        size)`. Other regions stay unchanged."""
        for region, (base, size) in regions.items():
            name = (region if isinstance(region, Region) else Region[region]).name.lower()
            await self.write(f"{name}_base_low", base & 0xFFFFFFFF)
            await self.write(f"{name}_base_high", base >> 32)
            await self.write(f"{name}_size", size)

    async def start(self, pc=0):
        """Starts a run at offset `pc` in region MODEL, with the interrupt enabled."""
        await self.write("pc", pc)
        await self.write("interrupt", 0b11)
        await self.write("control", 0b01)

    async def join_ring(self, rank, size):
        """Sets the core's rank in the ring, and the number of cores in the ring. After `aresetn`, :func:`flush_ring` must
        follow."""
        await self.write("ring", REGISTER["ring"].pack(rank=rank, size=size, flush=0))

    async def set_flush(self, flush):
        """Begins (True) or ends (False) the flush of a core's link. Its rank in the ring stays unchanged. See
        :func:`flush_ring`."""
        place = _fields("ring", await self.read("ring"))
        await self.write("ring", REGISTER["ring"].pack(**place | {"flush": int(flush)}))

    async def ring_state(self):
        """Returns the fields of the register `ring_state`."""
        return _fields("ring_state", await self.read("ring_state"))

    async def ring_words(self):
        """Returns `(sent, received)`: the 32-bit words that the last run sent to the ring and received from it."""
        return {name: await self.read(name) for name in ("ring_sent", "ring_received")}

    async def status(self):
        """Returns the fields of the status register."""
        return _fields("status", await self.read("status"))

    async def wait_for_quiet(self, polls=1000):
        """Waits until no bus transaction is outstanding, for at most `polls` reads of the status register. Returns True if that
        state was reached."""
        for _ in range(polls):
            if (await self.status())["quiet"]:
                return True
        return False

    async def wait(self, cycles, polls=1000):
        """Waits for the end of a run. Raises CoreFault if a fault ended the run, after the bus became quiet or after `polls`
        reads of the status register. Raises CoreTimeout if the run did not end within `cycles`."""
        if hasattr(self._port, "interrupt"):
            await self._port.interrupt(cycles)
            status = await self.status()
        else:
            status = await self.status()
            while status["running"] and await self.read("cycles") < cycles:
                status = await self.status()
        if status["fault"]:
            cause, pc = Fault(await self.read("fault_cause")), await self.read("fault_pc")
            raise CoreFault(cause, pc, await self.wait_for_quiet(polls))
        if not status["done"]:
            raise CoreTimeout(f"the run did not end within {cycles} cycles")

    async def counters(self):
        """Returns the counters of the last run, in cycles or bus beats: `cycles`, `busy`, `stall_*`, `read_beats`, `write_beats`.
        `busy` and all stalls add up to `cycles`."""
        return {name: await self.read(name) for name in _COUNTERS}

    async def run_batch(self, batch, cycles, pc=0):
        """Starts a run, whose regions must be set, and waits for its end. Returns `(counters, fault)`.

        The fault is None, or a dict from :func:`fault_of` with the number `batch`. Its cause is CYCLE_LIMIT if the run did not
        end within `cycles`.
        """
        await self.start(pc)
        return await self.end_batch(batch, cycles)

    async def end_batch(self, batch, cycles):
        """Waits for the end of a run that was started, and returns the result of :meth:`run_batch`."""
        fault = None
        try:
            await self.wait(cycles)
        except CoreFault as error:
            fault = fault_of(error, batch)
        except CoreTimeout:
            fault = {"cause": "CYCLE_LIMIT", "pc": 0, "batch": batch}
        return await self.counters(), fault

    async def reset(self):
        """Ends any run, and clears status and fault. Regions and other settings stay unchanged. Returns True if the bus is quiet;
        only then is the output of the run in memory final."""
        await self.write("control", 0b10)
        await self.write("interrupt", 0b10)
        return await self.wait_for_quiet()


async def flush_ring(drivers, looks=50):
    """Empties the links of all cores of a ring. All cores must be idle. After `aresetn` of any core, a fault, or a reset in a
    run, this must precede the next RING.

    Parameters
    ----------
    drivers : list of Driver
    looks : int
        Number of reads of each core's state during the flush, and again after it. The reads must take at least as long as the
        latency of a link.

    Raises
    ------
    RuntimeError
        If a core cannot discard a vector, or another vector arrives after the flush.
    """
    for flush in (True, False):
        for driver in drivers:
            await driver.set_flush(flush)
        for _ in range(looks):
            states = [await driver.ring_state() for driver in drivers]
    for rank, state in enumerate(states):
        if any(state.values()):
            raise RuntimeError(f"core {rank}: the link is not empty after a flush ({state}); reset the cores by aresetn")


class Script:
    """A port that records accesses as lines of text: `w offset value`, `r offset`, and `i cycles`, which waits for the
    interrupt."""

    def __init__(self):
        self.lines = []

    async def read(self, offset):
        self.lines.append(f"r {offset}")
        return 0

    async def write(self, offset, value):
        self.lines.append(f"w {offset} {value}")

    async def interrupt(self, cycles):
        self.lines.append(f"i {cycles}")
        return True
