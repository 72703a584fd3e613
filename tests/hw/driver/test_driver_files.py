"""Tests that the files of `hw/driver` compile without warnings or libraries, and that their register addresses match the
hardware."""

import ctypes
import re
import shutil
import subprocess
from xml.etree import ElementTree

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Fault, Region
from amaranth_tpu.hw.spec.registers import IDENTIFIER, REGISTER, REGISTERS, STALLS, VERSION
from amaranth_tpu.sim.ir.graph import dense_chain
from c_driver import FLAGS, HOOK, READ, SOURCES, WRITE, DriverPort, compile_c, host_of
from command import captured
from core_networks import bfloat16s
from suites import all_but

UNITS = ("tpu.c", "tpu_data.c", "example.c", "image.S")
#: Compilers to try if installed, with their options for freestanding code.
COMPILERS = {"gcc": (), "clang": (), "riscv64-unknown-elf-gcc": ("-march=rv32im", "-mabi=ilp32")}


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    rng = np.random.default_rng(2)
    network = dense_chain("three", [("dense", bfloat16s(rng, (6, 3), 0), None, "none")])
    folder = tmp_path_factory.mktemp("files")
    made = host_of(network, Config(n=4, unified_buffer_depth=64, accumulator_depth=16), np.eye(1, 6, dtype=np.float32), folder)
    (folder / "model.bin").write_bytes(made.bundle.files["model.bin"])
    made.folder = folder
    return made


@pytest.mark.parametrize(
    "compiler, level", all_but([("gcc", "-O3"), *((one, "-Os") for one in COMPILERS)], COMPILERS, ["-Os", "-O3"])
)
def test_compiles_and_needs_nothing(host, compiler, level, tmp_path):
    """The C driver compiles without warnings and calls no library function, not even memcpy, which a compiler may insert."""
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    objects = []
    for unit in UNITS:
        objects.append(tmp_path / f"{unit}.o")
        options = (*FLAGS, *COMPILERS[compiler], level, f"-I{SOURCES}", f"-I{host.folder}", f"-Wa,-I,{host.folder}")
        compile_c(compiler, *options, "-c", SOURCES / unit, "-o", objects[-1])
    compile_c(compiler, *COMPILERS[compiler], "-r", "-nostdlib", *objects, "-o", tmp_path / "all.o")
    names = captured(["nm", "-u", tmp_path / "all.o"], check=True).stdout.split()
    needed = {name for name in names if name not in ("U", "_GLOBAL_OFFSET_TABLE_")}
    assert not needed


def test_compiles_as_cpp(host, tmp_path):
    for unit in ("tpu.c", "tpu_data.c"):
        compile_c("g++", "-x", "c++", "-Wall", "-Wextra", "-Werror", "-c", SOURCES / unit, "-o", tmp_path / "x.o")
    (tmp_path / "x.cpp").write_text('#include "model.h"\nint main() { return tpu_check_header(&model); }\n')
    options = ("-Wall", "-Wextra", "-Werror", f"-I{SOURCES}", f"-I{host.folder}")
    compile_c("g++", *options, tmp_path / "x.cpp", tmp_path / "x.o", "-o", tmp_path / "x")
    assert subprocess.run([tmp_path / "x"]).returncode == 0


def test_readme_example_runs(host, tmp_path):
    """The example program of the C driver's README returns the golden model's results, on an instruction-level model that uses
    this process's memory."""
    library = tmp_path / "example.so"
    sources = [SOURCES / unit for unit in UNITS]
    options = (*FLAGS, "-shared", "-fPIC", f"-I{SOURCES}", f"-I{host.folder}", f"-Wa,-I,{host.folder}")
    compile_c("gcc", *options, *sources, "-o", library)
    example = ctypes.CDLL(str(library))
    everything = _Everything()
    registers = host.registers()
    registers.memory, registers.base = everything, 0
    port = DriverPort(None, READ(registers.read), WRITE(registers.write), HOOK(), HOOK())
    assert example.prepare(ctypes.byref(port)) == 0
    answer = ctypes.c_uint32(99)
    assert example.classify(host.bundle.samples.ctypes.data_as(ctypes.c_void_p), ctypes.byref(answer)) == 0
    assert answer.value == host.bundle.results[0].argmax() and len(everything.stored) == 2
    registers.cause = Fault.BUS_READ
    assert example.classify(host.bundle.samples.ctypes.data_as(ctypes.c_void_p), ctypes.byref(answer)) == 32 + 4
    registers.cause = None
    assert example.classify(host.bundle.samples.ctypes.data_as(ctypes.c_void_p), ctypes.byref(answer)) == 0


class _Everything:
    """The memory of this process, indexed by address, with the written addresses in `stored`."""

    def __init__(self):
        self.stored = []

    def __getitem__(self, place):
        return ctypes.string_at(place.start, place.stop - place.start)

    def __setitem__(self, place, data):
        self.stored.append(place)
        ctypes.memmove(place.start, bytes(data), place.stop - place.start)


def test_readme_says_which_functions_return_nothing():
    readme, header = ((SOURCES / name).read_text() for name in ("README.md", "tpu.h"))
    program = readme.partition("```c\n")[2].partition("```")[0]
    called = set(re.findall(r"^(tpu_\w+)\(", program, re.MULTILINE))
    kinds = {name: kind for kind, name in re.findall(r"^(void|enum tpu_error) (tpu_\w+)\(", header, re.MULTILINE)}
    excepted = readme.partition("or an error, except ")[2].partition(" return")[0]
    assert len(called) > 8 and set(re.findall(r"`(\w+)`", excepted)) == {name for name in called if kinds[name] == "void"}


# ---- the registers, in both header files


def test_header_of_the_registers():
    text = (SOURCES / "tpu_regs.h").read_text()
    found = {name: int(value, 0) for name, value in re.findall(r"^#define TPU_(\w+) +(\w+)u$", text, re.MULTILINE)}
    assert len(found) == text.count("#define") - 1  # one define is the include guard
    expected = {"IDENTIFIER": IDENTIFIER, "INTERFACE_VERSION": VERSION, "REGISTER_BYTES": 512}
    expected |= {"REGIONS": 4, "REGION_STEP": 16, "STALLS": 9, "STALL_STEP": 4}
    expected |= {f"FAULT_{fault.name}": fault.value for fault in Fault}
    expected |= {f"REGION_{region.name}": region.value for region in Region}
    expected |= {f"STALL_{name.upper()}": index for index, name in enumerate(STALLS)}
    for register in REGISTERS:
        expected[f"REG_{register.name.upper()}"] = register.offset
        for name, (first, width, _) in (register.fields or {}).items():
            field = f"{register.name}_{name}".upper()
            expected |= {f"{field}_MASK": (1 << width) - 1 << first, f"{field}_SHIFT": first}
    assert found == expected


def test_svd():
    root = ElementTree.parse(SOURCES / "tpu.svd").getroot()
    access = {"read-only": "ro", "read-write": "rw", "write-only": "w1"}
    found = {}
    for element in root.iter("register"):
        fields = {
            field.findtext("name"): (int(field.findtext("bitOffset")), int(field.findtext("bitWidth")), field)
            for field in element.iter("field")
        }
        place = int(element.findtext("addressOffset"), 0)
        found[element.findtext("name")] = place, access[element.findtext("access")], fields
    assert list(found) == [register.name for register in REGISTERS]
    for name, (place, kind, fields) in found.items():
        assert (place, kind) == (REGISTER[name].offset, REGISTER[name].access)
        if name != "fault_cause":
            own = REGISTER[name].fields or {}
            assert {key: field[:2] for key, field in fields.items()} == {key: field[:2] for key, field in own.items()}
        clears = [key for key, field in fields.items() if field[2].findtext("modifiedWriteValues") == "oneToClear"]
        assert clears == (["pending"] if name == "interrupt" else [])
    values = found["fault_cause"][2]["cause"][2].iter("enumeratedValue")
    assert {one.findtext("name"): int(one.findtext("value")) for one in values} == {fault.name: fault.value for fault in Fault}
    resets = {one.findtext("name"): int(one.findtext("resetValue"), 0) for one in root.iter("register")}
    assert resets["id"] == IDENTIFIER and resets["timeout"] == 1 << 20 and resets["status"] == 8
