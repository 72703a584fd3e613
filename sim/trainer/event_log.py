"""Logs of training for TensorBoard: event files by tensorboardX, without its thread, so that errors are seen at once."""

import contextlib
import os
import time
from pathlib import Path

from ..data.digits import DataError
from ..data.printable import printable

__all__ = ["EventLog"]


class EventLog:
    """An event file in a folder, which is made when it is not there.

    Parameters
    ----------
    folder : path
    first : int
        Number of the first step that will be logged; what older files of the folder have from there on does not count any more.

    Raises
    ------
    sim.data.digits.DataError
        One line, if the file can't be made, or the package is not there.
    """

    def __init__(self, folder, first):
        try:
            from tensorboardX import record_writer, summary
            from tensorboardX.proto import event_pb2
        except Exception as error:  # also of a package that does not fit others, or is damaged
            raise DataError(
                f"logs are written by the package tensorboardX, which can't be imported ({printable(error, 200)}): "
                "pip install tensorboardX, or train without a log (--log)"
            ) from None
        self._events, self._scalar = event_pb2, summary.scalar
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{time.time():.0f}.{os.getpid()}"  # TensorBoard looks for "tfevents"
            self._file = record_writer.RecordWriter(str(self._folder / name))
        except OSError as error:
            raise self._failed(error) from None
        self._write(file_version="brain.Event:2")
        self._write(step=first, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def add(self, step, **values):
        """Numbers by name, at a step."""
        for name, value in values.items():
            self._write(step=step, summary=self._scalar(name, value))

    def _write(self, **event):
        try:
            self._file.write(self._events.Event(wall_time=time.time(), **event).SerializeToString())
        except OSError as error:
            raise self._failed(error) from None

    def flush(self):
        """Puts what was added on the disk."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from None

    def close(self):
        """Ends the file; what was not put on the disk before may be lost."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _failed(self, error):
        return DataError(f"{printable(self._folder)}: {error.strerror or error}")
