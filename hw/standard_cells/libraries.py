"""The Liberty files that `tpu synth` finds by a name."""

from pathlib import Path

from .liberty import LibertyError, parse_library

__all__ = ["LIBRARIES", "is_standard_cells", "load_library"]

_QFLOW = "/usr/share/qflow/tech/{0}/{0}_stdcells.lib"

#: Name of a target to its file and the Debian package that installs it. Other files are named with `--liberty`.
LIBRARIES = {name: (Path(_QFLOW.format(name)), f"qflow-tech-{name}") for name in ("osu018", "osu035")}

#: Public libraries that no Debian package has.
_ELSEWHERE = ("nangate45", "sky130")


def load_library(target=None, liberty=None):
    """Returns `(text of the Liberty file, Library)`.

    Parameters
    ----------
    target : str or None
        A name in `LIBRARIES`. Not needed with `liberty`.
    liberty : pathlib.Path or None
        Another Liberty file.

    Raises
    ------
    LibertyError
        If the file is missing or not a Liberty file.
    """
    if liberty is None and target in _ELSEWHERE:
        raise LibertyError(f"{target} is in no Debian package; name its Liberty file with --liberty FILE")
    path, package = (liberty, None) if liberty else LIBRARIES[target]
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        remedy = f"install it with: apt install {package}" if package else "name a Liberty file of cells with --liberty"
        raise LibertyError(f"cannot read {path} ({getattr(error, 'strerror', None) or 'not text'}); {remedy}") from None
    return text, parse_library(text)


def is_standard_cells(target):
    """Returns True if `target` names a library of standard cells."""
    return target in LIBRARIES or target in _ELSEWHERE
