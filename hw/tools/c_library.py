"""C sources, built by the system's compiler into a library that this process can load."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess

from .process import ToolError, build_directory, made_once

__all__ = ["find_c_compiler", "build_c_library"]

_FLAGS = ("-std=c99", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-shared", "-fPIC")
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


def build_c_library(name, folder, includes):
    """Builds all C files of a folder into a library in the folder of generated files, unless it exists. Returns its path.

    Parameters
    ----------
    name : str
        Prefix of the file name. The rest depends on the sources, the compiler and the machine.
    folder : Path
    includes : sequence of Path
        Further folders with header files.

    Raises
    ------
    ToolError
        If there is no compiler, or it fails.
    """
    compiler = find_c_compiler()
    digest = hashlib.sha256("\0".join([*compiler, *_FLAGS, platform.system(), platform.machine()]).encode())
    sources = sorted(folder.glob("*.c"))
    for path in [*sources, *(path for place in (folder, *includes) for path in sorted(place.glob("*.h")))]:
        digest.update(path.read_bytes())

    def make(partial):
        options = [f"-I{place}" for place in (folder, *includes)]
        command = [*compiler, *_FLAGS, *options, *map(str, sources), "-o", str(partial)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolError(f"{compiler[0]} failed: {error}") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise ToolError(f"{compiler[0]} failed: {next((line for line in lines if 'error' in line), lines[0])}")

    place = build_directory() / "libraries"
    place.mkdir(exist_ok=True)
    return made_once(place / f"{name}-{digest.hexdigest()[:24]}.so", make, 2 * _TIMEOUT)
