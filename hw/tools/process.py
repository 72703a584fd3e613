"""Programs run with a limit, the folder for what they make, and locks between processes that make the same."""

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import platformdirs

__all__ = ["ToolError", "build_directory", "lock", "made_once", "full_disk_named", "execute", "tail"]

_ROOT = Path(__file__).resolve().parents[2]


class ToolError(RuntimeError):
    """A tool is missing, too old or failed; one line that also names the fix."""


def build_directory():
    """Where generated files go: `$TPU_BUILD`, else `build/` beside the sources, else the user's cache.

    Raises
    ------
    ToolError
        When none of these can be written.
    """
    given = os.environ.get("TPU_BUILD")
    if given:
        places = [Path(given)]
    else:
        places = [_ROOT / "build"] if (_ROOT / "pyproject.toml").exists() else []
        places.append(Path(platformdirs.user_cache_dir("amaranth-tpu", appauthor=False)))
    for place in places:
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            if os.access(place, os.W_OK | os.X_OK):
                return place.resolve()
    raise ToolError(
        f"no place for generated files: {' and '.join(map(str, places))} can't be written; set TPU_BUILD to a folder that can"
    )


@contextlib.contextmanager
def full_disk_named(folder):
    """Raises ToolError with the folder's name for a full disk, or a used-up quota, while files are written into it."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise ToolError(f"{folder}: {error.strerror}; free some, or set TPU_BUILD to a folder on another disk") from None


@contextlib.contextmanager
def lock(path, timeout):
    """An exclusive lock between processes; the operating system drops it if the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as handle:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ToolError(
                        f"another process has been building {path.stem} for more than {timeout:.0f} s; end it, or delete {path}"
                    ) from None
                time.sleep(0.1)
        yield


def made_once(path, make, timeout):
    """The file or folder `path`, made by `make(partial)` unless it is there; several processes may ask for it at once.

    Parameters
    ----------
    make : callable
        Makes a file or a folder at the path `partial`, which then becomes `path` as a whole.
    timeout : float
        Seconds to wait for another process that makes it.

    Raises
    ------
    ToolError
        When another process takes longer.
    """
    if not path.exists():
        with lock(path.with_name(path.name + ".lock"), timeout):
            if not path.exists():
                partial = path.with_name(path.name + ".partial")
                shutil.rmtree(partial, ignore_errors=True)  # of a process that was ended
                with full_disk_named(path.parent):
                    make(partial)
                partial.rename(path)
    return path


def tail(path, lines=25):
    try:
        text = Path(path).read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def execute(command, *, cwd, env, log, timeout, watch=None):
    """Exit status of a command whose whole process group ends with it, or with us. Output goes to the open file `log`."""
    name = Path(command[0]).name
    if shutil.which("setpriv"):  # also if we are killed
        command = ["setpriv", "--pdeathsig", "KILL", *command]
    process = subprocess.Popen(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    deadline = time.monotonic() + timeout
    try:
        while True:
            try:
                return process.wait(0.1 if watch else max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"{name} did not end within {timeout:.0f} s") from None
                if watch:
                    watch()
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if watch:
            watch()
