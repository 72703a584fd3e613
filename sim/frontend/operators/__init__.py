"""Handlers of ONNX operators.

A handler takes a :class:`sim.frontend.index.values.Step` and the first symbolic tensor among its inputs. It returns the node's
outputs, one value or a list.
"""
