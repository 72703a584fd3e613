"""The driver of a core: register accesses over any port, such as a bench, a recording, or a bridge to a board."""

from amaranth_tpu.hw.spec.isa import Fault, Region
from amaranth_tpu.hw.spec.registers import IDENTIFIER, REGISTER, STALLS, VERSION

__all__ = ["Driver", "CoreFault", "CoreTimeout", "Script", "fault_of", "flush_ring"]

_COUNTERS = ("cycles", "busy", *(f"stall_{name}" for name in STALLS), "read_beats", "write_beats")


class CoreFault(RuntimeError):
    """A fault that ended a run early: its `cause` (:class:`hw.spec.isa.Fault`), the `pc` of the instruction, and whether the bus
    is `quiet`. If it is not, outstanding writes of the run may still change memory."""

    def __init__(self, cause, pc, quiet=True):
        super().__init__(f"fault {cause.name} at pc {pc:#x}" + ("" if quiet else "; bus transactions are still outstanding"))
        self.cause, self.pc, self.quiet = cause, pc, quiet


class CoreTimeout(RuntimeError):
    """A run that did not end within its limit of cycles."""


def fault_of(error, batch):
    """Returns the fault of an error with `cause` and `pc` that ended this batch, as a dict for reports."""
    return {"cause": error.cause.name, "pc": error.pc, "batch": batch}


def _fields(register, value):
    """Returns the values of a register's fields by name."""
    return {name: value >> first & (1 << width) - 1 for name, (first, width, _) in REGISTER[register].fields.items()}


class Driver:
    """The driver of one core.

    Parameters
    ----------
    port : object
        With async `read(offset)` and `write(offset, value)`. Optional: async `interrupt(cycles)`, which waits for `irq` and
        returns whether it came. Waiting then costs no register accesses. Default: the driver polls the status.
    """

    def __init__(self, port):
        self._port = port

    async def read(self, name):
        """Returns the value of a register."""
        return await self._port.read(REGISTER[name].offset)

    async def write(self, name, value):
        """Writes a register."""
        register = REGISTER[name]
        if register.access == "ro":
            raise ValueError(f"register {name} cannot be written")
        await self._port.write(register.offset, value)

    async def identify(self):
        """Returns the core's parameters, as a dict of register and field names. Raises RuntimeError if no core answers."""
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
        """Sets the addresses of regions: a :class:`hw.spec.isa.Region` or its name to `(base, size)`. Other regions are
        unchanged."""
        for region, (base, size) in regions.items():
            name = (region if isinstance(region, Region) else Region[region]).name.lower()
            await self.write(f"{name}_base_low", base & 0xFFFFFFFF)
            await self.write(f"{name}_base_high", base >> 32)
            await self.write(f"{name}_size", size)

    async def start(self, pc=0):
        """Starts a run at an offset in region MODEL, with the interrupt enabled."""
        await self.write("pc", pc)
        await self.write("interrupt", 0b11)
        await self.write("control", 0b01)

    async def join_ring(self, rank, size):
        """Sets a core's rank in a ring, and the number of cores."""
        await self.write("ring", REGISTER["ring"].pack(rank=rank, size=size, flush=0))

    async def set_flush(self, flush):
        """Begins or ends the flush of a core's link; its rank in the ring is unchanged. See :func:`flush_ring`."""
        place = _fields("ring", await self.read("ring"))
        await self.write("ring", REGISTER["ring"].pack(**place | {"flush": int(flush)}))

    async def ring_state(self):
        """Returns the fields of the register `ring_state`."""
        return _fields("ring_state", await self.read("ring_state"))

    async def ring_words(self):
        """Returns the words of 32 bits that the last run sent to the ring and received from it."""
        return {name: await self.read(name) for name in ("ring_sent", "ring_received")}

    async def status(self):
        """Returns the fields of the status register."""
        return _fields("status", await self.read("status"))

    async def wait_for_quiet(self, polls=1000):
        """Waits until no bus transaction is outstanding, for at most `polls` reads of the status. Returns whether that was
        reached."""
        for _ in range(polls):
            if (await self.status())["quiet"]:
                return True
        return False

    async def wait(self, cycles, polls=1000):
        """Waits for the end of a run. Raises CoreFault if it ended early, after the bus became quiet or `polls` reads of the
        status. Raises CoreTimeout if it did not end within `cycles`."""
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
        """Returns the counters of the last run: `cycles`, `busy`, `stall_*` (`busy` and all stalls add up to `cycles`),
        `read_beats`, `write_beats`."""
        return {name: await self.read(name) for name in _COUNTERS}

    async def run_batch(self, batch, cycles, pc=0):
        """Runs a program whose regions are set. Returns `(counters, fault)`. The fault is None, or a dict from :func:`fault_of`;
        its cause is CYCLE_LIMIT if the run did not end within `cycles`."""
        await self.start(pc)
        return await self.end_batch(batch, cycles)

    async def end_batch(self, batch, cycles):
        """Waits for the end of a started run, and returns the result of :meth:`run_batch`."""
        fault = None
        try:
            await self.wait(cycles)
        except CoreFault as error:
            fault = fault_of(error, batch)
        except CoreTimeout:
            fault = {"cause": "CYCLE_LIMIT", "pc": 0, "batch": batch}
        return await self.counters(), fault

    async def reset(self):
        """Ends any run and clears status and fault; regions and other settings are unchanged. Returns whether the bus is quiet:
        only then is the run's output in memory final."""
        await self.write("control", 0b10)
        await self.write("interrupt", 0b10)
        return await self.wait_for_quiet()


async def flush_ring(drivers, looks=50):
    """Empties the links of all cores of a ring. All cores must be idle. After a fault or a reset, RING needs this.

    Parameters
    ----------
    drivers : list of Driver
    looks : int
        Reads of each core's state during the flush, and after it. They must take at least as long as the latency of a link.

    Raises
    ------
    RuntimeError
        If a core cannot drop a vector, or another vector arrives after the flush.
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
    """A port that records accesses: `w offset value`, `r offset`, `i cycles` (wait for the interrupt)."""

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
