"""The evaluation of a graph, from its outputs back to its inputs, on symbolic tensors."""

import weakref
from collections import Counter
from dataclasses import replace
from math import prod

import numpy as np
from onnx import TensorProto, helper

from ..data.printable import quoted
from ..fusion.fuse import in_order
from ..fusion.nodes import Linear, ValueView
from ..ir.errors import ModelError
from .apply import apply
from .batch import Repeated, Sizes, checked, fold_open_constants
from .branches import chosen_branch, reads_of
from .constant_sizes import Room
from .constants import fold_constants, read_constant
from .index.narrow import in_narrower
from .index.pixels import PHASED, with_pixels
from .index.relayout import Relayout
from .index.strided import uncopied
from .index.values import LOWEST, MOST_VALUES, Step, SymbolicTensor, has_all, hidden, show, whole
from .index.views import everything
from .inputs import is_in_training_form, read_inputs
from .messages import first_output, inline, title, unsupported
from .multiplications import WINDOWS
from .operators.concatenation import stacked, together
from .registry import ONNX, OPERATORS
from .validity.ranges import check_ranges

__all__ = ["Evaluation", "check_operators", "refusal_of_operator"]

#: Operators of dynamic quantisation, whose scales depend on the values of each run.
_QUANTISED = ("DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "ConvInteger", "MatMulInteger")
#: Values of a tensor up to which files of any size may go, and further ones for each byte: a small file takes little memory.
_FEW_VALUES, _FEW_VALUES_OF_A_BYTE = 1 << 20, 8
#: Multiplications of a convolution, likewise: a program has instructions for each position of its kernel.
_FEW_PRODUCTS, _FEW_PRODUCTS_OF_A_BYTE = 1 << 28, 1 << 20
#: Tiles of all results of nodes, likewise: a program has instructions for each. A tile has some channels, and some positions.
_FEW_TILES, _TILE = 1 << 16, (16, 512)
_KEEPING = ("Identity", "Dropout", "Cast", "Relu", "Sigmoid", "Tanh")


def check_operators(graph):
    """Raises an error if the graph has an operator that is not supported for any input. The message names the first such node,
    in the order of the file, on which an output depends."""
    needed = {entry.name for entry in graph.output}
    wanted = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(reads_of(node))
            wanted.append(node)
    _check_operators_of(reversed(wanted))


def _check_operators_of(nodes):
    for node in nodes:
        if (error := refusal_of_operator(node)) is not None:
            error.value = first_output(node)
            raise error


def refusal_of_operator(node):
    """Returns the error about a node whose operator is not supported for any input, or None."""
    known = OPERATORS.get(node.op_type)
    if known and known.domain == ("" if node.domain in ONNX else node.domain):
        return None
    if node.op_type in _QUANTISED:
        return ModelError(f"{title(node)}: is dynamic quantisation; use the model in float32 from before the quantisation")
    if node.domain not in ONNX:
        return unsupported(node, f"the domain {quoted(node.domain)} is not supported")
    return unsupported(node)


class Evaluation:
    """One evaluation of a graph.

    A model whose input has a batch of one takes one sample. If the batch is larger, the model may run on any number of samples:
    each result depends on one sample alone, and is the result that ONNX defines for that sample in a full batch.

    Parameters
    ----------
    layouts : dict of str to Relayout
        Layouts of inputs, other than a vector.
    samples : int or None
        Batch size to assume if the batch size of the model's input is open. NO_BATCH: the input has no batch axis, and the whole
        input is one sample.
    size : int
        Bytes of the graph.
    """

    def __init__(self, model, folder, layouts, samples, size):
        self.graph, self.folder, self.layouts, self.samples = model.graph, folder, layouts, samples
        self.opsets = {entry.domain: entry.version for entry in model.opset_import}
        self.opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
        self.is_training = is_in_training_form(model)
        self.initializers = {tensor.name: tensor for tensor in self.graph.initializer}
        self.inputs = None
        self.values = {}  # name -> np.ndarray or SymbolicTensor; several outputs are several names
        self.shapes, self.labels = {}, {}  # output -> its shape (dims, batch, bare); output -> its kind of label, or ""
        self.left_out = {}  # output -> the function that is left to the host
        self.places = {}  # output -> its slice of the results
        self.outputs = [entry.name for entry in self.graph.output]
        self.producers = {}
        for node in self.graph.node:
            for name in filter(None, node.output):
                self.producers[name] = node
        self.users = Counter(name for node in self.graph.node for name in reads_of(node))  # reads that are still to come
        self.users.update(entry.name for entry in self.graph.output)
        self.ended = set()  # names whose values have been released
        self.room = Room(size)
        self.most_values = min(MOST_VALUES, _FEW_VALUES + _FEW_VALUES_OF_A_BYTE * size)
        self.most_products = _FEW_PRODUCTS + _FEW_PRODUCTS_OF_A_BYTE * size
        self.most_tiles, self.tiles = _FEW_TILES + size, 0
        self.counted = weakref.WeakSet()  # nodes whose results are in `tiles`
        self.done = set()  # nodes that have run, by id

    def read(self, keep_softmax):
        """Evaluates the graph. Returns `(SymbolicTensor of the result, True if a Softmax at the end was removed)`."""
        self.inputs = read_inputs(self.graph, self.initializers, self.layouts, self.samples, self.is_training)
        self.values |= self.inputs.values
        self.counted.update(value.source for value in self.values.values() if isinstance(value, SymbolicTensor))
        for name, value in self.values.items():
            self._check_values(f"input {quoted(name)} has", value)
        if not self.graph.output:
            raise ModelError("the graph has no output")
        results = []
        for name, tensor in self._tensors():
            results.append(_without_softmax(tensor, keep_softmax))
            self.shapes[name] = tensor.dims, tensor.batch, tensor.bare
            self.labels[name] = tensor.label
            self.left_out[name] = tensor.source.softmax if results[-1][1] else ""
        distinct, end = [], 0  # logits, probabilities and labels of the same last layer are one result
        for (tensor, _), name in zip(results, self.outputs):
            self._check_result(name, tensor)
            same = (one for other, one in distinct if tensor.source is other.source and np.array_equal(tensor.index, other.index))
            place = next(same, None)
            if place is None:
                if tensor.label:  # its index map has the numbers from which the host computes the label
                    tensor = replace(tensor, dims=(1, tensor.size), batch=None if tensor.batch is None else 0)
                place = slice(end, end + tensor.size)
                end = place.stop
                distinct.append((tensor, place))
            self.places[name] = place
        producer = self.producers.get(self.outputs[0])
        first = distinct[0][0]
        if producer is None and len(distinct) > 1:
            raise ModelError(f"output {quoted(self.outputs[0])} is an input, in a model with several outputs")
        if producer is not None:
            step = Step(producer, [], {}, self.opset)
            several = len(distinct) > 1
            first = _joined(step, [tensor for tensor, _ in distinct]) if several else uncopied(step, _without_zeros(step, first))
        return first, any(softmax for _, softmax in results)

    def _tensors(self):
        """Evaluates the outputs. Returns a list of pairs of a name and its SymbolicTensor."""
        found = {name: self._evaluate(name) for name in self.outputs}
        for name in self.outputs:
            if not isinstance(found[name], SymbolicTensor):
                raise ModelError(f"output {quoted(name)} does not depend on the input")
        return [(name, found[name]) for name in self.outputs]

    def _check_result(self, name, tensor):
        producer = self.producers.get(name)
        text = title(producer) if producer is not None else f"output {quoted(name)}"
        if tensor.batch is not None and prod(tensor.dims[: tensor.batch]) * tensor.outer != 1:
            raise ModelError(f"{text}: moves the batch; it must be the first axis of the result {show(tensor)}")
        if (tensor.index == LOWEST).any():
            raise ModelError(f"{text}: the result is padded with the lowest number, which only MaxPool can read")
        if tensor.low or hidden(tensor.index).any():
            raise ModelError(f"{text}: the result has infinite values of a mask; a mask must be added directly before a Softmax")

    def fixed_by(self, error):
        """Returns the batch size that a node requires although the batch size of the input is open. Returns None if no single
        batch size is required. `error` is the :class:`.BatchFixed` that the node raised."""
        return error.batch if self.inputs.is_open and (error.certain or self._multiplied(error.node)) else None

    def _multiplied(self, node):
        """Returns True if the values of a node, in an unchanged shape, are an operand of a matrix product. ONNX then accepts only
        one batch size."""
        names = {node.output[0]}
        for user in self.graph.node:  # in topological order
            if user.input and user.input[0] in names:
                if user.op_type in ("Gemm", "MatMul", "FusedGemm"):
                    return True
                if user.op_type in _KEEPING:
                    names.add(user.output[0])
        return False

    # Values, by name

    def _evaluate(self, name):
        """Evaluates the value `name`, and all values on which it depends. Returns the value `name`. The function is not
        recursive, because graphs may be deep."""
        stack = [name]
        while stack:
            name = stack[-1]
            if name in self.values or name in self.ended:
                stack.pop()
                continue
            if name in self.initializers:
                self.values[name] = read_constant(self.initializers[name], f"initialiser {quoted(name)}", self.folder)
                self.room.read(self.initializers[name], self.values[name])
                continue
            node = self.producers.get(name)
            if node is None:
                raise ModelError(self._missing(name))
            if id(node) in self.done:
                raise ModelError(f"{title(node)}: its output {quoted(name)} is not supported; leave it out")
            wanted = [n for n in node.input if n and n not in self.values]
            if node.domain == "ai.onnx.ml":  # the names of the classes may be strings
                wanted = [n for n in wanted if n not in self.initializers or self.initializers[n].data_type != TensorProto.STRING]
            if wanted:
                stack += wanted
                continue
            if node.op_type == "If":
                self._branch(node)
                continue
            self._run(node)
            self.done.add(id(node))
        return self.values[name]

    def _branch(self, node):
        nodes, initializers = chosen_branch(node, self.values[node.input[0]], self.opsets)
        _check_operators_of(nodes)
        self.initializers.update((tensor.name, tensor) for tensor in initializers)
        self.users.update(name for one in nodes for name in reads_of(one))
        for one in nodes:
            self.producers.update((name, one) for name in one.output if name)

    def _missing(self, name):
        users = [node for node in self.graph.node if name in node.input]
        if not users:
            return f"output {quoted(name)} is not computed by any node"
        if any(tensor.values.name == name for tensor in self.graph.sparse_initializer):
            return f"{title(users[0])}: {quoted(name)} is a sparse initialiser; store it as a plain one"
        return f"{title(users[0])}: its input {quoted(name)} is missing: no initialiser, input or node has this name"

    def _check_values(self, what, value):
        if isinstance(value, SymbolicTensor) and value.size > self.most_values:
            limit = (
                f"{self.most_values} are supported{' in so small a file; reduce its inputs' * (self.most_values < MOST_VALUES)}"
            )
            raise ModelError(f"{what} {value.size} values per sample; at most {limit}")

    def _check_work(self, step, result):
        nodes = {value.source for value in result if isinstance(value, SymbolicTensor)}
        for node in [node for node in nodes if node not in self.counted]:
            self.counted.add(node)
            self.tiles += -(-node.shape[2] // _TILE[0]) * -(-prod(node.shape[:2]) // _TILE[1])
        if self.tiles > self.most_tiles:
            raise ModelError(
                f"{step.title}: the results up to it have {self.tiles} tiles of {_TILE[0]} channels; at most {self.most_tiles} "
                f"are supported in so small a file; reduce its inputs"
            )
        if step.operator in WINDOWS and isinstance(result[0], SymbolicTensor):
            shapes = [() if one is None else getattr(one, "dims", np.shape(one)) for one in step.arguments]
            if (count := WINDOWS[step.operator](shapes, result[0].dims)) > self.most_products:
                raise ModelError(
                    f"{step.title}: takes {count} multiplications per sample; at most {self.most_products} are supported in so "
                    f"small a file; use a smaller kernel, or store all of its weights in the file"
                )

    # Nodes

    def _run(self, node):
        arguments = [self.values.get(name) if name else None for name in node.input]
        try:
            with np.errstate(all="ignore"):
                attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
                step = Step(node, arguments, attributes, self.opset, self.is_training)
                check_ranges(step)
                if any(isinstance(value, SymbolicTensor) for value in arguments):
                    result = apply(checked(step))
                    if step.training and step.operator in PHASED:
                        result = [with_pixels(step, one) for one in result]
                elif any(isinstance(value, (Sizes, Repeated)) for value in arguments):
                    result = fold_open_constants(step, self.folder, self.room.left)
                else:
                    result = fold_constants(step, self.folder, self.room.left)
                self._check_work(step, result)
        except Relayout:
            raise
        except ModelError as error:
            error.value = error.value or first_output(node)
            raise
        except Exception as error:  # numpy and onnx raise for mismatches that no check above finds
            raise ModelError(f"{title(node)}: cannot be computed: {inline(error)} ({type(error).__name__})") from None
        for name, value in zip(node.output, result):
            self._check_values(f"{title(node)}: makes", value)
            if name:
                self.values[name] = value
                _name(value, name)
                self.room.take(name, value)
        for name in set(node.input):  # index maps of large images are large, so they are released early
            self.users[name] -= 1
            if not self.users[name]:
                self.values.pop(name, None)
                self.room.release(name)
                self.ended.add(name)


def _joined(step, tensors):
    """Returns the results of several outputs as values of nodes, which are stored as they stand."""
    tensors = [uncopied(step, _without_zeros(step, tensor)) for tensor in tensors]
    read = {source for node in in_order(*(one.source for one in tensors)) for source in node.sources}
    return together(step, [one if one.source in read else in_narrower(one) for one in tensors])


def _without_zeros(step, tensor):
    """Returns a result without constant zeros, as values of nodes. `step` is the step of the last node."""
    return everything(step, stacked(step, tensor)) if (tensor.index < 0).any() else tensor


def _name(tensor, name):
    """Gives the name of an ONNX tensor to its node, if the values of the tensor are exactly the outputs of the node. If the
    values are in the order of the node, sets `node.value` and `node.view`. Otherwise sets only `node.view`."""
    if not isinstance(tensor, SymbolicTensor) or tensor.label:
        return
    if tensor.source.value is None:
        height, width, channels = tensor.source.shape
        natural = (
            tensor.batch in (0, None)
            and tensor.dims[:1] == (1,)
            and (tensor.dims[1:] == (channels, height, width) or tensor.dims[1:] == (channels,) and (height, width) == (1, 1))
        )
        if natural and np.array_equal(tensor.index, whole(tensor.source).reshape(-1)):
            tensor.source.value = name
            tensor.source.view = ValueView(name, tensor.dims[1:])
    if tensor.source.view is None and tensor.batch in (0, None) and tensor.dims[:1] == (1,):
        if has_all(tensor.index, prod(tensor.source.shape)):
            tensor.source.view = ValueView(name, tensor.dims[1:], tensor.index.astype(np.int32))


def _without_softmax(tensor, keep):
    """Removes a Softmax at the end if it covers all values of the result. Returns `(the input of the Softmax, True)`. If there
    is no such Softmax, or if `keep` is True, returns `(tensor, False)`."""
    node = tensor.source
    if not isinstance(node, Linear) or not node.softmax or keep and node.softmax == "softmax":
        return tensor, False
    complete = has_all(tensor.index, prod(node.shape))
    if not complete or node.softmax == "softmax" and node.shape[:2] != (1, 1):
        return tensor, False
    return replace(tensor, source=node.parts[0].taps[0].source), True
