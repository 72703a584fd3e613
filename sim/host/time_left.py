"""The time that a simulation will take, told from its expected cycles and its measured speed."""

from ..data.progress_lines import show
from ..data.time_left import TimeLeft

__all__ = ["cycles_left"]


def cycles_left(cycles, runs, faster):
    """Returns a function that shows the remaining time of a simulation of several runs in the progress on the screen.

    The function is called once in a while with the number of runs that have ended, the cycles so far, and the seconds so far.

    Parameters
    ----------
    cycles : int
        Estimated cycles of a run.
    runs : int
    faster : str
        As in :class:`.TimeLeft`.
    """
    left = TimeLeft(faster)

    def tell(done, cycles_so_far, seconds):
        # The cycles of complete runs are known better than by the estimate, for example with stalls of the bus.
        whole, speed = runs * max(cycles, cycles_so_far / (done + 1)), f"{cycles_so_far / max(seconds, 1e-9):,.0f}"
        if text := left(cycles_so_far / whole, f"{whole:,.0f} cycles at {speed} a second", seconds):
            show(f"run {min(done + 1, runs)} of {runs} on the core: {text}, {speed} cycles a second")

    return tell
