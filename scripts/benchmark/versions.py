"""The versions of measured rows: digests of the sources that decide a table."""

import ast
import functools
import hashlib
import re

from ..show.documents import ROOT, table_rows

__all__ = ["DECIDED_BY", "VERSION", "old_rows", "version_of", "version_of_file"]

#: Heading of the column with the version.
VERSION = "made by"
_RTL = ("hw/*.py", *(f"hw/{name}" for name in "activation arithmetic array bus control lib matmul ring softmax spec".split()))
_COMPILED = (*_RTL, "sim/frontend", "sim/functions", "sim/fusion", "sim/ir", "sim/compiler", "sim/models")
_TRAINED = ("sim/autodiff", "sim/golden", "sim/trainer")
_FPGA = (*_RTL, "hw/boards", "hw/fpga")
#: Table to the sources that decide its figures: folders, or patterns of files.
DECIDED_BY = {
    **dict.fromkeys(("utilisation", "networks", "processors", "mlperf-tiny", "transformers", "zoo"), _COMPILED),
    **dict.fromkeys(("language", "language-parts", "language-memory", "language-rtl"), _COMPILED),
    **dict.fromkeys(("training", "cores"), (*_COMPILED, *_TRAINED)),
    "gpt-training": ("sim/ir", *_TRAINED),
    **dict.fromkeys(("boards", "blocks", "devices", "options"), _FPGA),
    **dict.fromkeys(("ring", "standard-cells", "cell-layout"), _RTL),
}


@functools.cache
def _code_of(text):
    """Returns a Python source without docstrings, comments and empty lines: changes of these change no figure."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            doc = node.body[0]
            lines[doc.lineno - 1 : doc.end_lineno] = [""] * (doc.end_lineno - doc.lineno + 1)
    return "\n".join(code for line in lines if (code := re.sub(r"(^|\s+)#[^\"']*$", "", line).rstrip()))


@functools.cache
def version_of(name):
    """Returns the version of the sources that decide the table `name`, eight hexadecimal digits. Returns None for a table without
    versions."""
    return _digest(name, ROOT) if name in DECIDED_BY else None


def _digest(name, root):
    digest = hashlib.sha256()
    for path in _files(name, root):
        code = _code_of(path.read_text(encoding="utf-8"))
        digest.update(f"{path.relative_to(root).as_posix()}\n{code}\n".encode())
    return digest.hexdigest()[:8]


def _files(name, root):
    for part in DECIDED_BY[name]:
        yield from sorted((root / part).rglob("*.py") if (root / part).is_dir() else root.glob(part))


def version_of_file(name, path):
    """Returns the version of the table `name` for figures in a file; an empty text if a source is newer than the file."""
    made = path.stat().st_mtime
    return "" if any(source.stat().st_mtime > made for source in _files(name, ROOT)) else version_of(name)


def old_rows():
    """Yields `(table, first cells, version, present version)` of each row that other sources made. The version of a row from
    before versions were kept is an empty text."""
    for name in DECIDED_BY:
        for row in table_rows(name):
            if row.get(VERSION, "") != version_of(name):
                cells = [cell for heading, cell in row.items() if heading != VERSION]
                yield name, " ".join(cells[:3]), row.get(VERSION, ""), version_of(name)
