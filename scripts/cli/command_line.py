"""Code that all commands share: the console, checks of paths before the work starts, errors as one line with an exit status, and
the handling of Ctrl-C."""

import atexit
import gc
import glob
import io
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import warnings
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from amaranth_tpu.sim.data.printable import printable
from amaranth_tpu.sim.trainer.plan import FLAGS

__all__ = [
    "Effort",
    "EffortOption",
    "Json",
    "NoCheck",
    "RunFailed",
    "ShapeOption",
    "WeightsOption",
    "console",
    "replaceable_folder",
    "run_app",
    "show_error",
    "show_line",
    "usable_file",
    "usable_folder",
    "write_folder",
]

#: Messages for people, on standard error; results and `--json` go to standard output.
console = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

NoCheck = Annotated[
    bool,
    typer.Option(
        "--no-check", help="Use a new program without running it on a model of the core first, on random samples, bit for bit."
    ),
]


class Effort(StrEnum):
    FAST = "fast"
    BEST = "best"


EffortOption = Annotated[
    Effort,
    typer.Option(help="Compiler effort: `best` searches for the fastest schedule, `fast` takes the first schedule that fits."),
]


ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=SIZES",
        help="Shape of an input whose sizes the file leaves open, with the batch: x=1,3,48,192. "
        "Of a scalar input, the value: rate=16000. May be repeated.",
    ),
]


Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse a model that the core cannot run alone. Default: the host computes the nodes that the core lacks.",
    ),
]


class WeightsName(StrEnum):
    MXFP8 = "mxfp8"
    MXFP6 = "mxfp6"
    MXFP4 = "mxfp4"
    MXINT8 = "mxint8"


WeightsOption = Annotated[
    WeightsName | None,
    typer.Option(
        "--weights",
        metavar="NAME",
        help="Round the weights to mxfp8, mxfp6, mxfp4 or mxint8. "
        "A core with `weight_formats` stores them so. Default: bfloat16.",
    ),
]


#: Arguments of the Python API that messages name in backticks, and the options that stand for them.
_OPTIONS = FLAGS | {
    'cells="native"': "--cells native",
    'loss="mse"': "--loss mse",
    "model.check_programs = False": "--no-check",
    'on="model"': "--simulator model",
}


_KINDS = {"integer": "an integer", "number": "a number"}


def with_options(message):
    """Returns a message of the Python API with options in place of arguments."""
    return re.sub(r"`([^`]+)`", lambda name: f"`{_OPTIONS[name[1]]}`" if name[1] in _OPTIONS else name[0], message)


class RunFailed(RuntimeError):
    """The error of a command whose work ended with a failed check. The message is one line.

    Parameters
    ----------
    message : str
    advice : list of str
        Lines to print after the message.
    """

    def __init__(self, message, advice=()):
        super().__init__(message)
        self.advice = list(advice)


# --- Paths --------------------------------------------------------------------------------------------------------


def usable_file(path, option="-o", example="tpu.v"):
    """Raises typer.BadParameter if no file can be written at `path`. If `path` is a symbolic link, its target is checked.
    `option` and `example` appear in the message."""
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if path.is_dir():
        problem = f"{path} is a folder; name a file, such as {path / example}"
    elif path.exists() and not path.is_file():  # a device or a pipe
        return
    elif not folder.is_dir():
        problem = f"{path}: there is no folder {folder}; make it first"
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = f"{path}: no permission to write into the folder {folder.absolute()}; choose another one"
    else:
        return
    raise typer.BadParameter(problem, param_hint=option)


def usable_folder(path, option="-o"):
    """Raises typer.BadParameter if no files can be written into the folder `path`. The folder need not exist yet. `option`
    appears in the message."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir():
        problem = f"{path}: {there} is a file; name a folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        problem = f"{path}: no permission to write into the folder {there}; choose another one"
    else:
        return
    raise typer.BadParameter(problem, param_hint=option)


def replaceable_folder(path, names, option="-o"):
    """Raises typer.BadParameter if :func:`write_folder` could not create the folder `path`, or would delete files with names
    other than `names`. `option` appears in the message."""
    usable_folder(path.absolute().parent, option)
    usable_folder(path, option)
    others = sorted({entry.name for entry in path.iterdir()} - {*names}) if path.is_dir() else []
    if others:
        problem = f"{path} is replaced as a whole, and {others[0]} is in it; name a new folder"
    elif path.resolve() == Path.cwd():
        problem = f"{path} is replaced as a whole, and cannot be the current folder; name a new one"
    else:
        return
    raise typer.BadParameter(problem, param_hint=option)


def write_folder(path, files):
    """Writes a folder of files atomically. It replaces an older folder of the same name. Raises RunFailed if a file cannot be
    written.

    An interrupt leaves the older folder unchanged. If the process is killed while the folders are being renamed, the next call
    restores the older folder.

    Parameters
    ----------
    path : Path
    files : dict of str to bytes
        File contents by name, or by path with `/`.
    """
    target = Path(os.path.realpath(path))
    partial, old = (target.with_name(f".{target.name}.{what}-{os.getpid()}") for what in ("partial", "old"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _restore(target)
        partial.mkdir()
        for name, data in files.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).write_bytes(data)
        if target.exists():
            target.rename(old)
        partial.rename(target)
    except BaseException as error:
        _restore(target)
        if isinstance(error, OSError):
            raise RunFailed(f"{path}: {error.strerror or error}") from None
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)


def _restore(target):
    for old in target.parent.glob(f".{glob.escape(target.name)}.old-*"):
        if not target.exists():
            old.rename(target)


# --- Lines for people --------------------------------------------------------------------------------------------


def show_line(text):
    """Prints one line on the console (standard error). The text is not interpreted as markup."""
    console.print(escape(text), soft_wrap=True, highlight=False)


def show_error(text):
    """Prints one line on the console (standard error), marked as an error. The text is not interpreted as markup."""
    console.print(f"[red]error:[/] {escape(text)}", soft_wrap=True, highlight=False)


# --- Running ------------------------------------------------------------------------------------------------------


class _OnConsole(logging.Handler):
    def emit(self, record):
        show_line(with_options(self.format(record)))


def _interrupt(number, frame):
    """Handles SIGINT: ends the work at the first Ctrl-C, and ignores later ones so that the cleanup completes.

    Amaranth's warnings about elaboratables that were never elaborated are silenced.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "amaranth.hdl" in sys.modules:
        warnings.simplefilter("ignore", sys.modules["amaranth.hdl"].UnusedElaboratable)
    raise KeyboardInterrupt


class _StandardOutput(io.FileIO):
    """Standard output as a file whose errors, such as a full disk, name standard output."""

    def write(self, data):
        try:
            return super().write(data)
        except OSError as error:
            error.filename = "standard output"
            raise


def _name_output():
    old = sys.stdout
    if old is None or old is not sys.__stdout__:  # closed, or redirected by a caller
        return
    raw = _StandardOutput(old.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        raw if old.write_through else io.BufferedWriter(raw),
        encoding=old.encoding,
        errors=old.errors,
        line_buffering=old.line_buffering,
        write_through=old.write_through,
    )


def _flush():
    if sys.stdout is not None:
        sys.stdout.flush()


def _flush_or_drop():
    """Flushes standard output, or discards it, so that Python reports no second error when it exits."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _without_pydantic(message):
    message = message.replace(" Value error, ", " ", 1)
    message = re.sub(r"Input should be (a valid (integer|number))?", lambda kind: f"must be {_KINDS.get(kind[2], '')}", message)
    return re.sub(r", unable to (parse|interpret) .*", "", message)


def _text(error):
    """Returns the message of an error. For an error of the system, it is the file and the cause."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{printable(error.filename or f'a file in {tempfile.gettempdir()}, or an output of this command')}: {error.strerror}"


def run_app(app, expected):
    """Runs a typer application and ends the process. `expected` has the exceptions to print as one line: a tuple, or a function
    that returns the tuple.

    Exit status 0: done. 1: one of the `expected` exceptions. 2: wrong command line. 130: interrupted.
    """
    signal.signal(signal.SIGINT, _interrupt)
    _name_output()
    handler = _OnConsole()
    handler.addFilter(lambda record: not record.name.endswith(".divided"))  # the commands print a table of the parts
    logging.getLogger("amaranth_tpu").addHandler(handler)
    advice = []
    atexit.register(gc.freeze)  # the collection of garbage at the exit takes up to a second after large designs
    try:
        status = app(standalone_mode=False)
        _flush()
        if status != 130:  # typer's status for KeyboardInterrupt
            sys.exit(status)
        message = None
    except typer.BadParameter.__base__ as error:  # the base of typer's errors for a wrong command line
        message, status = with_options(_without_pydantic(error.format_message())), 2
    except (typer.Abort, KeyboardInterrupt):
        message, status = None, 130
    except Exception as error:
        if not isinstance(error, expected() if callable(expected) else expected):
            raise
        message, status, advice = with_options(_text(error)), 1, getattr(error, "advice", [])
    show_line("interrupted") if message is None else show_error(message)
    for line in advice:
        show_line(line)
    _flush_or_drop()
    sys.exit(status)
