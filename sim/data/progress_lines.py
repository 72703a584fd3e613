"""Lines of progress of long calls, on standard error."""

import contextlib
import os
import sys
import threading
import time

__all__ = ["ProgressLine", "duration", "phase", "show", "shows_phases"]

_FIRST = 2  # seconds before the first line on a terminal
_REDRAWN = 0.5  # seconds between updates on a terminal
_LINES = 10  # seconds before each line in a file or a pipe

_displays = []  # of the progress on the screen, the innermost last: functions that show a phase's text, or None at its end


@contextlib.contextmanager
def shows_phases(show):
    """Makes every :func:`phase` during the `with` block call `show(text)`, and `show(None)` when the phase ends."""
    _displays.append(show)
    try:
        yield
    finally:
        _displays.remove(show)


def show(text):
    """Shows a text in the progress on the screen, until the next text, or until a call with None. Shows nothing without
    progress."""
    if _displays:
        _displays[-1](text)


def duration(seconds):
    """Returns a time as text, such as `about 3 h`."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"about {seconds / size:.0f} {unit}"
    return f"about {max(seconds, 0):.0f} s"


@contextlib.contextmanager
def phase(text):
    """Shows a phase of a long call during the `with` block: in the progress that the caller shows, else as a
    :class:`ProgressLine`."""
    with contextlib.ExitStack() as stack:
        if not _displays:
            stack.enter_context(ProgressLine())
        display = _displays[-1]
        display(text)
        try:
            yield
        finally:
            display(None)


class ProgressLine:
    """Shows the progress of a `with` block: one line that is redrawn on a terminal, else a line every ten seconds, or fewer while
    the text is the same. Blocks that are shorter than two seconds (ten, without a terminal) show nothing. The environment
    variable `TPU_PROGRESS=0` suppresses all lines.

    The object is called with the present text. A thread writes, so that a long step without calls shows the elapsed time.

    Parameters
    ----------
    enabled : bool
    stream : file or None
        Default: standard error.
    """

    def __init__(self, enabled=True, stream=None):
        self._stream = stream or sys.stderr
        self._enabled = enabled and self._stream is not None and os.environ.get("TPU_PROGRESS") != "0"
        self._text, self._phase, self._shown = "", None, False
        self._ended, self._lock = threading.Event(), threading.Lock()

    def __enter__(self):
        self._started = time.monotonic()
        _displays.append(self.phase)
        if self._enabled:
            self._thread = threading.Thread(target=self._write, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_):
        _displays.remove(self.phase)
        if self._enabled:
            self._ended.set()
            self._thread.join()
            self.clear()

    def __call__(self, text):
        self._text = text

    def phase(self, text):
        """Shows `text` instead of the present text until a call with None."""
        self._phase = text

    def clear(self):
        """Removes the line from a terminal, so that another line can be printed."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._shown:
                self._put("\r\x1b[K")
            self._shown = False

    def _write(self):
        with contextlib.suppress(OSError, ValueError):  # the stream is closed or full: the work goes on
            terminal = self._stream.isatty()
            step, pause, silent, last = _FIRST if terminal else _LINES, 0, 0, None
            while not self._ended.wait(step):
                step = _REDRAWN if terminal else _LINES
                silent += step
                present = self._phase or self._text
                if not terminal and present == last and silent < pause:
                    continue
                pause, silent = _LINES if present != last else 2 * pause, 0
                last = present
                text = f"{last} ({time.monotonic() - self._started:.0f} s)"
                with self._lock:
                    self._put(f"\r\x1b[K{text[: _width() - 1]}" if terminal else f"{text}\n")
                    self._shown = terminal

    def _put(self, text):
        self._stream.write(text)
        self._stream.flush()


def _width():
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80
