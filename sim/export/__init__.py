"""From a graph back to an ONNX file."""
