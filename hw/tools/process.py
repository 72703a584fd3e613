"""Processes with a time limit, the folder of generated files, and locks for files that several processes may make."""

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

__all__ = ["ToolError", "build_directory", "lock", "made_once", "write_whole", "full_disk_named", "execute", "tail"]

_ROOT = Path(__file__).resolve().parents[2]


class ToolError(RuntimeError):
    """The error of a tool that is missing, too old or failed. Its message is one line and names the remedy."""


def build_directory():
    """Returns the folder of generated files: `$TPU_BUILD` if it is set. Otherwise it is `build/` in the checkout or, if that is
    not writable, a folder in the user's cache.

    Raises
    ------
    ToolError
        If none of these is writable.
    """
    given = os.environ.get("TPU_BUILD")
    if given:
        places = [Path(given)]
    else:
        import platformdirs

        places = [_ROOT / "build"] if (_ROOT / "pyproject.toml").exists() else []
        places.append(Path(platformdirs.user_cache_dir("amaranth-tpu", appauthor=False)))
    for place in places:
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            if os.access(place, os.W_OK | os.X_OK):
                return place.resolve()
    raise ToolError(
        f"no folder for generated files: cannot write {' or '.join(map(str, places))}; set TPU_BUILD to a folder that can"
    )


@contextlib.contextmanager
def full_disk_named(folder):
    """Returns a context manager. If the disk is full or the quota is used up in its `with` block, it raises ToolError with the
    name of the folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise ToolError(f"{folder}: {error.strerror}; free some, or set TPU_BUILD to a folder on another disk") from None


@contextlib.contextmanager
def lock(path, timeout):
    """Returns a context manager that holds an exclusive lock between processes during its `with` block. The operating system
    releases the lock if the process dies. `timeout` : seconds to wait for the lock."""
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
    """Makes the file or folder `path` by a call of `make(partial)`, unless it exists. Returns `path`. Several processes may call
    the function for the same path at once.

    Parameters
    ----------
    make : callable
        Makes a file or a folder at the path `partial`, which is then renamed to `path`.
    timeout : float
        Seconds to wait for another process that makes it.

    Raises
    ------
    ToolError
        If another process takes longer, or the disk is full.
    """
    if not path.exists():
        with lock(path.with_name(path.name + ".lock"), timeout):
            if not path.exists():
                partial = path.with_name(path.name + ".partial")
                shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
                with full_disk_named(path.parent):
                    make(partial)
                partial.rename(path)
    return path


def write_whole(path, text):
    """Writes a text to a file beside `path`, which is then renamed to `path`, so that a process that is killed leaves no part of
    it there."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


def tail(path, lines=25):
    try:
        text = Path(path).read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def execute(command, *, cwd, env, log, timeout, watch=None):
    """Runs a command and returns its exit status. Its output is written to the open file `log`.

    When the command or this process ends, the whole process group of the command is ended. Raises TimeoutError after `timeout`
    seconds. `watch` is called every 0.1 s; when it returns True, the command has made progress, and the time limit starts again.
    """
    name = Path(command[0]).name
    if shutil.which("setpriv"):  # ends the command even if this process is killed
        command = ["setpriv", "--pdeathsig", "KILL", *command]
    process = subprocess.Popen(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    deadline, since = time.monotonic() + timeout, ""
    try:
        while True:
            try:
                return process.wait(0.1 if watch else max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"{name} did not end within {timeout:.0f} s{since}") from None
                if watch and watch():
                    deadline, since = time.monotonic() + timeout, " of its last progress"
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if watch:
            watch()
