"""The ONNX reader, which converts a model file to nodes in binary64.

Terms that all its rooms use. A *symbolic tensor* stands for an ONNX tensor that depends on the input: it names a node of the
binary64 network that holds the values, and has an *index map*, which gives the place of each value in the node. A *step* is the
evaluation of one ONNX node. A *handler* is the function that converts the nodes of some ONNX operators. A *tap* is one
convolution in the sum that a node computes (:class:`sim.fusion.nodes.Tap`). To *refuse* a model means to raise a
:class:`sim.ir.errors.ModelError` that names the node.
"""
