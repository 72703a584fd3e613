"""Training logs for TensorBoard: event files written by tensorboardX. They are written without its thread, so that errors are
raised at once."""

import contextlib
import os
import time
from pathlib import Path

from ..data.digits import DataError
from ..data.printable import printable

__all__ = ["EventLog"]


class EventLog:
    """An event file for TensorBoard in a folder. The folder is created if needed. Raises DataError if the file cannot be
    created, or tensorboardX is not installed. The message is one line.

    Parameters
    ----------
    folder : path
    first : int
        Number of the first step to be logged. From this step on, TensorBoard ignores entries of older files in the folder.
    """

    def __init__(self, folder, first):
        try:
            from tensorboardX import record_writer, summary
            from tensorboardX.proto import event_pb2
        except Exception as error:  # also raised for an incompatible or damaged package
            raise DataError(
                f"the log needs the package tensorboardX, which can't be imported ({printable(error, 200)}): "
                "pip install tensorboardX, or write no log"
            ) from None
        self._events, self._scalar = event_pb2, summary.scalar
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{time.time():.0f}.{os.getpid()}"  # TensorBoard looks for names that contain "tfevents"
            self._file = record_writer.RecordWriter(str(self._folder / name))
        except OSError as error:
            raise self._failed(error) from None
        self._write(file_version="brain.Event:2")
        self._write(step=first, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def add(self, step, **values):
        """Logs the values of a step, as numbers by name."""
        for name, value in values.items():
            self._write(step=step, summary=self._scalar(name, value))

    def _write(self, **event):
        try:
            self._file.write(self._events.Event(wall_time=time.time(), **event).SerializeToString())
        except OSError as error:
            raise self._failed(error) from None

    def flush(self):
        """Writes all logged values to disk."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from None

    def close(self):
        """Closes the file. Values that were not flushed may be lost."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _failed(self, error):
        return DataError(f"{printable(self._folder)}: {error.strerror or error}")
