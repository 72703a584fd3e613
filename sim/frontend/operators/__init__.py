"""Handlers of ONNX operators."""
