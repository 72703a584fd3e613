"""Names of signals, taken from the source text, so that they are the same under every version of Python.

Amaranth takes the name of a signal from the byte code after its constructor. Byte code differs between versions of Python: 3.13
has a combined store and load that Amaranth does not know, and 3.14 has more such instructions. The signal then has no name. The
source text of an assignment does not depend on the version.
"""

import ast
import contextlib
import functools
import itertools
import sys
import threading

from amaranth import tracer

__all__ = ["names_from_source"]


def _pairs(target, value):
    """Yields `(target, value)` of an assignment. If both sides are tuples of the same length, yields one pair per element."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for pair in zip(target.elts, value.elts):
            yield from _pairs(*pair)
    else:
        yield target, value


@functools.cache
def _assigned(path):
    """Returns {(line, column): name} for the calls in a file whose result is assigned to a name. The position is the end of the
    call."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    names = {}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            continue
        for target, value in _pairs(node.targets[0] if isinstance(node, ast.Assign) else node.target, node.value):
            if isinstance(value, ast.Call) and isinstance(target, (ast.Name, ast.Attribute)):
                names[value.end_lineno, value.end_col_offset] = target.id if isinstance(target, ast.Name) else target.attr
    return names


_NONE = object()
#: Threads name signals one after another, or the first to end would give Amaranth's function back to the others.
_LOCK = threading.RLock()


def _get_var_name(depth=2, default=_NONE):
    """Returns the name to which the result of a call is assigned. The call is the one in the stack frame `depth` levels up. This
    function replaces `amaranth.tracer.get_var_name`."""
    frame = sys._getframe(depth)
    _, line, _, column = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    try:
        return _assigned(frame.f_code.co_filename)[line, column]
    except (KeyError, OSError):
        if default is _NONE:
            raise tracer.NameNotFound from None
        return default


@contextlib.contextmanager
def names_from_source():
    """Returns a context manager. In its `with` block, Amaranth names signals, memories and interfaces by the source text.
    Threads wait for each other."""
    with _LOCK:
        theirs, tracer.get_var_name = tracer.get_var_name, _get_var_name
        try:
            yield
        finally:
            tracer.get_var_name = theirs
