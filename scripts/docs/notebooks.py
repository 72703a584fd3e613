"""Jupyter notebooks of the tutorials, made from their Markdown: code that is run becomes cells of code."""

import json
import re

__all__ = ["notebook"]

_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```\n', re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:)[^)]*\)")  # a link to another file, which a notebook does not have
_PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*")


def notebook(text):
    """Returns a tutorial as the JSON text of a notebook. Blocks whose title says that tests do not run them stay text."""
    cells, written, end = [], "", 0
    for match in _BLOCK.finditer(text):
        written += text[end : match.start()]
        end = match.end()
        language, title, code = match.groups()
        if language not in ("python", "sh") or (title or "").startswith("not run"):
            written += match[0].replace(f' title="{title}"', "")
            continue
        cells += [_cell("markdown", written), _cell("code", ("%%bash\n" if language == "sh" else "") + code)]
        written = ""
    cells.append(_cell("markdown", written + text[end:]))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [one | {"id": f"cell-{number}"} for number, one in enumerate(filter(None, cells))]
    return json.dumps({"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def _cell(kind, source):
    source = source.strip("\n")
    if kind == "markdown":
        source = _LINK.sub(r"\1", _PICTURE.sub("", source)).strip("\n")
        return {"cell_type": kind, "metadata": {}, "source": source} if source else None
    return {"cell_type": kind, "metadata": {}, "source": source, "execution_count": None, "outputs": []}
