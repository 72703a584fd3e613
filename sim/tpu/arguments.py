"""Arguments of the Python API: names with a suggestion after a typing error, objects of frameworks, and arrays from tensors."""

import functools
from difflib import get_close_matches

import numpy as np

from ..data.errors import DataError
from ..data.printable import printable
from ..trainer.errors import ArgumentError

__all__ = ["also_named", "as_array", "check_name", "check_whole", "framework_of", "needs_conversion", "shown"]

_LONGEST = 80
_CONVERSIONS = {
    "torch": "convert a PyTorch module with tpu.from_torch(module, example)",
    "keras": "convert a Keras model with tpu.from_keras(model)",
}


def also_named(name, other):
    """Returns a decorator of methods that take a keyword argument `name`: calls may name it `other` too, but not give both."""

    def decorate(method):
        @functools.wraps(method)
        def call(*given, **named):
            if other in named:
                if name in named:
                    raise ArgumentError(f"`{name}` and `{other}` are the same argument; give one")
                named[name] = named.pop(other)
            return method(*given, **named)

        return call

    return decorate


def shown(value):
    """Returns an argument for a message of one line: its `repr`, or its class if the `repr` is long or has several lines."""
    text = repr(value)
    if len(text) <= _LONGEST and "\n" not in text:
        return printable(text)
    return f"an object of {type(value).__module__}.{type(value).__qualname__}"


def check_name(argument, given, names, objects=""):
    """Raises ArgumentError if `given` is not one of `names`. The message suggests the name that was probably meant. `objects`
    names further valid arguments."""
    if isinstance(given, str) and given in names:
        return
    near = get_close_matches(given.lower(), names, 1) if isinstance(given, str) else []
    meant = f"; did you mean {near[0]!r}?" if near else ""
    raise ArgumentError(f"`{argument}` must be one of {', '.join(names)}{objects}, not {shown(given)}{meant}")


def check_whole(name, value, least=1):
    """Returns an integer argument. Raises ArgumentError if it is not an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ArgumentError(f"`{name}` must be an integer of at least {least}, not {shown(value)}")
    return int(value)


def framework_of(value):
    """Returns `torch` or `keras` for an object of this framework, else None."""
    roots = [base.__module__.partition(".")[0] for base in type(value).__mro__]
    return next((name for name in ("keras", "torch") if name in roots), None)  # a Keras model may be a torch.nn.Module, too


def needs_conversion(value):
    """Returns the words of a message after `not ...`: the argument, and for a model of a framework, the call that converts it."""
    remedy = _CONVERSIONS.get(framework_of(value))
    return f"an object of {type(value).__name__}" + (f"; {remedy}" if remedy else "")


def as_array(value):
    """Returns a tensor of PyTorch, also one that needs a gradient, or a list of numbers as a numpy array. Other arguments are
    returned unchanged. Raises DataError for a list whose parts have different shapes."""
    if hasattr(value, "detach"):
        return np.asarray(value.detach().cpu())
    try:
        return np.asarray(value) if isinstance(value, (list, tuple)) else value
    except ValueError:
        shapes = ", ".join(str(np.shape(one)) if isinstance(one, np.ndarray) else shown(one) for one in value[:3])
        raise DataError(
            f"samples: a list of {len(value)} parts of different shapes ({shapes}) is not an array; give one array with a row "
            "for each sample, and to a model with several inputs a dict of arrays by name"
        ) from None
