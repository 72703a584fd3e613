"""The script of the host in RTL benches without a processor, which `hw/examples/soc/host.sv` executes."""

from amaranth_tpu.hw.spec.registers import IDENTIFIER, REGISTER, described

__all__ = ["HostScript"]

#: Operations of `host.sv`.
_END, _WRITE, _CHECK, _CHECK_ONES, _WAIT = range(5)
_START, _RESET = 0b01, 0b10
_ENABLE, _CLEAR = 0b01, 0b10
_DONE = 0b0010


class HostScript:
    """Steps of a host. Each method appends steps, which are lines of the file.

    Parameters
    ----------
    base : int
        Address of the core's registers.
    """

    def __init__(self, base=0):
        self.base, self.lines = base, []

    def _step(self, operation, address=0, data=0, comment=""):
        self.lines.append(f"{operation:x}_{address:08x}_{data:08x}" + (f"  // {comment}" if comment else ""))

    def write(self, name, value):
        """Adds a step that writes a value to a register."""
        self._step(_WRITE, self.base + REGISTER[name].offset, value, name)

    def check(self, name, value):
        """Adds a step that checks that a register holds `value`."""
        self._step(_CHECK, self.base + REGISTER[name].offset, value, name)

    def check_ones(self, name, bits):
        """Adds a step that checks that the bits `bits` of a register are 1."""
        self._step(_CHECK_ONES, self.base + REGISTER[name].offset, bits, name)

    def store(self, address, word):
        """Adds a step that writes a word to memory."""
        self._step(_WRITE, address, int(word))

    def compare(self, address, word, comment=""):
        """Adds a step that checks that a word of the memory holds `word`."""
        self._step(_CHECK, address, int(word), comment)

    def identify(self, config):
        """Adds steps that check that the core is the one of `config`, and a step that resets it."""
        self.check("id", IDENTIFIER)
        self.check("config", described(config)["config"])
        self.write("control", _RESET)

    def start(self, regions):
        """Adds steps that place the regions, a dict of names to `(address, size)`, and start a run."""
        for name, (base, size) in regions.items():
            self.write(f"{name.lower()}_base_low", base & 0xFFFF_FFFF)
            self.write(f"{name.lower()}_base_high", base >> 32)
            self.write(f"{name.lower()}_size", size)
        self.write("pc", 0)
        self.write("interrupt", _ENABLE | _CLEAR)
        self.write("control", _START)

    def join(self, rank, size):
        """Adds steps that give the core its place in a ring of `size` cores, and flush its links. Those of all cores have to be
        flushed at the same time."""
        own = {"rank": rank, "size": size}
        for flush in (1, 0):
            self.write("ring", REGISTER["ring"].pack(**own, flush=flush))
        self.check("ring_state", 0)

    def finish(self):
        """Adds steps that wait for the interrupt, check that the run succeeded, and clear the interrupt."""
        self._step(_WAIT)
        self.check_ones("status", _DONE)
        self.write("interrupt", _CLEAR)

    def end(self):
        self._step(_END)
