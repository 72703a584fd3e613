"""Lines of progress of long calls, on standard error."""

import contextlib
import os
import sys
import threading
import time

__all__ = ["ProgressLine"]

_FIRST = 2  # seconds before the first line on a terminal
_REDRAWN = 0.5  # seconds between updates on a terminal
_LINES = 10  # seconds before each line in a file or a pipe


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
        self._text, self._shown, self._ended, self._lock = "", False, threading.Event(), threading.Lock()

    def __enter__(self):
        self._started = time.monotonic()
        if self._enabled:
            self._thread = threading.Thread(target=self._write, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_):
        if self._enabled:
            self._ended.set()
            self._thread.join()
            self.clear()

    def __call__(self, text):
        self._text = text

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
                if not terminal and self._text == last and silent < pause:
                    continue
                pause, silent = _LINES if self._text != last else 2 * pause, 0
                last = self._text
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
