"""The time that work will take, told from the part that is done and the time it took."""

import logging
import time

from .progress_lines import duration

__all__ = ["TimeLeft"]

_SHORT, _LONG = 10, 3600  # seconds: shorter work tells nothing, longer work also what is faster
_MEASURED = 1  # seconds before the speed counts


class TimeLeft:
    """The remaining time of one piece of work, for the progress on the screen. Work of more than an hour is announced once, by a
    line that names what is faster.

    Parameters
    ----------
    faster : str or None
        What takes less time. None: no line.
    """

    def __init__(self, faster=None):
        self._faster, self._announced = faster, False
        self._started, self._first = time.monotonic(), None

    def __call__(self, part, detail="", seconds=None):
        """Returns a text such as `about 3 min left`. The text is empty if all the work takes less than ten seconds. Work that is
        done at the first call, within the first second, was done before.

        Parameters
        ----------
        part : float
            The part that is done, from 0 to 1.
        detail : str
            The reason, for the line.
        seconds : float or None
            Time so far. Default: since the object was made.
        """
        seconds = time.monotonic() - self._started if seconds is None else seconds
        if self._first is None:
            self._first = (part, seconds) if seconds < _MEASURED else (0, 0)
        before, since = self._first
        if seconds < _MEASURED or part <= before:
            return ""
        left = (1 - part) * (seconds - since) / (part - before)
        if seconds + left < _SHORT:
            return ""
        if seconds + left > _LONG and self._faster and not self._announced:
            self._announced = True
            text = "this takes %s%s; faster: %s"
            whole = duration(seconds + left)
            logging.getLogger("amaranth_tpu").warning(text, whole, detail and f", {detail}", self._faster)
        return f"{duration(left)} left"
