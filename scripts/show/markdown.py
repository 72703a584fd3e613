"""Generated tables in Markdown files. The command that measures a table writes it between two marks of a file."""

from pathlib import Path

__all__ = ["markdown_table", "section", "replace_section"]


def markdown_table(head, rows):
    """Returns a Markdown table of the headings `head` and the rows, lists of values."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _marks(name):
    return f"<!-- begin {name} -->\n", f"<!-- end {name} -->"


def section(path, name):
    """Returns the text between the marks `name` in a file."""
    begin, end = _marks(name)
    return Path(path).read_text().partition(begin)[2].partition(end)[0].strip()


def replace_section(path, name, text):
    """Replaces the text between the marks `name` in a file. Raises ValueError if the file has no such marks."""
    begin, end = _marks(name)
    whole = Path(path).read_text()
    before, found, rest = whole.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{path} has no section {name!r}")
    Path(path).write_text(f"{before}{begin}{text.strip()}\n{end}{after}")
