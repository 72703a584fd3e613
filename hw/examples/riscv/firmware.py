"""The build of the firmware: for the RISC-V CPU by Debian's gcc-riscv64-unknown-elf, or as a program for this computer."""

import shutil
import subprocess
from pathlib import Path

from amaranth_tpu.hw.tools.c_library import build_core_library, find_c_compiler
from amaranth_tpu.hw.tools.process import ToolError

__all__ = ["build_firmware", "build_for_pc", "find_compiler", "run_on_pc"]

_HERE = Path(__file__).resolve().parent
_DRIVER = _HERE.parents[1] / "driver"
_PREFIX, _PACKAGE = "riscv64-unknown-elf-", "gcc-riscv64-unknown-elf"
_COMMON = ["-std=c99", "-O2", "-funroll-loops", "-Wall", "-Wextra", "-Werror", "-pedantic"]
_FLAGS = ["-march=rv32im", "-mabi=ilp32", *_COMMON, "-ffreestanding", "-nostdlib"]


def find_compiler():
    """Raises ToolError if the RISC-V compiler is not installed."""
    for program in ("gcc", "objcopy"):
        if shutil.which(_PREFIX + program) is None:
            raise ToolError(f"{_PREFIX}{program} not found; install it with: apt-get install {_PACKAGE}")


def _run(folder, *words):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        line = next((line for line in said if "error" in line or "undefined" in line or "region" in line), said[0])
        raise ToolError(f"{words[0]} failed in {folder}: {line}")


def build_firmware(folder, sources, bundle):
    """Builds a firmware and returns the contents of RAM, as bytes.

    Parameters
    ----------
    folder : Path
        Folder with `cpu_data.h` and the arrays that it names. The program is written to it.
    sources : sequence of str
        File names in `firmware/`, in addition to the common files.
    bundle : Path
        Output folder of `tpu compile`: header, image and samples.

    Raises
    ------
    ToolError
        If the compiler is not installed, or reports an error.
    """
    find_compiler()
    paths = [_HERE / "firmware" / name for name in ("start.S", "system.c", "data.S", *sources)]
    paths += [_DRIVER / name for name in ("tpu.c", "tpu_data.c", "image.S")]
    include = [f"-I{place}" for place in (_DRIVER, _HERE / "firmware", folder, bundle)]
    include += [f"-Wa,-I,{place}" for place in (folder, bundle)]
    script = ["-T", str(_HERE / "firmware" / "link.ld"), "-Wl,--no-warn-rwx-segments"]
    _run(folder, _PREFIX + "gcc", *_FLAGS, *include, *map(str, paths), *script, "-lgcc", "-o", "firmware.elf")
    _run(folder, _PREFIX + "objcopy", "-O", "binary", "firmware.elf", "firmware.bin")
    return (folder / "firmware.bin").read_bytes()


def build_for_pc(folder, sources, bundle):
    """Builds a firmware as a program for this computer, with the C model in the place of the core, and returns its path.
    :func:`build_firmware` has the parameters and errors."""
    compiler = find_c_compiler()
    include = [f"-I{place}" for place in (_DRIVER, _DRIVER / "core", _HERE / "firmware", folder, bundle)]
    include += [f"-Wa,-I,{place}" for place in (folder, bundle)]
    objects = [folder / f"{Path(name).stem}.o" for name in sources]
    for name, path in zip(sources, objects):
        _run(
            folder, *compiler, *_COMMON, *include, "-Dtpu_open=open_on_pc", "-c", str(_HERE / "firmware" / name), "-o", str(path)
        )
    paths = [*objects, _HERE / "pc" / "system.c", _HERE / "firmware" / "data.S", build_core_library()]
    paths += [_DRIVER / name for name in ("tpu.c", "tpu_data.c", "image.S")]
    _run(folder, *compiler, *_COMMON, *include, *map(str, paths), "-o", "on_pc")
    return folder / "on_pc"


def run_on_pc(program, *, show=None, timeout=600, **_):
    """Runs a program of :func:`build_for_pc`. Returns its output lines and its exit status. Ignores the other parameters of
    :func:`.run_system`."""
    done = subprocess.run([program], capture_output=True, text=True, timeout=timeout)
    lines = done.stdout.splitlines()
    for line in lines if show else []:
        show(line)
    if done.returncode < 0:
        raise ToolError(f"{program} was ended by signal {-done.returncode}")
    return lines, done.returncode
