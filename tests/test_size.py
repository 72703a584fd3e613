"""Tests that functions are short enough to be read at once."""

import ast
from pathlib import Path

import pytest

from sources import statements_of

ROOT = Path(__file__).parents[1]
#: Limit of lines of a function. An `elaborate` describes a whole circuit, and may be longer.
MOST = 60


def functions(path):
    """Yields `(name, lines)` of each function in a file, not counting its parameters and docstring."""
    for node in statements_of(path):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[1 if ast.get_docstring(node) is not None and len(node.body) > 1 else 0]
            yield f"{path.relative_to(ROOT)} {node.name}", node.end_lineno - first.lineno + 1


@pytest.mark.parametrize("top", ["hw", "sim", "scripts"])
def test_functions_are_short(top):
    long = {
        name
        for path in (ROOT / top).rglob("*.py")
        for name, lines in functions(path)
        if lines > MOST and not name.endswith(" elaborate")
    }
    assert not long
