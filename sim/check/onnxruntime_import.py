"""onnxruntime without its telemetry: the one place that imports it."""

import os

__all__ = ["import_onnxruntime"]


def import_onnxruntime():
    """Returns the module `onnxruntime`.

    From 1.29 on it records events, sends them and writes a device id into the home, unless `ORT_DISABLE_TELEMETRY` is set
    before the import; its own call to disable them is too late. A value that the user has set stays.

    Raises
    ------
    ImportError
        It is not installed.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime
