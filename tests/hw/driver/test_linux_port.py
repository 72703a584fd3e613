"""Tests of the port on Linux: files are the UIO device and its folder in sysfs, and the C model stands for the registers."""

import shutil
import time

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.bundle.bundle import make_bundle
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.ir.graph import dense_chain
from c_driver import SOURCES, compile_c
from command import captured
from core_networks import bfloat16s
from suites import all_but

#: Compilers for processors of 32 bits, little and big endian, with their emulators.
PROCESSORS = {"arm-linux-gnueabihf-gcc": "qemu-arm", "powerpc-linux-gnu-gcc": "qemu-ppc"}
FLAGS = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-pedantic"]
PAGE, ADDRESS = 4096, 0x3000_0000


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    """A folder as `tpu compile` writes it."""
    rng, folder = np.random.default_rng(4), tmp_path_factory.mktemp("net")
    layers = [("a", bfloat16s(rng, (9, 7), 0.05), None, "relu"), ("b", bfloat16s(rng, (7, 4), 0), None, "none")]
    network = dense_chain("net", layers)
    program = compile_network(network, Config(n=4, unified_buffer_depth=64, accumulator_depth=16), 5)
    for name, data in make_bundle(network, program, bfloat16s(rng, (5, 9), 0).astype(np.float32)).files.items():
        (folder / name).write_bytes(data)
    return folder


def device(folder, size=16 * PAGE, maps=2):
    """Makes a file as UIO device, with registers in the first page and memory behind it. Returns `(device, folder of maps)`."""
    (folder / "uio").write_bytes(bytes(PAGE + size))
    for number, (address, bytes_) in enumerate([(0x4000_0000, PAGE), (ADDRESS, size)][:maps]):
        place = folder / "maps" / f"map{number}"
        place.mkdir(parents=True)
        (place / "addr").write_text(f"{address:#018x}\n")
        (place / "size").write_text(f"{bytes_:#018x}\n")
    return folder / "uio", folder / "maps"


def built(compiler, net, run, *options):
    core = sorted((SOURCES / "core").glob("*.c")) if "-DTPU_SIMULATED" in options else []
    names = ("tpu.c", "tpu_data.c", "tpu_linux.c", "example_batch.c", "example_linux.c")
    folders = [f"-I{folder}" for folder in (SOURCES, SOURCES / "core", net)]
    compile_c(compiler, *FLAGS, *options, *folders, *(SOURCES / name for name in names), *core, "-o", run)


def said(*command):
    done = captured(command)
    return done.stdout.splitlines()[-1:] or done.stderr, done.returncode


@pytest.fixture(scope="module")
def checked(net):
    """The program for this machine, with the sanitizers."""
    built("gcc", net, net / "checked", "-DTPU_SIMULATED", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    return net / "checked"


def check(net, folder, *program):
    """The program has the golden model's bits, and its results are in the mapped memory, whose pages are all needed."""
    pages = sum(-(-(net / name).stat().st_size // PAGE) for name in ("model.bin", "input.bin", "output.bin"))
    uio, maps = device(folder, pages * PAGE)
    assert said(*program, net, uio, maps) == (["0 of 5 samples differ from the golden model"], 0)
    memory, output = uio.read_bytes()[PAGE:], (net / "output.bin").read_bytes()
    assert memory.startswith((net / "model.bin").read_bytes()) and output in memory


def test_program_on_this_machine(net, checked, tmp_path):
    check(net, tmp_path, checked)


@pytest.mark.parametrize("compiler", all_but(["powerpc-linux-gnu-gcc"], PROCESSORS))  # of other byte order
def test_program_on_a_processor(compiler, net, tmp_path):
    emulator = PROCESSORS[compiler]
    if not shutil.which(compiler) or not shutil.which(emulator):
        pytest.skip(f"no {compiler} or {emulator}: Debian's packages gcc-{compiler.removesuffix('-gcc')} and qemu-user")
    built(compiler, net, tmp_path / "run", "-DTPU_SIMULATED", "-static")
    check(net, tmp_path, emulator, tmp_path / "run")


def test_device_without_interrupt(tmp_path):
    """Waits take time if UIO refuses to enable the interrupt, as /dev/full refuses writes. Else the limit passes at once."""
    (tmp_path / "wait.c").write_text(
        '#include "tpu_linux.c"\n'
        "int main(void)\n{\n    tpu_linux own;\n\n"
        '    own.file = open("/dev/full", O_RDWR);\n'
        "    for (own.used = 0; own.used < 3; own.used++)\n        wait_for_interrupt(&own);\n    return own.file < 0;\n}\n"
    )
    compile_c("gcc", "-std=c99", f"-I{SOURCES}", tmp_path / "wait.c", "-o", tmp_path / "wait")
    begun = time.monotonic()
    assert captured(tmp_path / "wait").returncode == 0 and time.monotonic() - begun > 0.3


def test_program_compiles_for_a_core(net, tmp_path):
    built("gcc", net, tmp_path / "run")
    assert said(tmp_path / "run", net, "/dev/null", tmp_path)[1] == 1


@pytest.mark.parametrize(
    "given, message",
    [({"maps": 1}, "no sizes and address of map0 and map1"), ({"size": PAGE}, "the reserved memory is too small")],
)
def test_refusals(given, message, net, checked, tmp_path):
    text, status = said(checked, net, *device(tmp_path, **given))
    assert message in text and status == 1
