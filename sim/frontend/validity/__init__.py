"""Checks of an ONNX file against ONNX's own definition of its operators."""
