"""The index of the documents that contain tables of measurements, and the copies of tables and recipes in guides."""

import re
from pathlib import Path

from .markdown import replace_section, section

__all__ = [
    "CONTRIBUTING",
    "DATASHEET",
    "DOCUMENTS",
    "GUIDES",
    "README",
    "RESULTS",
    "ROOT",
    "SOFTWARE",
    "copies",
    "put_table",
    "recipe",
    "table",
    "table_rows",
    "write_copies",
]

#: Root folder of the sources.
ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
#: The folder of the guides.
GUIDES = ROOT / "scripts" / "docs"
RESULTS = ROOT / "scripts" / "benchmark" / "README.md"
DATASHEET = ROOT / "hw" / "README.md"
ZOO = ROOT / "scripts" / "benchmark" / "zoo.md"
SOFTWARE = ROOT / "sim" / "README.md"

#: Name of each table to its document; marks with the name enclose the table.
DOCUMENTS = {
    "summary": README,
    "utilisation": RESULTS,
    "networks": RESULTS,
    "processors": RESULTS,
    "seconds": RESULTS,
    "mlperf-tiny": RESULTS,
    "transformers": RESULTS,
    "language": RESULTS,
    "language-parts": RESULTS,
    "language-memory": RESULTS,
    "language-rtl": RESULTS,
    "training": RESULTS,
    "gpt-training": RESULTS,
    "cores": RESULTS,
    "boards": RESULTS,
    "options": RESULTS,
    "blocks": RESULTS,
    "devices": RESULTS,
    "ring": DATASHEET,
    "ring-words": DATASHEET,
    "cell": DATASHEET,
    "standard-cells": DATASHEET,
    "cell-layout": DATASHEET,
    "node-tests": SOFTWARE,
    "onnx-backend": SOFTWARE,
    "zoo": ZOO,
}


def table(name):
    """Returns the text of a table in its document; an empty text if no document has the table."""
    return section(DOCUMENTS[name], name) if name in DOCUMENTS else ""


def table_rows(name):
    """Returns the rows of a table in its document, as a list of {heading: text of the cell}."""
    lines = table(name).splitlines()
    if not lines:
        return []
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, line, strict=True)) for line in lines]


def put_table(name, text):
    """Writes a table into its document and into the guides that have a copy. Raises ValueError if a document has no marks for
    it."""
    replace_section(DOCUMENTS[name], name, text)
    write_copies()


def recipe(name):
    """Returns the text of a recipe in CONTRIBUTING.md; an empty text if there is no such recipe."""
    recipes = CONTRIBUTING.read_text().partition("\n## Recipes\n")[2]
    parts = re.split(r"^\*\*(.*?)\*\*", recipes, flags=re.MULTILINE)
    text = dict(zip(parts[1::2], parts[2::2])).get(name, "").lstrip(", ").rstrip()
    return text[:1].upper() + text[1:]


def copies():
    """Yields `(path, mark, text)` for each section of a guide that is a copy of a table or a recipe. `text` is the current text
    of the original. Raises ValueError for a table or recipe that does not exist.

    The mark of a section is `table NAME` or `recipe NAME`.
    """
    for path in sorted(GUIDES.rglob("*.md")):
        for mark, kind, name in re.findall(r"^<!-- begin ((table|recipe) (.*)) -->$", path.read_text(), re.MULTILINE):
            text = {"table": table, "recipe": recipe}[kind](name)
            if not text:
                raise ValueError(f"{path} copies the {mark!r}, which does not exist")
            yield path, mark, text


def write_copies():
    """Writes the current text of each table and recipe into the guides that have a copy. Raises ValueError as :func:`copies`
    does."""
    for path, mark, text in copies():
        replace_section(path, mark, text)
