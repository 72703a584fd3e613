"""Random ONNX models of all supported operators, and their check against onnxruntime and on a model of the core."""
