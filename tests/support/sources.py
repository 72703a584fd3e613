"""Statements of Python files, for tests of the sources."""

import ast
import functools


@functools.cache
def statements_of(path):
    return tuple(statements(ast.parse(path.read_text())))


def statements(node):
    """Yields the statements inside a syntax node at any depth. It leaves out expressions, three quarters of all nodes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from statements(child)
