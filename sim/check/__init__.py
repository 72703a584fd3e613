"""Checks results against the original ONNX model."""
