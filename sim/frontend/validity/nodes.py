"""Checks of the nodes of a model against ONNX' definition, before any node is evaluated: attributes, numbers of inputs and
outputs, types, and the completeness of constants."""

from math import prod

from onnx import AttributeProto, TensorProto, helper

from ...data.printable import printable, quoted
from ...ir.errors import ModelError
from ..index.values import FLOATS, INTEGERS, show
from ..messages import title
from ..registry import ONNX
from .operator_rules import OPTIONAL, rules_of

__all__ = ["check_nodes"]

_ATTRIBUTE_TYPES = {number: name for name, number in AttributeProto.AttributeType.items()}
_TENSOR_TYPES = {number: f"tensor({name.lower()})" for name, number in TensorProto.DataType.items() if number}
#: The field of an attribute that holds its value, by its type.
_FIELDS = {
    "FLOAT": "f",
    "INT": "i",
    "STRING": "s",
    "TENSOR": "t",
    "GRAPH": "g",
    "SPARSE_TENSOR": "sparse_tensor",
    "TYPE_PROTO": "tp",
    "FLOATS": "floats",
    "INTS": "ints",
    "STRINGS": "strings",
    "TENSORS": "tensors",
    "GRAPHS": "graphs",
    "SPARSE_TENSORS": "sparse_tensors",
    "TYPE_PROTOS": "type_protos",
}
_DESCRIPTIONS = ("name", "type", "doc_string")
_PADDING = ("", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")

#: Strings allowed for an attribute, which `onnx.defs` has only in prose: (operators, attribute) -> {string: first operator set}.
_WORDS = {
    (("Conv", "FusedConv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"), "auto_pad"): dict.fromkeys(_PADDING, 1),
    (("Pad",), "mode"): {"constant": 1, "reflect": 1, "edge": 1, "wrap": 19},
    (("Gelu",), "approximate"): {"none": 1, "tanh": 1},
}
#: Boolean attributes.
_FLAGS = (
    "transA",
    "transB",
    "keepdims",
    "noop_with_empty_axes",
    "ceil_mode",
    "count_include_pad",
    "allowzero",
    "training_mode",
    "select_last_index",
    "saturate",
    "storage_order",
)
#: Least values of attributes that are a number or a list of numbers.
_LEAST = {"group": 1, "strides": 1, "dilations": 1, "kernel_shape": 1}


def check_nodes(graph, opsets):
    """Raises an error if the attributes, the types, or the numbers of inputs and outputs of a node do not fit the definition of
    its operator in `opsets`, {domain: version}."""
    types = _declared(graph.input, "input")
    for tensor in graph.initializer:
        kind = _TENSOR_TYPES.get(tensor.data_type)
        if types.setdefault(tensor.name, kind) != kind:
            raise ModelError(
                f"initialiser {quoted(tensor.name)} is a {_spelt(kind)}, the input of this name a {_spelt(types[tensor.name])}"
            )
        _check_tensor(tensor, f"initialiser {quoted(tensor.name)}")
    for entry in graph.output:
        if entry.type.HasField("tensor_type") and not entry.type.tensor_type.elem_type:
            raise ModelError(f"output {quoted(entry.name)} has no type")
    declared = _declared([*graph.value_info, *graph.output], "value")
    for node in graph.node:
        rules = rules_of(node, opsets)
        if rules is not None:
            _check_node(node, rules, opsets)
            _check_types(node, rules, types, declared)


def _declared(entries, what):
    """Returns {name: type} of the tensors among `entries`. `what` describes an entry in messages."""
    types = {}
    for entry in entries:
        if entry.type.HasField("tensor_type"):
            number = entry.type.tensor_type.elem_type
            kind = _TENSOR_TYPES.get(number)
            if kind is None and number:
                raise ModelError(f"{what} {quoted(entry.name)} has the type {number}, which ONNX does not have")
            types[entry.name] = kind
    return types


def _check_tensor(tensor, what):
    """Raises an error if the number of stored values of a tensor does not fit its shape, or if the values are not in the field
    for the type of the tensor. `what` describes the tensor in messages. External tensors are checked when they are read."""
    kind = tensor.data_type
    if kind not in _TENSOR_TYPES:
        raise ModelError(f"{what} has the type {kind}, which ONNX does not have")
    if min(tensor.dims, default=0) < 0:
        raise ModelError(f"{what} has a negative size: {show(tensor.dims)}")
    fields = [field.name for field, _ in tensor.ListFields() if field.name.endswith("_data") and field.name != "external_data"]
    if tensor.data_location == TensorProto.EXTERNAL or kind not in (*FLOATS, *INTEGERS):
        return
    count = prod(tensor.dims)
    if len(fields) > 1 or count and not fields:
        raise ModelError(f"{what} of the shape {show(tensor.dims)} has its values in {len(fields)} fields, not in one")
    for field in fields:
        if field not in ("raw_data", helper.tensor_dtype_to_field(kind)):
            raise ModelError(f"{what} is a {_TENSOR_TYPES[kind]}, whose values cannot be in {field}")
        size = helper.tensor_dtype_to_np_dtype(kind).itemsize if field == "raw_data" else 1
        have = len(getattr(tensor, field))
        if have != count * size:
            raise ModelError(
                f"{what} of the shape {show(tensor.dims)} has {have} "
                f"{'bytes' if field == 'raw_data' else 'values'}, {count * size} are needed; is the file truncated?"
            )


def _check_node(node, rules, opsets):
    for (what, least, most), names, parameters in zip(rules.counts, (node.input, node.output), (rules.inputs, rules.outputs)):
        if not least <= len(names) <= most:
            wanted = str(least) if least == most else f"{least} or more" if most > 1 << 30 else f"{least} to {most}"
            raise ModelError(f"{title(node)}: has {len(names)} {what}{'s' * (len(names) != 1)}, {wanted} are needed")
        for position, name in enumerate(names):
            parameter = parameters[min(position, len(parameters) - 1)]
            if not name and parameter[3] is not OPTIONAL and (what == "input" or position == 0):
                raise ModelError(f"{title(node)}: its {what} {position + 1}, {parameter[0]}, is left out")
    seen = {}
    for attribute in node.attribute:
        name, kind = attribute.name, _ATTRIBUTE_TYPES.get(attribute.type, str(attribute.type))
        if name not in rules.attributes:
            there = ", ".join(sorted(rules.attributes)) or "none"
            raise ModelError(
                f"{title(node)}: has no attribute {quoted(name)} in opset "
                f"{opsets['' if node.domain in ONNX else node.domain]}, where there are: {there}"
            )
        if name in seen:
            raise ModelError(f"{title(node)}: has its attribute {name} twice")
        if kind != rules.attributes[name]:
            raise ModelError(f"{title(node)}: its attribute {name} is of the type {kind}, not {rules.attributes[name]}")
        fields = {field.name for field, _ in attribute.ListFields()}.difference(_DESCRIPTIONS)
        if fields - {_FIELDS[kind]} or kind == "TENSOR" and not fields:  # zeros need not be written
            raise ModelError(f"{title(node)}: its attribute {name} has no value, or one that is not of the type {kind}")
        seen[name] = helper.get_attribute_value(attribute)
    for name in rules.required:
        if name not in seen:
            raise ModelError(f"{title(node)}: its attribute {name} is missing")
    _check_values(node, seen, opsets)


def _check_values(node, attributes, opsets):
    for (operators, name), words in _WORDS.items():
        if node.op_type in operators and name in attributes:
            word = attributes[name].decode("utf-8", "replace")
            if words.get(word, 1 << 30) > opsets[""]:
                there = ", ".join(word for word, first in words.items() if word and first <= opsets[""])
                raise ModelError(f"{title(node)}: {name} is {quoted(word)}; it can be one of: {there}")
    for name in _FLAGS:
        if attributes.get(name, 0) not in (0, 1):
            raise ModelError(f"{title(node)}: {name} is {attributes[name]}; it can be 0 or 1")
    for name, least in _LEAST.items():
        values = attributes.get(name, least)
        if min(values if isinstance(values, list) else [values], default=least) < least:
            raise ModelError(f"{title(node)}: {name} is {printable(values, 60)}, at least {least} is needed")
    if attributes.get("auto_pad", b"") not in (b"", b"NOTSET") and any(attributes.get("pads", ())):
        raise ModelError(f"{title(node)}: has both auto_pad and pads; leave one out")
    if node.op_type == "Constant" and len(attributes) != 1:
        raise ModelError(f"{title(node)}: needs one value, not {len(attributes)}")
    if isinstance(attributes.get("value"), TensorProto):
        _check_tensor(attributes["value"], title(node))


# Types


def _spelt(kind):
    return kind or "tensor without a type"


def _check_types(node, rules, types, declared):
    """Checks the types of the inputs of a node against the `rules` of its operator. Adds the types of the outputs of the node to
    `types`, {name: type}. `declared` has the types that the file declares."""
    bound = {}
    for position, name in enumerate(node.input):
        parameter, variable, allowed, _, homogeneous = rules.inputs[min(position, len(rules.inputs) - 1)]
        kind = types.get(name) if name else None
        if kind is None:
            continue
        if kind not in allowed:
            raise ModelError(
                f"{title(node)}: its input {parameter}, {quoted(name)}, is a {kind}; allowed are "
                f"{', '.join(sorted(allowed))}; put a Cast before it"
            )
        if homogeneous and variable in rules.constrained and bound.setdefault(variable, (kind, name))[0] != kind:
            raise ModelError(
                f"{title(node)}: its inputs {quoted(bound[variable][1])} and {quoted(name)} are of two types, "
                f"{bound[variable][0]} and {kind}; put a Cast before one"
            )
    for position, name in enumerate(node.output):
        _, variable, allowed, *_ = rules.outputs[min(position, len(rules.outputs) - 1)]
        kind = bound[variable][0] if variable in bound else next(iter(allowed)) if len(allowed) == 1 else _made(node)
        if not name or kind is None:
            continue
        if kind not in allowed:
            raise ModelError(f"{title(node)}: makes a {kind}; allowed are {', '.join(sorted(allowed))}")
        if declared.get(name) not in (None, kind):
            raise ModelError(f"{title(node)}: makes a {kind}, though the file says that {quoted(name)} is a {declared[name]}")
        types[name] = kind


def _made(node):
    """Returns the output type that the attributes of a Cast, Constant or ConstantOfShape give. Returns None for other nodes."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "Cast":
        number = attributes["to"].i
        if number not in _TENSOR_TYPES:
            raise ModelError(f"{title(node)}: to is {number}, which is not a type of ONNX")
        return _TENSOR_TYPES[number]
    if node.op_type in ("Constant", "ConstantOfShape"):
        if "value" in attributes:
            return _TENSOR_TYPES.get(attributes["value"].t.data_type)
        kinds = {
            "value_float": "tensor(float)",
            "value_floats": "tensor(float)",
            "value_int": "tensor(int64)",
            "value_ints": "tensor(int64)",
            "value_string": "tensor(string)",
            "value_strings": "tensor(string)",
        }
        return next(
            (kind for name, kind in kinds.items() if name in attributes),
            "tensor(float)" if node.op_type == "ConstantOfShape" else None,
        )
    return None
