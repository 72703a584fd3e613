"""The C model of the core, built by the system's compiler into a library that a process can load."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path

from .process import ToolError, build_directory, made_once

__all__ = ["find_c_compiler", "build_core_library"]

_DRIVER = Path(__file__).resolve().parents[1] / "driver"
_FOLDERS = (_DRIVER, _DRIVER / "core")
_FLAGS = ("-std=c99", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-shared", "-fPIC", *(f"-I{folder}" for folder in _FOLDERS))
_TIMEOUT = 300


def find_c_compiler():
    """Returns the command of a C compiler as a list: `$CC` if it is set, else cc, gcc or clang. Raises ToolError without one."""
    given = shlex.split(os.environ.get("CC", ""))
    for command in [given] if given else [["cc"], ["gcc"], ["clang"]]:
        path = shutil.which(command[0])
        if path:
            return [path, *command[1:]]
    missing = f"CC is set, but {given[0]} was not found" if given else "no C compiler: cc, gcc and clang were not found"
    raise ToolError(f"{missing}; install one, for example with: apt-get install gcc")


def build_core_library():
    """Builds `hw/driver/core` into a library in the folder of generated files, unless it exists. Returns its path, which depends
    on the sources, the compiler and the machine.

    Raises
    ------
    ToolError
        If there is no compiler, it fails, or the folder cannot be written.
    """
    compiler, sources = find_c_compiler(), sorted(_FOLDERS[1].glob("*.c"))
    digest = hashlib.sha256("\0".join([*compiler, *_FLAGS, platform.system(), platform.machine()]).encode())
    for path in [*sources, *(path for folder in _FOLDERS for path in sorted(folder.glob("*.h")))]:
        digest.update(path.read_bytes())

    def make(partial):
        try:
            command = [*compiler, *_FLAGS, *map(str, sources), "-o", str(partial)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolError(f"{compiler[0]} failed: {error}") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise ToolError(f"{compiler[0]} failed: {next((line for line in lines if 'error' in line), lines[0])}")

    place = build_directory() / "libraries"
    try:
        place.mkdir(exist_ok=True)
        return made_once(place / f"core-{digest.hexdigest()[:24]}.so", make, 2 * _TIMEOUT)
    except OSError as error:  # the folder may belong to another user
        raise ToolError(f"cannot write {place}: {error.strerror}; set TPU_BUILD to a folder that can be written") from None
