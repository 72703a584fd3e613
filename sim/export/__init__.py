"""Export of a trained graph to an ONNX file."""
