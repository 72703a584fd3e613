"""Conversion of models of old operator sets by ONNX' own converter."""

import logging

from ..data.printable import printable
from ..ir.errors import ModelError
from .messages import inline

__all__ = ["OLDEST", "converted"]

OLDEST = 8  # oldest operator set that the reader reads


def converted(model, opset):
    """Returns an `onnx.ModelProto` of an old operator set in a newer one, and says so in a line. Raises ModelError if ONNX cannot
    convert it."""
    from onnx import version_converter

    try:
        made = version_converter.convert_version(model, OLDEST)
    except Exception as error:  # of the package onnx, for operators that it cannot convert
        raise ModelError(
            f"opset {opset} is too old, and onnx.version_converter cannot convert the model: {inline(error, 120)}; export it for "
            f"opset {OLDEST} or later"
        ) from None
    logging.getLogger(__name__).warning(
        "%s: converted from opset %d to %d", printable(model.graph.name, 80) or "model", opset, OLDEST
    )
    return made
