"""The reference page of the Python library, generated from its docstrings."""

import inspect
import re
from importlib.util import find_spec

from amaranth_tpu.sim import tpu

from ..show.markdown import markdown_table

__all__ = ["python_reference"]

_HEAD = """# Python

Module `amaranth_tpu.tpu`, from its docstrings. The examples are tests.
"""
_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`([^`]*)`")
#: The section of a class's docstring whose entries also describe arguments of its methods.
_SHARED = "Arguments of several methods"
_SECTION = re.compile(r"^([A-Z][\w ]+)\n-+$", re.MULTILINE)


def python_reference():
    """Returns the page as Markdown."""
    parts = [_HEAD, _guide(tpu.__doc__)]
    estimators = tpu.ESTIMATORS if find_spec("sklearn") else ()
    for name in (*tpu.__all__, *estimators):
        one = getattr(tpu, name)
        if inspect.isclass(one) and not issubclass(one, Exception) or inspect.isfunction(one):
            parts.append(_described(name, one, "##"))
    return "\n\n".join(parts) + "\n"


def _guide(text):
    """Returns the docstring of a module as Markdown: paragraphs, and examples as code blocks."""
    parts = _ROLE.sub(r"`\1`", inspect.cleandoc(text)).split("\n\n")
    return "\n\n".join(f"```pycon\n{part}\n```" if part.startswith(">>>") else _code(part) for part in parts)


def _described(name, one, level, shared=""):
    """Returns the Markdown section of a function or a class: heading, signature, text and, for a class, its methods. `level` is
    the heading mark, such as `##`. `shared` is the section of the class's docstring that describes arguments of several
    methods."""
    parts = [f"{level} {name}", f"```python\n{name}{_signature(one)}\n```", _text(one, shared)]
    if inspect.isclass(one):
        names = [name for kind in one.__mro__[-2::-1] for name in vars(kind)]  # methods of base classes first
        members = [name for name in names if not name.startswith("_") and inspect.isfunction(getattr(one, name))]
        sections = _SECTION.split(inspect.getdoc(one) or "")
        shared = dict(zip(sections[1::2], sections[2::2])).get(_SHARED, "")
        parts += [_described(f"{name}.{member}", getattr(one, member), level + "#", shared) for member in members]
    return "\n\n".join(parts)


def _signature(one):
    """Returns the signature as text: names and default values, without types."""
    try:
        signature = inspect.signature(one)
    except ValueError:
        return ""
    shown = [
        parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values() if parameter.name != "self"
    ]
    return re.sub(r"<factory>", "{}", str(signature.replace(parameters=shown, return_annotation=signature.empty)))


def _text(one, shared):
    """Returns a docstring as Markdown: its sections become tables and examples. For a method, the arguments described in `shared`
    are added to its parameters."""
    first, *sections = _SECTION.split(inspect.getdoc(one) or "")
    sections = dict(zip(sections[::2], sections[1::2]))
    if inspect.isfunction(one):
        names = inspect.signature(one).parameters
        entries = re.findall(r"^\w+ : .*\n(?:    .*\n?)+", inspect.cleandoc(shared), re.MULTILINE)
        own = "".join(f"{entry.strip()}\n" for entry in entries if entry.partition(" :")[0] in names)
        own += inspect.cleandoc(sections.pop("Parameters", ""))
        sections = ({"Parameters": own} if own else {}) | sections
    parts = [_code(_ROLE.sub(r"`\1`", first).strip())]
    for title, body in sections.items():
        body = _ROLE.sub(r"`\1`", body)
        parts += [f"**{title}**", _example(body) if title == "Examples" else _table(body)]
    return "\n\n".join(parts)


def _table(body):
    """Returns a section as Markdown. Each line `name : type` becomes a row of a table, with the indented lines after it as the
    meaning. Entries without types become a list."""
    rows = []
    for line in inspect.cleandoc(body).splitlines():
        if line and not line.startswith(" "):
            name, _, kind = line.partition(" : ")
            rows.append([f"`{name}`", kind.replace("|", r"\|"), ""])
        elif rows:
            rows[-1][2] = f"{rows[-1][2]} {line.strip()}".strip()
    if not any(kind for _, kind, _ in rows):
        return "\n".join(f"* {name}{f': {text}' if text else ''}" for name, _, text in rows)
    return markdown_table(["name", "type", "meaning"], rows)


def _code(text):
    """Returns text in which `::` at the end of a line is replaced by `:`. The indented lines after it are a code block in
    Markdown too."""
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)


def _example(text):
    found = re.search(r"^( *)>>> .*", inspect.cleandoc(text), re.MULTILINE | re.DOTALL)
    lines = found[0].split("\n\n")[0] if found else ""
    return f"```pycon\n{lines}\n```"
