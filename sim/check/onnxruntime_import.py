"""Import of onnxruntime with its telemetry disabled; no other module imports it."""

import os

__all__ = ["import_onnxruntime"]


def import_onnxruntime():
    """Returns the module `onnxruntime`.

    Since 1.29, onnxruntime records and sends events and writes a device id into the home directory, unless
    `ORT_DISABLE_TELEMETRY` is set before the import. Its own call to disable telemetry comes too late. A value of the variable
    that the user has set is kept.

    Raises
    ------
    ImportError
        If onnxruntime is not installed.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime
