"""Calls of Yosys scripts, on files in a temporary folder."""

from .run_tool import run_tool_on

__all__ = ["run_yosys"]


def run_yosys(script, files, result, *, timeout):
    """Runs a Yosys script. Returns the text of the file `result`, which the script must write.

    Parameters
    ----------
    script : str
        Yosys commands.
    files : dict
        {name: text} of the files that the script reads.
    timeout : float
        Seconds.

    Raises
    ------
    ToolError
        If the script did not write the file, or :func:`run_tool` fails.
    """
    return run_tool_on({**files, "script.ys": script}, "yosys", ["-q", "-s", "script.ys"], makes=result, timeout=timeout)
