"""Registers of a core for tests of the C driver, backed by the instruction-level model. They have no timing, but can emulate
failures."""

from amaranth_tpu.hw.spec.isa import Fault, Region
from amaranth_tpu.hw.spec.registers import REGISTER, REGISTERS, STALLS
from amaranth_tpu.sim.golden.machines import MachineFault, machine_of

NAMES = {register.offset: register.name for register in REGISTERS}
RUNNING, DONE, FAULT, QUIET = 1, 2, 4, 8


def built(config):
    """Returns the constant registers of a core with configuration `config`, {name: value}."""
    features = REGISTER["features"].pack(**{name: getattr(config, name) for name in REGISTER["features"].fields})
    sizes = {name: getattr(config, name) for name in REGISTER["config"].fields}
    depths = ("unified_buffer_depth", "accumulator_depth", "bias_depth", "weight_fifo_depth")
    return {
        "id": 0x41545055,
        "version": 0x00010001,
        "config": REGISTER["config"].pack(**sizes),
        "features": features,
        **{name: getattr(config, name) for name in depths},
    }


class Registers:
    """Registers of a core that executes programs on the instruction-level model, or fails as requested.

    Parameters
    ----------
    config : Config
    memory : ctypes array of bytes
        Memory that the core sees starting at address `base`.
    polls : int
        Status reads during which a run is active.
    quiet_after : int
        Status reads after the end of a run or a reset until the bus is idle.
    cause : Fault or int
        Cause of the fault with which a run ends instead of executing.
    override : dict
        Constant register values {name: value} that emulate a broken bus.
    """

    def __init__(self, config, memory, base=0, *, polls=0, quiet_after=0, cause=None, override=None):
        self.config, self.memory, self.base = config, memory, base
        self.polls, self.quiet_after, self.cause = polls, quiet_after, cause
        self.override = override or {}
        self.values = {register.name: register.reset for register in REGISTERS} | built(config)
        self.state, self.left, self.noise = 0, 0, 0
        self.log, self.waited = [], 0

    def read(self, context, offset):
        name = NAMES[offset]
        self.log.append(("r", name))
        if name == "cycles":
            self.values[name] += self.state == RUNNING
        if name == "status":
            self.values[name] = self._status()
        return self.override.get(name, self.values[name])

    def write(self, context, offset, value):
        name = NAMES[offset]
        self.log.append(("w", name, value))
        if name == "control":
            self._command(value)
        elif name == "interrupt":
            self.values[name] = value & 1 | self.values[name] & ~value & 2
        elif REGISTER[name].access == "rw":
            self.values[name] = value

    def wait(self, context):
        """Emulates waiting for an interrupt: the run ends. Fails if the interrupt is not enabled."""
        assert self.values["interrupt"] & 1, "waiting for an interrupt that is not enabled"
        self.waited += 1
        self.left = 0

    @property
    def irq(self):
        return self.values["interrupt"] == 3

    def _status(self):
        if self.state == RUNNING:
            if self.left > 0:
                self.left -= 1
                return RUNNING
            self._end()
        self.noise -= 1
        return self.state | QUIET * (self.noise < 0)

    def _command(self, value):
        if value & 2:
            self.state, self.noise = 0, self.quiet_after
            self.values |= {"fault_cause": 0, "fault_pc": 0}
            self.values["interrupt"] &= 1
        elif value & 1 and self.state in (0, DONE):
            self.state, self.left = RUNNING, self.polls

    def _end(self):
        cause, pc = self._run() if self.cause is None else (getattr(self.cause, "value", self.cause), 0x40)
        self.state, self.noise = FAULT if cause else DONE, self.quiet_after
        self.values |= {"fault_cause": cause, "fault_pc": pc, "cycles": 1000, "busy": 600, "read_beats": 17, "write_beats": 3}
        self.values |= {f"stall_{name}": 10 * index for index, name in enumerate(STALLS)}
        self.values["interrupt"] |= 2

    def _run(self):
        """Executes the program on the instruction-level model. Returns `(cause, pc)` of its fault, or `(0, 0)`."""
        places = {}
        for region in Region:
            low, high, size = (self.values[f"{region.name.lower()}_{part}"] for part in ("base_low", "base_high", "size"))
            places[region] = slice((high << 32 | low) - self.base, (high << 32 | low) - self.base + size)
        regions = {region: bytearray(self.memory[place]) for region, place in places.items()}
        try:
            machine_of(self.config, regions).run(self.values["pc"])
        except MachineFault as error:
            return error.cause.value, error.pc
        finally:
            for region in (Region.OUTPUT, Region.SCRATCH):
                self.memory[places[region]] = regions[region]
        return Fault.NONE.value, 0
