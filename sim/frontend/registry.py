"""The ONNX operators that the reader supports. Each is registered where its handler is, with all that the reader asks of it."""

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
#: Of what onnxruntime's optimiser makes of a linear operator and its function.
MICROSOFT = "com.microsoft"
#: Of how scikit-learn's models start and end.
ML = "ai.onnx.ml"

# Groups, as `tpu run --operators` shows them.
LINEAR, POOLS, FUNCTIONS, ELEMENTWISE = "linear", "pooling and reduction", "functions", "element by element"
SHAPES, FINAL, CONSTANTS = "shapes and order", "at the end", "between constants"
PARTS = "as part of a function that is written out"


@dataclass(frozen=True)
class Operator:
    """
    Parameters
    ----------
    handler : function or None
        Of a :class:`sim.frontend.index.values.Step` and the first of its symbolic tensors: what the node makes, one value or a
        list. None: the operator is supported as part of a written-out function, or on constants, alone.
    group : str
        What kind it is.
    domain : str
        "" of ONNX' own operators.
    on_constants : bool
        Whether it may stand between constants.
    joins : bool
        Whether it takes more than one symbolic tensor.
    shaped_by_constants : bool
        Whether its inputs but the first say which shape is wanted, so that it is the first that must be the symbolic tensor.
    counts_from_end : bool
        Whether it does the same to a tensor without its first axis, if that has a size of 1.
    keeps_labels : bool
        Whether it may come after ArgMax.
    attributes : tuple of str
        The attributes that the handler reads, or that change nothing which the reader accepts. The reader refuses any other
        attribute that is set to something else than ONNX' default.
    """

    handler: Callable | None
    group: str
    domain: str = ""
    on_constants: bool = True
    joins: bool = False
    shaped_by_constants: bool = False
    counts_from_end: bool = False
    keeps_labels: bool = False
    attributes: tuple[str, ...] = ()


#: {name: Operator}
OPERATORS = {}


def register(names, handler, group, **facts):
    """Registers operators by name; `facts` are those of :class:`Operator`. One with a handler takes the place of one without,
    whichever comes first."""
    OPERATORS.update((name, Operator(handler, group, **facts)) for name in names if handler or name not in OPERATORS)


def operator(*names, group, **facts):
    """Decorates the handler of the operators of these names."""

    def decorate(handler):
        register(names, handler, group, **facts)
        return handler

    return decorate


def operators_of(group):
    """Names of ONNX' own operators of a group."""
    return tuple(name for name, known in OPERATORS.items() if known.group == group and not known.domain)


def supported_operators():
    """{group: names of the operators}, for who asks what is supported. An operator is in one group on the way from the input to
    the output, and may be in the one of constants besides."""
    groups = {group: operators_of(group) for group in (LINEAR, POOLS, FUNCTIONS, ELEMENTWISE, SHAPES, FINAL, PARTS)}
    groups[CONSTANTS] = tuple(sorted(name for name, known in OPERATORS.items() if known.on_constants and not known.domain))
    for domain in sorted({known.domain for known in OPERATORS.values() if known.domain}, reverse=True):
        groups[f"of domain {domain}"] = tuple(name for name, known in OPERATORS.items() if known.domain == domain)
    return groups
