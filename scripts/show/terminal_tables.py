"""Tables on a terminal: words are wrapped, numbers never."""

from rich import box
from rich.measure import Measurement
from rich.table import Table

__all__ = ["figure_table", "print_table"]


#: Columns of words become this narrow before a table becomes wider than the terminal: longer words are then broken.
_WORD = 8


def figure_table(title, *columns, header=True):
    """A table whose columns are `(name, "word")`, of text that may be wrapped, or `(name, "figure")`: right, never wrapped."""
    table = Table(title=title, title_justify="left", show_header=header)
    for name, kind in columns:
        if kind == "figure":
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    return table


def _measure(console, what):
    return Measurement.get(console, console.options.update(max_width=10_000), what)


def _least_width(console, table):
    """The width that no figure is cut at."""
    longest = [
        max((_measure(console, cell).minimum for cell in (column.header, *column.cells)), default=0)
        for column in table.columns
        if not column.no_wrap
    ]
    return _measure(console, table).minimum - sum(max(0, width - _WORD) for width in longest)


def print_table(console, table):
    """Prints a table so that no figure is cut: closer together where the terminal is narrow, and wider than it if it must be.

    Where there is no terminal (a pipe, CI), lines are as long as they need to be.
    """
    if not console.is_terminal:
        table.width = _measure(console, table).maximum
    elif _measure(console, table).minimum > console.width:
        table.box, table.padding, table.show_edge = box.SIMPLE_HEAD, (0, 0), False
        for column in table.columns:
            column.header = str(column.header).replace(" ", "\n")
        table.width = max(console.width, _least_width(console, table))
    console.print(table, soft_wrap=True)
