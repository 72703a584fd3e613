"""Rules of operators, from ONNX' own definition `onnx.defs` at the model's version of the operator set."""

import functools
from dataclasses import dataclass

from onnx import defs, helper

from ...data.printable import quoted
from ...ir.errors import ModelError
from ..messages import title
from ..registry import ONNX

__all__ = ["ML", "OPTIONAL", "default_of", "rules_of"]

OPTIONAL = defs.OpSchema.FormalParameterOption.Optional
#: Domain of ONNX' operators for classical machine learning.
ML = "ai.onnx.ml"


@dataclass(frozen=True)
class _Rules:
    """The rules of an operator.

    `inputs` and `outputs` have (name, type, allowed types, option, homogeneous) for each parameter. `counts` has the least and
    the largest number of inputs and of outputs. `attributes` is {name: type}. `required` has the names of the required
    attributes. `constrained` is {type variable: allowed types}.
    """

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
def _defined(operator, domain, version):
    return _Rules.of(defs.get_schema(operator, version, domain))


@functools.cache
def default_of(operator, domain, opset, attribute):
    """Returns the default value of an attribute of ONNX' own operators, or None."""
    if domain or not defs.has(operator, opset):
        return None
    known = defs.get_schema(operator, opset).attributes.get(attribute)
    return helper.get_attribute_value(known.default_value) if known is not None and known.default_value.name else None


@functools.cache
def _first_version(operator, domain):
    """Returns the first operator set that has this operator. Returns None if no operator set has it."""
    return min(
        (
            schema.since_version
            for schema in defs.get_all_schemas_with_history()
            if (schema.name, schema.domain) == (operator, domain)
        ),
        default=None,
    )


def rules_of(node, opsets):
    """Returns the rules of a node's operator. Returns None if the operators of this domain are not checked. Raises an error if
    the operator set does not have the operator."""
    domain, operator = "" if node.domain in ONNX else node.domain, node.op_type
    if domain not in opsets:
        raise ModelError(
            f"{title(node)}: the model does not say which operator set of the domain {quoted(domain)} it uses; is "
            "the file truncated?"
        )
    if (domain, operator) in _MICROSOFT:
        return _MICROSOFT[domain, operator]
    if domain not in ("", ML):
        return None
    version = opsets[domain]
    if not defs.has(operator, version, domain):
        first = _first_version(operator, domain)
        schema = None if first is None or first > version else defs.get_schema(operator, first, domain)
        raise ModelError(
            f"{title(node)}: is not an operator of ONNX"
            if first is None
            else f"{title(node)}: is only in ONNX from opset {first} on; the model uses {version}"
            if schema is None
            else f"{title(node)}: is not in opset {version} any more"
        )
    if defs.get_schema(operator, version, domain).deprecated:
        raise ModelError(f"{title(node)}: is not in opset {version} any more")
    return _defined(operator, domain, version)


# Operators of onnxruntime's optimiser, which are not in `onnx.defs`.


def _fused(most_inputs, **attributes):
    floats = frozenset({"tensor(float)", "tensor(float16)", "tensor(double)"})
    names = ("A", "B", "C") if most_inputs == 3 else ("X", "W", "B", "Z")
    inputs = tuple((name, "T", floats, OPTIONAL if position > 1 else None, True) for position, name in enumerate(names))
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
