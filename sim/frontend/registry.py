"""The registry of supported ONNX operators. Each module of handlers registers its operators, with the properties that the reader
checks."""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = [
    "ONNX",
    "MICROSOFT",
    "ML",
    "LINEAR",
    "POOLS",
    "FUNCTIONS",
    "ELEMENTWISE",
    "SHAPES",
    "FINAL",
    "PARTS",
    "CONSTANTS",
    "OPERATORS",
    "Operator",
    "operator",
    "register",
    "operators_of",
    "supported_operators",
]

#: Domains of the operators that ONNX itself defines.
ONNX = ("", "ai.onnx")
#: Domain of the operators that onnxruntime's optimiser fuses from a linear operator and its function.
MICROSOFT = "com.microsoft"
#: Domain of the first and last operators of scikit-learn's models.
ML = "ai.onnx.ml"

# Groups in the output of `tpu run --operators`.
LINEAR, POOLS, FUNCTIONS, ELEMENTWISE = "linear", "pooling and reduction", "functions", "element by element"
SHAPES, FINAL, CONSTANTS = "shapes and order", "at the end", "between constants"
PARTS = "as part of a function that is written out"


@dataclass(frozen=True)
class Operator:
    """A supported operator."""

    #: Function that takes a :class:`sim.frontend.index.values.Step` and the first symbolic tensor of the step. It returns the
    #: outputs of the node, as one value or a list. None: the operator is supported only on constants, or as part of a function
    #: that is recognised.
    handler: Callable | None
    group: str  # group of the operator in lists for users, one of the constants above
    domain: str = ""  # ONNX domain; "" for ONNX' own operators
    on_constants: bool = True  # True if constant folding supports the operator
    joins: bool = False  # True if the operator takes more than one symbolic tensor
    #: True if all inputs but the first give the shape and must be constant. The first input must then be the symbolic tensor.
    shaped_by_constants: bool = False
    #: True if the result is the same after an axis of size 1 is removed from the front of the tensor.
    counts_from_end: bool = False
    keeps_labels: bool = False  # True if the operator may follow ArgMax
    #: Attributes that the handler reads, and attributes without effect in supported cases. The reader refuses any other attribute
    #: whose value is not ONNX' default.
    attributes: tuple[str, ...] = ()


#: {name: Operator}
OPERATORS = {}


def register(names, handler, group, **facts):
    """Registers operators by name. `facts` are further members of :class:`Operator`. A registration with a handler replaces a
    registration without a handler, in either order."""
    OPERATORS.update((name, Operator(handler, group, **facts)) for name in names if handler or name not in OPERATORS)


def operator(*names, group, **facts):
    """Registers the decorated function as the handler of the operators `names`."""

    def decorate(handler):
        register(names, handler, group, **facts)
        return handler

    return decorate


def operators_of(group):
    """Returns the names of ONNX' own operators in a group."""
    return tuple(name for name, known in OPERATORS.items() if known.group == group and not known.domain)


def supported_operators():
    """Returns {group: names of its operators}, for users. An operator belongs to one group for symbolic tensors. It may also
    belong to the group of operators on constants."""
    groups = {group: operators_of(group) for group in (LINEAR, POOLS, FUNCTIONS, ELEMENTWISE, SHAPES, FINAL, PARTS)}
    groups[CONSTANTS] = tuple(sorted(name for name, known in OPERATORS.items() if known.on_constants and not known.domain))
    for domain in sorted({known.domain for known in OPERATORS.values() if known.domain}, reverse=True):
        groups[f"of domain {domain}"] = tuple(name for name, known in OPERATORS.items() if known.domain == domain)
    return groups
