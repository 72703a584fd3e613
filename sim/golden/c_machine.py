"""The C model of the core, `hw/driver/core`, with the interface of :mod:`sim.golden.isa_model` and :mod:`sim.golden.isa_ring`."""

import ctypes
import functools

import numpy as np

from amaranth_tpu.hw.spec.isa import REGION_WRITABLE, Fault, Region
from amaranth_tpu.hw.spec.registers import REGISTER, described
from amaranth_tpu.hw.tools.c_library import build_core_library
from amaranth_tpu.hw.tools.process import ToolError

from .isa_check import MachineFault

__all__ = ["CCore", "CMachine", "CMachineRing", "c_library"]

#: Bus address of region MODEL; the others follow at this distance. A region is at most 4 GiB long.
_STEP = 1 << 32
_OFFSETS = {name: register.offset for name, register in REGISTER.items()}
_SIZES = ("unified_buffer_depth", "accumulator_depth", "bias_depth", "weight_fifo_depth", "update_depth", "ring_depth")
_START, _RESET = (1 << REGISTER["control"].fields[name][0] for name in ("start", "reset"))
_FAULT = 1 << REGISTER["status"].fields["fault"][0]
_FLUSH = 1 << REGISTER["ring"].fields["flush"][0]
_REFUSED = 1 << REGISTER["ring_state"].fields["refused"][0]


class _Config(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("config", "features", *_SIZES, "address_width")]


class _Array(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("place", ctypes.c_void_p)]


class _Map(ctypes.Structure):
    _fields_ = [("array", _Array * len(Region)), ("pointer", ctypes.POINTER(_Array)), ("arrays", ctypes.c_uint32)]


@functools.cache
def c_library():
    """Returns the C model as a ctypes library. Builds it if necessary.

    Raises
    ------
    ToolError
        If there is no C compiler, or the library cannot be built or loaded.
    """
    path = build_core_library()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ToolError(f"cannot load {path}: {error}; delete it") from None
    pointer, word = ctypes.c_void_p, ctypes.c_uint32
    for name, result, arguments in (
        ("new", pointer, [ctypes.POINTER(_Config), pointer, pointer]),
        ("free", None, [pointer]),
        ("join", None, [ctypes.POINTER(pointer), word]),
        ("read", word, [pointer, word]),
        ("write", None, [pointer, word, word]),
        ("wait", None, [pointer]),
        ("executed", word, [pointer]),
        ("bits", pointer, [pointer, ctypes.c_int]),
    ):
        function = getattr(library, f"tpu_core_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class CCore:
    """A core of the C model, with its registers and without its host memory. It is freed with its last reference.

    `address_width` : bits of a bus address. Default: wide enough for four regions of 4 GiB, whatever the configuration has.
    """

    def __init__(self, config, address_width=64):
        values = {name: getattr(config, name) for name in _SIZES}
        values |= {name: described(config)[name] for name in ("config", "features")}
        self.library, self.map = c_library(), _Map()
        self.map.pointer = self.map.array
        self.pointer = self.library.tpu_core_new(
            ctypes.byref(_Config(**values, address_width=address_width)),
            ctypes.cast(self.library.tpu_core_arrays, ctypes.c_void_p),
            ctypes.byref(self.map, _Map.pointer.offset),
        )
        if not self.pointer:
            raise MemoryError("no memory for the C model of a core")

    def __del__(self):
        if getattr(self, "pointer", None):
            self.library.tpu_core_free(self.pointer)

    def read(self, name):
        return self.library.tpu_core_read(self.pointer, _OFFSETS[name])

    def write(self, name, value):
        self.library.tpu_core_write(self.pointer, _OFFSETS[name], value)

    def map_memory(self, number, address, size, place):
        """Maps `size` bytes at `place` in this process to a bus address, as array `number` of :class:`.Region` many."""
        self.map.array[number] = _Array(address, size, place)
        self.map.arrays = len(self.map.array)

    def view(self, space, dtype, shape):
        """Returns a memory of the core as an array, which keeps the core alive."""
        count = int(np.prod(shape))
        place = self.library.tpu_core_bits(self.pointer, space)
        values = (ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(place)
        values.owner = self
        return np.frombuffer(values, dtype, count).reshape(shape)


class CMachine:
    """One core without timing: :class:`sim.golden.isa_model.Machine` as compiled C, with its parameters and attributes except
    `table` and `exchanges`."""

    def __init__(self, config, regions=None, *, rank=0, size=1):
        self.config, self.rank, self.size = config, rank, size
        self.regions = regions if regions is not None else {}
        self.core = core = CCore(config)
        n = config.n
        self.buffer = core.view(0, np.uint16, (config.unified_buffer_depth, n))
        self.sums = core.view(1, np.uint32, (config.accumulator_depth, n))
        self.bias = core.view(2, np.uint32, (config.bias_depth, n))
        self.updates = core.view(4, np.uint16, (config.update_depth, 3, n))

    @property
    def executed(self):
        return self.core.library.tpu_core_executed(self.core.pointer)

    @property
    def refused(self):
        return bool(self.core.read("ring_state") & _REFUSED)

    def run(self, pc=0):
        """Executes the program at offset `pc` of region MODEL up to HALT. Raises MachineFault, with the cause TIMEOUT if a RING
        waits for another core."""
        held = self.start(pc)
        fault = self.end()
        del held
        if fault:
            raise fault

    def start(self, pc):
        """Executes a program up to its end, or up to the first RING that must wait. Returns the memory to keep until the end."""
        core, held = self.core, []
        for region in Region:
            data = np.frombuffer(self.regions.get(region, b""), np.uint8) if len(self.regions.get(region, b"")) else None
            if data is not None and REGION_WRITABLE[region] and not data.flags.writeable:
                raise TypeError(f"region {region.name} must be a bytearray, as the core may write it")
            held.append(data)
            size, base = 0 if data is None else data.nbytes, (1 + region.value) * _STEP
            core.map_memory(region.value, base, size, data.ctypes.data if size else None)
            for part, value in (("base_low", base & 0xFFFFFFFF), ("base_high", base >> 32), ("size", size)):
                core.write(f"{region.name.lower()}_{part}", value)
        core.write("control", _RESET)
        core.write("ring", REGISTER["ring"].pack(rank=self.rank, size=self.size, flush=0))
        core.write("pc", pc)
        core.write("control", _START)
        return held

    def end(self):
        """Ends a run. Returns its MachineFault, or None."""
        core = self.core
        core.library.tpu_core_wait(core.pointer)
        if core.read("status") & _FAULT:
            return MachineFault(Fault(core.read("fault_cause")), core.read("fault_pc"))
        return None


class CMachineRing:
    """Cores in a ring: :class:`sim.golden.isa_ring.MachineRing` as compiled C, with the same parameters and attributes."""

    def __init__(self, config, regions):
        size = len(regions)
        self.machines = [CMachine(config, own, rank=rank, size=size) for rank, own in enumerate(regions)]
        self.faults = [None] * size
        pointers = (ctypes.c_void_p * size)(*(machine.core.pointer for machine in self.machines))
        c_library().tpu_core_join(pointers, size)
        self.flush()

    def run(self, pc=0):
        """Executes all cores. :meth:`sim.golden.isa_ring.MachineRing.run` has the parameters and errors."""
        held = [machine.start(pc) for machine in self.machines]
        self.faults = [machine.end() for machine in self.machines]
        del held
        for fault in sorted(filter(None, self.faults), key=lambda fault: fault.cause is Fault.TIMEOUT):
            raise fault

    def flush(self):
        """Empties the links of all cores. This must precede the first RING of new cores, and the next RING after a fault."""
        for machine in self.machines:
            machine.core.write("control", _RESET)
            machine.core.write("ring", _FLUSH)
            machine.core.write("ring", 0)
