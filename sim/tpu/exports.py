"""Exports of models by their frameworks: in silence, and with the cause of a failure in one line."""

import contextlib
import io
import logging
import os
import sys
import warnings

from ..data.printable import printable
from ..ir.errors import ModelError

__all__ = ["export_error", "shapes_of", "silent"]

_LONGEST = 200


@contextlib.contextmanager
def silent():
    """Suppresses warnings, log records and printed text during a `with` block, also text of C++ code."""
    disabled, text = logging.root.manager.disable, io.StringIO()
    try:
        logging.disable(logging.CRITICAL)
        with (
            warnings.catch_warnings(),
            _closed(1),
            _closed(2),
            contextlib.redirect_stdout(text),
            contextlib.redirect_stderr(text),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@contextlib.contextmanager
def _closed(number):
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        saved = os.dup(number)
    except OSError:  # it is closed already
        yield
        return
    try:
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), number)
        yield
    finally:
        os.dup2(saved, number)
        os.close(saved)


def export_error(title, error, framework, call):
    """Returns a ModelError of one line for an error of an exporter: the first cause, and a remedy.

    Parameters
    ----------
    title : str
        Name of the model.
    error : Exception
    framework : str
        Name of the framework, for the message.
    call : str
        Code that repeats the export and shows the whole report.
    """
    while error.__cause__:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = printable(lines[0].rstrip(".") if lines else "no message", _LONGEST)
    if "data-dependent" in cause:
        remedy = "its code branches on values of tensors; compute both sides and select with torch.where"
    else:
        remedy = f"change this part of the model; `{call}` shows the whole report"
    return ModelError(f"{title}: {framework} cannot export it: {type(error).__name__}: {cause}; {remedy}")


def shapes_of(arrays):
    """Returns the shapes of arrays for messages, such as `(2, 8) and (2, 3)`."""
    return " and ".join(str(tuple(array.shape)) for array in arrays)
