"""Holds a model against ONNX' own definition, before anything of it is evaluated.

Each operator's attributes, numbers of inputs and outputs, and types are those of `onnx.defs`, at the version of the operator set
that the model names; names are given once, and nodes come after those that they need. What depends on shapes and on the values
of constants is checked when a node is read (:mod:`sim.frontend.check_ranges`).
"""

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import onnx
from onnx import AttributeProto, TensorProto, defs, helper

from ..data.printable import printable, quoted
from ..ir.errors import ModelError
from .messages import title
from .registry import ONNX
from .values import FLOATS, INTEGERS, show

__all__ = ["check_text", "check_header", "check_names", "check_nodes"]

_OPTIONAL = defs.OpSchema.FormalParameterOption.Optional
_ML = "ai.onnx.ml"
_ATTRIBUTE_TYPES = {number: name for name, number in AttributeProto.AttributeType.items()}
_TENSOR_TYPES = {number: f"tensor({name.lower()})" for name, number in TensorProto.DataType.items() if number}
#: The field of an attribute that has the value, by its type.
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
_OLDEST = 8  # operator set that the reader knows
_PADDING = ("", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")

#: Words that an attribute may have, which `onnx.defs` only has in prose: (operators, attribute) -> {word: first operator set}.
_WORDS = {
    (("Conv", "FusedConv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"), "auto_pad"): dict.fromkeys(_PADDING, 1),
    (("Pad",), "mode"): {"constant": 1, "reflect": 1, "edge": 1, "wrap": 19},
    (("Gelu",), "approximate"): {"none": 1, "tanh": 1},
}
#: Attributes that say yes or no.
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
#: Attributes that are a number of at least this, or a list of such.
_LEAST = {"group": 1, "strides": 1, "dilations": 1, "kernel_shape": 1}


# The file


def check_text(message):
    """Refuses names in a file that are not text; protobuf gives them as bytes."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            for text in value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else (value,):
                if isinstance(text, bytes):
                    raise ModelError(
                        f"its {message.DESCRIPTOR.name} has a {field.name} that is not UTF-8 text: "
                        f"{printable(text, 60)}; is the file damaged?"
                    )
        elif field.type == field.TYPE_MESSAGE:
            for inner in value if isinstance(value, Sequence) else (value,):
                check_text(inner)


def check_header(model):
    """Refuses versions that are unknown, and returns {domain: version of its operator set}, "" for ONNX' own domain."""
    if not 1 <= model.ir_version <= onnx.IR_VERSION:
        raise ModelError(
            f"IR version {model.ir_version} is not one of 1 to {onnx.IR_VERSION}, which the onnx package knows; "
            "export the model again, or install a newer onnx"
        )
    known = {"": defs.onnx_opset_version(), _ML: max(row[3] for row in helper.VERSION_TABLE)}
    opsets = {}
    for entry in model.opset_import:
        domain = "" if entry.domain in ONNX else entry.domain
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise ModelError(f"two operator sets, {opsets[domain]} and {entry.version}, of the domain {quoted(domain)}")
        if domain in known and not 1 <= entry.version <= known[domain]:
            raise ModelError(
                f"opset {entry.version} of the domain {quoted(domain or ONNX[1])} is not one of 1 to "
                f"{known[domain]}, which the onnx package knows; export the model for one of these, or install a "
                "newer onnx"
            )
    if "" not in opsets:
        raise ModelError("the file does not say which operator set it uses; is it truncated?")
    if opsets[""] < _OLDEST:
        raise ModelError(f"opset {opsets['']} is too old; convert the model to {_OLDEST} or later (onnx.version_converter)")
    return opsets


def check_names(graph, opsets, ir_version):
    """Refuses names that are given twice or missing, nodes that come before those that they need, and operators that ONNX does
    not have in these `opsets`."""
    makers = _constants(graph, ir_version)
    outputs = Counter(entry.name for entry in graph.output)
    twice = next((name for name, count in outputs.items() if count > 1), None)
    if twice is not None:
        raise ModelError(f"output {quoted(twice)} is named twice among the graph's outputs")
    for node in graph.node:
        for name in filter(None, node.output):
            if name in makers:
                other = makers[name]
                raise ModelError(
                    f"{title(node)}: makes {quoted(name)}, which is {other}"
                    if isinstance(other, str)
                    else f"two nodes make {quoted(name)}: {title(other)} and {title(node)}"
                )
            makers[name] = node
    for node in graph.node:
        _rules(node, opsets)
    _check_order(graph, makers)


def check_nodes(graph, opsets):
    """Refuses whatever of a node is not as its operator is defined in these `opsets`: attributes, numbers of inputs and outputs,
    and types."""
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
        rules = _rules(node, opsets)
        if rules is not None:
            _check_node(node, rules, opsets)
            _check_types(node, rules, types, declared)


def _constants(graph, ir_version):
    """{name: what it is} of the inputs and the initialisers."""
    inputs = Counter(entry.name for entry in graph.input)
    names = [*(tensor.name for tensor in graph.initializer), *(tensor.values.name for tensor in graph.sparse_initializer)]
    constants = Counter(names)
    for what, count in (("input", inputs), ("initialiser", constants)):
        for name, times in count.items():
            if not name:
                raise ModelError(f"an {what} has no name")
            if times > 1:
                raise ModelError(f"there are {times} {what}s with the name {quoted(name)}")
    if ir_version < 4:
        for name in constants:
            if name not in inputs:
                raise ModelError(
                    f"initialiser {quoted(name)} is not among the graph's inputs, as it must be before IR version "
                    f"4; this is {ir_version}"
                )
    return {**dict.fromkeys(inputs, "an input"), **dict.fromkeys(constants, "an initialiser")}


def _declared(entries, what):
    """{name: type} of the tensors among these."""
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
    """That a tensor has as many values as its sizes say, in the field for its type. External ones are checked when they are
    read."""
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
            raise ModelError(f"{what} is a {_TENSOR_TYPES[kind]}, whose values can't be in {field}")
        size = helper.tensor_dtype_to_np_dtype(kind).itemsize if field == "raw_data" else 1
        have = len(getattr(tensor, field))
        if have != count * size:
            raise ModelError(
                f"{what} of the shape {show(tensor.dims)} has {have} "
                f"{'bytes' if field == 'raw_data' else 'values'}, {count * size} are needed; is the file truncated?"
            )


def _check_order(graph, makers):
    """That each node comes after those that it needs."""
    made = {name for name, maker in makers.items() if isinstance(maker, str)}
    late = None
    for node in graph.node:
        late = late or next(((node, name) for name in node.input if name in makers and name not in made), None)
        made.update(node.output)
    if late:
        node, name = late
        cycle = _cycle(graph, makers)
        if cycle:
            raise ModelError(f"{title(cycle)}: the graph is cyclic: {quoted(cycle.output[0])} depends on itself")
        raise ModelError(
            f"{title(node)}: comes before {title(makers[name])}, which makes its input {quoted(name)}; the nodes "
            "of a model must be in an order in which they can run"
        )


def _cycle(graph, makers):
    """A node that depends on itself, or None."""
    waiting = {
        id(node): {id(makers[name]) for name in node.input if not isinstance(makers.get(name, ""), str)} for node in graph.node
    }
    users = {}
    for node in graph.node:
        for needed in waiting[id(node)]:
            users.setdefault(needed, []).append(node)
    ready = [node for node in graph.node if not waiting[id(node)]]
    while ready:
        done = ready.pop()
        for user in users.get(id(done), ()):
            waiting[id(user)].discard(id(done))
            if not waiting[id(user)]:
                ready.append(user)
    node, seen = next((node for node in graph.node if waiting[id(node)]), None), set()
    nodes = {id(node): node for node in graph.node}
    while node is not None and id(node) not in seen:  # from any that waits, back to one that is met again
        seen.add(id(node))
        node = nodes[next(iter(waiting[id(node)]))]
    return node


# A node


@dataclass(frozen=True)
class _Rules:
    """Of an operator: (name, type, types allowed, option, homogeneous) of each input and output, their numbers, {attribute: type}
    and the attributes that must be there."""

    inputs: tuple
    outputs: tuple
    counts: tuple
    attributes: dict
    required: tuple
    constrained: dict

    @classmethod
    def of(cls, schema):
        def each(parameters):
            return tuple((p.name, p.type_str, frozenset(p.types), p.option, p.is_homogeneous) for p in parameters)

        return cls(
            each(schema.inputs),
            each(schema.outputs),
            (("input", schema.min_input, schema.max_input), ("output", schema.min_output, schema.max_output)),
            {name: one.type.name for name, one in schema.attributes.items()},
            tuple(name for name, one in schema.attributes.items() if one.required),
            {one.type_param_str: tuple(one.allowed_type_strs) for one in schema.type_constraints},
        )


@functools.cache
def _rules_of(operator, domain, version):
    return _Rules.of(defs.get_schema(operator, version, domain))


@functools.cache
def _first_version(operator, domain):
    """The first operator set that has an operator, or None."""
    return min(
        (
            schema.since_version
            for schema in defs.get_all_schemas_with_history()
            if (schema.name, schema.domain) == (operator, domain)
        ),
        default=None,
    )


def _rules(node, opsets):
    """The rules of a node's operator, or None for one of a domain that is not checked."""
    domain, operator = "" if node.domain in ONNX else node.domain, node.op_type
    if domain not in opsets:
        raise ModelError(
            f"{title(node)}: the model does not say which operator set of the domain {quoted(domain)} it uses; is "
            "the file truncated?"
        )
    if (domain, operator) in _MICROSOFT:
        return _MICROSOFT[domain, operator]
    if domain not in ("", _ML):
        return None
    version = opsets[domain]
    if not defs.has(operator, version, domain):
        first = _first_version(operator, domain)
        schema = None if first is None or first > version else defs.get_schema(operator, first, domain)
        raise ModelError(
            f"{title(node)}: there is no such operator in ONNX"
            if first is None
            else f"{title(node)}: is only in ONNX from opset {first} on; the model uses {version}"
            if schema is None
            else f"{title(node)}: is not in opset {version} any more"
        )
    if defs.get_schema(operator, version, domain).deprecated:
        raise ModelError(f"{title(node)}: is not in opset {version} any more")
    return _rules_of(operator, domain, version)


def _check_node(node, rules, opsets):
    for (what, least, most), names, parameters in zip(rules.counts, (node.input, node.output), (rules.inputs, rules.outputs)):
        if not least <= len(names) <= most:
            wanted = str(least) if least == most else f"{least} or more" if most > 1 << 30 else f"{least} to {most}"
            raise ModelError(f"{title(node)}: has {len(names)} {what}{'s' * (len(names) != 1)}, {wanted} are needed")
        for position, name in enumerate(names):
            parameter = parameters[min(position, len(parameters) - 1)]
            if not name and parameter[3] is not _OPTIONAL and (what == "input" or position == 0):
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
        raise ModelError(f"{title(node)}: has auto_pad and pads, of which only one can hold")
    if node.op_type == "Constant" and len(attributes) != 1:
        raise ModelError(f"{title(node)}: needs one value, not {len(attributes)}")
    if isinstance(attributes.get("value"), TensorProto):
        _check_tensor(attributes["value"], title(node))


# Types


def _spelt(kind):
    return kind or "tensor without a type"


def _check_types(node, rules, types, declared):
    """Holds the types of a node's inputs against its operator's, and enters those of its outputs into `types`."""
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
    """The type that a node's attributes say that it makes, or None."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "Cast":
        number = attributes["to"].i
        if number not in _TENSOR_TYPES:
            raise ModelError(f"{title(node)}: to is {number}, which is no type of ONNX")
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


# What onnxruntime's optimiser makes, which `onnx.defs` does not know.


def _fused(most_inputs, **attributes):
    floats = frozenset({"tensor(float)", "tensor(float16)", "tensor(double)"})
    names = ("A", "B", "C") if most_inputs == 3 else ("X", "W", "B", "Z")
    inputs = tuple((name, "T", floats, _OPTIONAL if position > 1 else None, True) for position, name in enumerate(names))
    return _Rules(
        inputs,
        (("Y", "T", floats, None, True),),
        (("input", 2, most_inputs), ("output", 1, 1)),
        {"activation": "STRING", **attributes},
        (),
        {"T": tuple(floats)},
    )


_MICROSOFT = {
    ("com.microsoft", "FusedGemm"): _fused(
        3,
        alpha="FLOAT",
        beta="FLOAT",
        transA="INT",
        transB="INT",
        activation_alpha="FLOAT",
        activation_beta="FLOAT",
        activation_gamma="FLOAT",
    ),
    ("com.microsoft", "FusedConv"): _fused(
        4,
        activation_params="FLOATS",
        auto_pad="STRING",
        dilations="INTS",
        group="INT",
        kernel_shape="INTS",
        pads="INTS",
        strides="INTS",
    ),
}
