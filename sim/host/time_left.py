"""The time that a simulation will take, told from its expected cycles and its measured speed."""

import logging

from ..data.progress_lines import duration, show

__all__ = ["TimeLeft"]

_SHORT, _LONG = 10, 3600  # seconds: shorter simulations tell nothing, longer ones also what is faster
_MEASURED = 1  # seconds of simulation before its speed counts


class TimeLeft:
    """The remaining time of a simulation of several runs, for the progress on the screen.

    An object is called once in a while with the number of runs that have ended, the cycles so far, and the seconds so far. A
    simulation of more than an hour is announced once by a line that names what is faster.

    Parameters
    ----------
    cycles : int
        Estimated cycles of a run.
    runs : int
    faster : str
        What takes less time, for the line.
    """

    def __init__(self, cycles, runs, faster):
        self._cycles, self._runs, self._faster, self._announced = cycles, runs, faster, False

    def __call__(self, done, cycles, seconds):
        if seconds < _MEASURED or not cycles:
            return
        speed = cycles / seconds
        # The cycles of complete runs are known better than by the estimate, for example with stalls of the bus.
        each = max(self._cycles, cycles / (done + 1))
        whole = each * self._runs / speed
        if whole < _SHORT:
            return
        left = max(0, whole - seconds)
        show(f"run {min(done + 1, self._runs)} of {self._runs} on the core: {duration(left)} left, {speed:,.0f} cycles a second")
        if whole > _LONG and not self._announced:
            self._announced = True
            logging.getLogger("amaranth_tpu").warning(
                "this simulation takes %s: %s cycles at %s a second; faster: %s",
                duration(whole),
                f"{each * self._runs:,.0f}",
                f"{speed:,.0f}",
                self._faster,
            )
