"""The C driver of `hw/driver`, compiled into a library that this process loads, with the bundle of a network for it."""

import ctypes
import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from amaranth_tpu.hw.spec.registers import STALLS
from amaranth_tpu.sim.bundle.bundle import make_bundle
from amaranth_tpu.sim.compiler.compile import compile_network
from command import captured
from stand_in_registers import Registers

SOURCES = Path(__file__).parents[2] / "hw" / "driver"
FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-ffreestanding"]
#: Start address of the shared memory for the core; it differs from 0 so that addresses and offsets cannot be confused.
BASE = 0x1_2000_0000

U32 = ctypes.c_uint32
READ = ctypes.CFUNCTYPE(U32, ctypes.c_void_p, U32)
WRITE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, U32, U32)
HOOK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


_SHIM = """#include "model.h"
const tpu_model *the_model(void);
const tpu_model *the_model(void) { return &model; }
"""


def compile_c(compiler, *arguments):
    done = captured([compiler, *map(str, arguments)])
    assert done.returncode == 0, done.stderr


class DriverPort(ctypes.Structure):
    _fields_ = [("context", ctypes.c_void_p), ("read", READ), ("write", WRITE), ("wait", HOOK), ("fence", HOOK)]


class Core(ctypes.Structure):
    _fields_ = [("port", ctypes.POINTER(DriverPort))] + [
        (name, U32) for name in ("version", "bus_bytes", "register_offset", "needed", "found", "cause", "pc", "quiet")
    ]


class DriverPlaces(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("model", "input", "output", "scratch")]


class Counters(ctypes.Structure):
    _fields_ = [("cycles", U32), ("busy", U32), ("stall", U32 * len(STALLS)), ("read_beats", U32), ("write_beats", U32)]


@functools.cache
def _objects():
    """Compiles the driver once per process. Returns its object files, and the temporary folder that holds them."""
    folder = tempfile.TemporaryDirectory(prefix="c-driver-")
    objects = [Path(folder.name) / f"{unit}.o" for unit in ("tpu", "tpu_data")]
    for path in objects:
        compile_c("gcc", *FLAGS, "-O1", "-fPIC", "-c", SOURCES / f"{path.stem}.c", "-o", path)
    return objects, folder


def objects_of(folder):
    """Compiles `the_model()`, which returns a pointer to the model in `folder`/model.h. Returns its object file and the
    driver's."""
    (folder / "shim.c").write_text(_SHIM)
    compile_c("gcc", *FLAGS, "-fPIC", f"-I{SOURCES}", f"-I{folder}", "-c", folder / "shim.c", "-o", folder / "shim.o")
    return [folder / "shim.o", *_objects()[0]]


def build_library(folder, header):
    """Writes `header` to a file model.h, compiles the C driver with this file as a shared library, and loads the library."""
    folder.mkdir(exist_ok=True)
    (folder / "model.h").write_text(header)
    compile_c("gcc", "-shared", *objects_of(folder), "-o", folder / "driver.so")
    library = ctypes.CDLL(str(folder / "driver.so"))
    library.tpu_text.restype = ctypes.c_char_p
    library.the_model.restype = ctypes.c_void_p
    return library


#: Values of `enum tpu_error`, repeated here because programs compare with these numbers.
ERRORS = {
    "OK": 0, "NO_CORE": 1, "VERSION": 2, "CONFIGURATION": 3, "HEADER": 4, "IMAGE": 5, "ADDRESS": 6, "ARGUMENT": 7, "BUSY": 8,
    "NOT_RECOVERED": 9, "LIMIT": 10, "DEAD_BUS": 11, "DEAD_MEMORY": 12, "LINK": 13, "FAULT": 32, "ILLEGAL": 33, "RANGE": 34,
    "LENGTH": 35, "BUS_READ": 36, "BUS_WRITE": 37, "TIMEOUT": 38, "RING": 39,
}  # fmt: skip
_NAMES = {number: name for name, number in ERRORS.items()}


class Session:
    """The C driver with a core of :class:`stand_in_registers.Registers`. Calls return the names of errors."""

    def __init__(self, host, registers, interrupts=False):
        self.host, self.registers, self.library, self.core = host, registers, host.library, Core()
        self.fences = 0
        wait = HOOK(registers.wait) if interrupts else HOOK()
        self.port = DriverPort(None, READ(registers.read), WRITE(registers.write), wait, HOOK(self._fence))

    def _fence(self, context):
        self.fences += 1

    def __call__(self, function, *arguments):
        return _NAMES[getattr(self.library, f"tpu_{function}")(ctypes.byref(self.core), *arguments)]

    def open(self):
        return self("open", ctypes.byref(self.port))

    def check(self):
        return self("check", self.host.model)

    def place(self, **changes):
        offsets = self.host.places | changes
        return self(
            "place", self.host.model, ctypes.byref(DriverPlaces(*(BASE + offsets[name] for name, _ in DriverPlaces._fields_)))
        )

    def prepare(self):
        """Calls `open`, `check` and `place`, so that the next call may start a run. Returns the session."""
        for step in (self.open, self.check, self.place):
            assert (error := step()) == "OK", error
        return self

    def reads(self):
        return sum(entry[0] == "r" for entry in self.registers.log)


@dataclass
class DriverHost:
    """A network on a core, used through the C driver: bundle, library, and the memory that CPU and core share.

    `places` maps each region's name to its offset in `memory`.
    """

    bundle: object
    config: object
    library: object
    memory: object
    places: dict

    @property
    def model(self):
        return ctypes.c_void_p(self.library.the_model())

    def region(self, name):
        return ctypes.byref(self.memory, self.places[name])

    def bytes_of(self, name, size):
        return bytes(self.memory[self.places[name] : self.places[name] + size])

    def registers(self, **options):
        """Returns a core's registers. Default: of the configuration that the network was compiled for."""
        return Registers(options.pop("config", self.config), self.memory, BASE, **options)

    def pack(self, samples):
        """Fills region INPUT from a float32 array (count, values)."""
        self.library.tpu_clear_input(self.model, self.region("input"))
        for number, sample in enumerate(np.ascontiguousarray(samples, np.float32)):
            assert self.library.tpu_pack(self.model, self.region("input"), number, sample.ctypes.data_as(ctypes.c_void_p)) == 0

    def unpack(self):
        results = np.zeros((self.bundle.model.batch, self.bundle.model.output_values), np.float32)
        for number, row in enumerate(results):
            place = row.ctypes.data_as(ctypes.c_void_p)
            assert self.library.tpu_unpack(self.model, self.region("output"), number, place) == 0
        return results


def host_of(network, config, samples, folder, batch=None):
    """Returns the :class:`DriverHost` of a network compiled for `batch` samples. Its memory has the image, and 0xFF elsewhere."""
    program = compile_network(network, config, batch or len(samples))
    bundle = make_bundle(network, program, samples)
    sizes = [("model", bundle.model.image_bytes), ("input", bundle.model.input_bytes)]
    sizes += [("output", bundle.model.output_bytes), ("scratch", bundle.model.scratch_bytes)]
    places, end = {}, 256
    for name, size in sizes:
        places[name], end = end, -(-(end + size) // 256) * 256 + 256
    memory = (ctypes.c_uint8 * end).from_buffer_copy(b"\xff" * end)
    memory[places["model"] : places["model"] + len(program.model)] = program.model
    return DriverHost(bundle, config, build_library(folder, bundle.files["model.h"].decode()), memory, places)
