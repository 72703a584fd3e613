"""Distribution of independent work items: one after the other in this process, or by the workers of a Dask cluster.

Each result is yielded as soon as it is ready, in any order. If the caller saves the results, nothing is lost when a worker or the
whole program is stopped. The machines communicate by Dask's own protocol, which is for trusted clusters only.
"""

import concurrent.futures
import contextlib
import logging
import time

from amaranth_tpu.hw.tools.process import ToolError

from ..data.printable import printable
from ..data.source_digest import source_digest

__all__ = ["Cluster", "in_turn"]

_CONNECT = 30  # seconds to wait for a scheduler that answers and has a worker
_ALONE = 60  # seconds to wait for a new worker when none remains
_LOOK = 0.1


def in_turn(function, items):
    """Yields `(index, function(item))` for each item, computed in this process."""
    for index, item in enumerate(items):
        yield index, function(item)


class Cluster:
    """The workers of a Dask cluster, as a context manager. Raises ToolError if the package `distributed` is missing, no
    scheduler answers, no worker exists, or a worker has another version. The message is one line.

    Parameters
    ----------
    scheduler : str or None
        Address of the scheduler, such as `tcp://10.0.0.1:8786`. None: start `workers` processes here, and end them on exit.
    workers : int
    """

    def __init__(self, scheduler=None, workers=1):
        self.scheduler, self.workers = scheduler, workers

    def __enter__(self):
        try:
            import distributed
        except Exception as error:  # also raised if the package is damaged, or incompatible with others
            raise ToolError(
                f"distributing work needs the package distributed, which can't be imported ({printable(error, 200)}): "
                "pip install distributed"
            ) from None
        name = self._name
        with contextlib.ExitStack() as stack:
            stack.enter_context(_quiet(logging.getLogger("distributed.client")))
            try:
                place = self.scheduler or stack.enter_context(_local(distributed, self.workers))
                self._client = stack.enter_context(distributed.Client(place, timeout=_CONNECT, set_as_default=False))
                self._client.wait_for_workers(1, timeout=_CONNECT)
                digests = self._client.run(source_digest)
            except (OSError, TimeoutError, ValueError, ImportError) as error:
                raise ToolError(
                    f"{name}: no worker with this package ({printable(error, 200)}); see the log of the workers"
                ) from None
            other = [worker for worker, digest in digests.items() if digest != source_digest()]
            if other:
                raise ToolError(
                    f"{name}: the worker {printable(other[0])} has another version of amaranth-tpu; install the same one"
                )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        return self._stack.__exit__(*error)

    @property
    def _name(self):
        return printable(self.scheduler or "local workers")

    def __call__(self, function, items):
        """Yields `(index, function(item))` for each item, in order of completion. If a worker is killed, another worker
        computes its item. Raises ToolError if no worker or no scheduler remains."""
        import distributed

        futures = {self._client.submit(function, item, pure=False): index for index, item in enumerate(items)}
        done, alone = distributed.as_completed(futures, loop=self._client.loop), time.monotonic()
        try:
            while done.count():
                if done.has_ready():
                    future = done.next()
                    yield futures[future], self._result(future)
                elif self._client.scheduler_info()["workers"]:
                    alone = time.monotonic()
                    time.sleep(_LOOK)
                elif time.monotonic() > alone + _ALONE:
                    raise ToolError(f"no worker for {_ALONE} s; start some, and call again: completed parts are kept")
                else:
                    time.sleep(_LOOK)
        finally:
            self._client.cancel([*futures])

    def _result(self, future):
        import distributed

        try:
            return future.result(timeout=_CONNECT)
        except distributed.scheduler.KilledWorker as error:
            raise ToolError(f"the same part ended several workers ({printable(error, 200)}); see their logs") from None
        except concurrent.futures.CancelledError:
            raise ToolError(f"{self._name}: the scheduler is lost; start it, and call again: completed parts are kept") from None


@contextlib.contextmanager
def _quiet(logger):
    """Suppresses the messages of Dask's client about a lost connection, since a ToolError reports it."""
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _local(distributed, workers):
    return distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
