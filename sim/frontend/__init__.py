"""The ONNX reader: from a model file to nodes in binary64."""
