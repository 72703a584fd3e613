"""Import of onnxruntime with disabled telemetry. No other module imports onnxruntime."""

import os

__all__ = ["import_onnxruntime"]


def import_onnxruntime():
    """Imports onnxruntime and returns the module. Raises ImportError if onnxruntime is not installed.

    Since version 1.29, onnxruntime records and sends events, and writes a device id into the home directory. Only the variable
    `ORT_DISABLE_TELEMETRY`, set before the import, prevents this; its function for disabling telemetry can only be called later.
    A value of the variable that the user has set is kept.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime
