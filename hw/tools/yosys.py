"""Runs Yosys commands on files in a folder of its own."""

from .run_tool import run_tool_on

__all__ = ["run_yosys"]


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
    ToolError
        When there is no such file in the end.
    """
    return run_tool_on({**files, "script.ys": script}, "yosys", ["-q", "-s", "script.ys"], makes=result, timeout=timeout)
