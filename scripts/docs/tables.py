"""The alignment of Markdown tables: columns of numbers are right-aligned."""

import re

__all__ = ["with_numbers_right"]

_TABLE = re.compile(r"^\|.*\|\n\|(?: --- \|)+\n(?:\|.*\|(?:\n|\Z))+", re.MULTILINE)
_NUMBER = re.compile(r"[-+\u2212]?\d[\d,.]*(?: ?(?:%|MHz|ms|µs|s|x))?(?: of [\d,]+ \(\d+%\))?")
_NOTHING = ("", "-", "none")
#: Other cells of a column of numbers: flags, and a number with a remark.
_BESIDE_NUMBERS = re.compile(r"yes|no|\d.*")


def with_numbers_right(text):
    """Returns Markdown in which each column of numbers is right-aligned. `text` must not contain code blocks."""
    return _TABLE.sub(lambda table: _aligned(table[0]), text)


def _aligned(table):
    head, _, *rows = table.splitlines(keepends=True)
    columns = zip(*([cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip())[1:-1]] for row in rows))
    marks = ["---:" if _is_numeric(column) else "---" for column in columns]
    return "".join([head, f"| {' | '.join(marks)} |\n", *rows])


def _is_numeric(column):
    """Returns True if two thirds of the cells with content are numbers, and the others are flags or begin with a number."""
    cells = [cell for cell in column if cell not in _NOTHING]
    numbers = sum(map(bool, map(_NUMBER.fullmatch, cells)))
    return 0 < 2 * len(cells) <= 3 * numbers and all(_NUMBER.fullmatch(cell) or _BESIDE_NUMBERS.fullmatch(cell) for cell in cells)
