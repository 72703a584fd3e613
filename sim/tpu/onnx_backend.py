"""ONNX' own interface of backends, by which the tests of `onnx.backend.test` and other tools run models.

>>> import numpy as np
>>> from onnx import helper
>>> from amaranth_tpu.sim.tpu.onnx_backend import Backend
>>> Backend.run_node(helper.make_node("Neg", ["x"], ["y"]), [np.ones(2, np.float32)])[0].tolist()
[-1.0, -1.0]
"""

import numpy as np
import onnx
from onnx.backend.base import Backend as Base
from onnx.backend.base import BackendRep, namedtupledict

from ..data.errors import DataError
from .divided_parts import HostSession
from .load import load

__all__ = ["Backend", "Prepared"]


class Prepared(BackendRep):
    """A model that is ready to run on inputs in the order of the file."""

    def __init__(self, model, **options):
        self._proto, self._options = model, options
        stored = {tensor.name for tensor in model.graph.initializer}
        self._entries = [entry for entry in model.graph.input if entry.name not in stored]
        dims = [dim for entry in self._entries for dim in entry.type.tensor_type.shape.dim]
        self._is_open = any(not dim.HasField("dim_value") for dim in dims)  # the inputs give the sizes
        self.model = None if self._is_open else load(model, **options)

    def run(self, inputs, **named):
        """Computes the outputs. Returns a named tuple, in the order of the file."""
        arrays = dict(zip((entry.name for entry in self._entries), inputs))
        names = [entry.name for entry in self._proto.graph.output]
        if self._is_open:
            shapes = {name: one.shape for name, one in arrays.items() if isinstance(one, np.ndarray) and one.ndim}
            self.model = load(self._proto, shapes=shapes, **self._options)
        try:
            found = self.model.run(arrays, **named).check().outputs
        except DataError:  # such as NaN: the host computes what the core does not take
            found = HostSession(self._proto, names)(arrays)
        return namedtupledict("Outputs", names)(*(found[name] for name in names))


class Backend(Base):
    """The core, as its golden model, and the host."""

    @classmethod
    def prepare(cls, model, device="CPU", **options):
        """Returns a :class:`Prepared` model. `options` go to :func:`sim.tpu.load.load`."""
        super().prepare(model, device)
        return Prepared(model, **options)

    @classmethod
    def run_node(cls, node, inputs, device="CPU", outputs_info=None, **options):
        """Computes one node. Returns its outputs as a named tuple."""
        super().run_node(node, inputs, device, outputs_info)
        names = [name for name in node.input if name]
        kinds = [(onnx.helper.np_dtype_to_tensor_dtype(np.asarray(one).dtype), np.shape(one)) for one in inputs]
        entries = [onnx.helper.make_tensor_value_info(name, *kind) for name, kind in zip(names, kinds)]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        model = onnx.helper.make_model(onnx.helper.make_graph([node], "node", entries, outputs))
        return cls.prepare(onnx.shape_inference.infer_shapes(model), device, **options).run(inputs)

    @classmethod
    def supports_device(cls, device):
        """Returns True for the device CPU."""
        return device == "CPU"
