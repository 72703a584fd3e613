"""From an ONNX file to nodes."""
