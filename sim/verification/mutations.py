"""Mutations of Python sources: a grammar on the syntax tree, whose mutants replace one expression or drop one assignment."""

import ast
import copy
from dataclasses import dataclass

__all__ = ["Mutation", "mutations_of"]

#: Operators and the ones that replace them.
_OPERATORS = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr, ast.And: ast.Or, ast.Or: ast.And,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
#: Calls and statements without a meaning for hardware and programs: errors, descriptions, exports.
_SILENT_CALLS = ("ConfigError", "ValueError", "Field", "Instruction", "_parameter", "Register", "typer")


@dataclass(frozen=True)
class Mutation:
    """A changed source: number and text of the line, the text before and after, and the whole source with the change."""

    line: int
    code: str
    before: str
    after: str
    source: str

    @property
    def text(self):
        return f"{self.before} -> {self.after or 'nothing'}"


def _replacements(node):
    """Yields nodes that may stand in the place of an expression."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        changed = copy.copy(node)
        changed.ops = [_OPERATORS[type(node.ops[0])](), *node.ops[1:]]
        yield changed
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OPERATORS:
        changed = copy.copy(node)
        changed.op = _OPERATORS[type(node.op)]()
        yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert | ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        if not getattr(node, "is_width", False):
            yield ast.Constant(node.value + 1)
        if node.value:
            yield ast.Constant(node.value - 1)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _calls(node):
    name = ast.unparse(node.func).rpartition(".")[2]
    if name == "Mux" and len(node.args) == 3:
        yield ast.Call(node.func, [node.args[0], node.args[2], node.args[1]], node.keywords)
    elif name in ("If", "Elif") and not node.keywords:
        yield ast.Call(node.func, [ast.UnaryOp(ast.Invert(), argument) for argument in node.args], [])
    elif name in ("any", "all", "min", "max"):
        other = {"any": "all", "all": "any", "min": "max", "max": "min"}[name]
        if isinstance(node.func, ast.Name):
            yield ast.Call(ast.Name(other), node.args, node.keywords)


def _is_dropped(node):
    """Returns True for `signal.eq(value)`, which may be left out of a list of assignments, and for statements `x += ...`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "eq"


def _silent(node):
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.AnnAssign):
        return True
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
        return True
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _SILENT_CALLS


def _walk(node):
    """Yields all nodes whose meaning counts. Marks the widths of signals, because a wider signal changes nothing."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Signal", "In", "Out"):
        for part in (part for argument in node.args for part in ast.walk(argument)):
            part.is_width = True
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _silent(child):
                yield from _walk(child)


def mutations_of(source):
    """Returns all mutations of a source, in the order of its lines."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    data, found = source.encode(), []
    for node in _walk(ast.parse(source)):
        if not isinstance(node, ast.expr):
            continue
        first = starts[node.lineno - 1] + node.col_offset
        last = starts[node.end_lineno - 1] + node.end_col_offset
        before = data[first:last].decode()
        options = [f"({ast.unparse(ast.fix_missing_locations(one))})" for one in _replacements(node)]
        if _is_dropped(node):
            options.append("[]")  # Amaranth flattens lists of assignments
        for after in options:
            changed = (data[:first] + after.encode() + data[last:]).decode()
            texts = lines[node.lineno - 1].strip(), " ".join(before.split()), "" if after == "[]" else after[1:-1]
            found.append(Mutation(node.lineno, *texts, changed))
    return sorted(found, key=lambda one: one.line)
