"""Work in parts that know nothing of each other, done here one after the other, or by the workers of a Dask cluster.

What a part gives is handed on as soon as it is there, in whatever order; who keeps it loses nothing when a worker, or all of the
work, is ended. Between machines it is Dask's own protocol, for clusters that are trusted.
"""

import concurrent.futures
import contextlib
import logging
import time

from amaranth_tpu.hw.tools.process import ToolError

from ..data.printable import printable
from ..data.source_digest import source_digest

__all__ = ["Cluster", "in_turn"]

_CONNECT = 30  # seconds until a scheduler answers, and has a worker
_ALONE = 60  # seconds that are waited for a worker when there is none left
_LOOK = 0.1


def in_turn(function, items):
    """Yields `(index, function(item))` of each item, here."""
    for index, item in enumerate(items):
        yield index, function(item)


class Cluster:
    """Workers of a Dask cluster, inside of `with`.

    Parameters
    ----------
    scheduler : str or None
        Its address, as `tcp://10.0.0.1:8786`; without it as many processes as `workers` are started here, and ended with it.
    workers : int

    Raises
    ------
    ToolError
        One line: without the package `distributed`, if nobody answers, if there is no worker, or one of another version.
    """

    def __init__(self, scheduler=None, workers=1):
        self.scheduler, self.workers = scheduler, workers

    def __enter__(self):
        try:
            import distributed
        except Exception as error:  # also of a package that does not fit others, or is damaged
            raise ToolError(
                f"work is spread by the package distributed, which can't be imported ({printable(error, 200)}): "
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
        """Yields `(index, function(item))`, the first that is ready first. Of a worker that is killed, others do the item.

        Raises
        ------
        ToolError
            If there are no workers any more, or no scheduler.
        """
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
                    raise ToolError(f"no worker for {_ALONE} s; start some, and call again: what is done is kept")
                else:
                    time.sleep(_LOOK)
        finally:
            self._client.cancel([*futures])

    def _result(self, future):
        import distributed

        try:
            return future.result(timeout=_CONNECT)
        except distributed.scheduler.KilledWorker as error:
            raise ToolError(f"several workers died of the same part ({printable(error, 200)}); see their logs") from None
        except concurrent.futures.CancelledError:
            raise ToolError(f"{self._name}: the scheduler is lost; start it, and call again: what is done is kept") from None


@contextlib.contextmanager
def _quiet(logger):
    """Silences what Dask's client logs of a lost connection: a ToolError says it."""
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _local(distributed, workers):
    return distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
