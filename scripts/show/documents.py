"""Which document of the repository has which table of measurements. Nothing else says it."""

from pathlib import Path

from .markdown import replace_section, section

__all__ = ["DATASHEET", "DOCUMENTS", "README", "RESULTS", "ROOT", "put_table", "table", "table_rows"]

#: Of the sources.
ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
RESULTS = ROOT / "scripts" / "benchmark" / "README.md"
DATASHEET = ROOT / "hw" / "README.md"

#: Documents by the names of their tables, between marks of these names.
DOCUMENTS = {
    "summary": README,
    "utilisation": RESULTS,
    "networks": RESULTS,
    "processors": RESULTS,
    "mlperf-tiny": RESULTS,
    "training": RESULTS,
    "cores": RESULTS,
    "boards": RESULTS,
    "devices": RESULTS,
    "ring": DATASHEET,
    "ring-words": DATASHEET,
    "cell": DATASHEET,
}


def table(name):
    """A table's text in its document; empty if no document has such a table."""
    return section(DOCUMENTS[name], name) if name in DOCUMENTS else ""


def table_rows(name):
    """The rows of a table in its document: a list of {heading: text}."""
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(name).splitlines()]
    return [dict(zip(head, line, strict=True)) for line in lines]


def put_table(name, text):
    """Puts a table into its document. Raises ValueError if its marks are not there."""
    replace_section(DOCUMENTS[name], name, text)
