"""Tables on a terminal. They wrap words, but never numbers."""

from rich import box
from rich.measure import Measurement
from rich.table import Table

__all__ = ["figure_table", "print_table"]


#: Minimum width of columns of words, below which a table exceeds the terminal instead; longer words are broken.
_WORD = 8


def figure_table(title, *columns, header=True):
    """Returns an empty table with the given columns: `(name, "word")` may wrap, `(name, "figure")` is right-aligned and never
    wraps."""
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
    longest = [
        max((_measure(console, cell).minimum for cell in (column.header, *column.cells)), default=0)
        for column in table.columns
        if not column.no_wrap
    ]
    return _measure(console, table).minimum - sum(max(0, width - _WORD) for width in longest)


def print_table(console, table):
    """Prints a table without cutting figures off. On a narrow terminal, the table has less padding, and is wider than the
    terminal if necessary.

    If the output is not a terminal (a pipe, CI), the length of lines is not limited.
    """
    if not console.is_terminal:
        table.width = _measure(console, table).maximum
    elif _measure(console, table).minimum > console.width:
        table.box, table.padding, table.show_edge = box.SIMPLE_HEAD, (0, 0), False
        for column in table.columns:
            column.header = str(column.header).replace(" ", "\n")
        table.width = max(console.width, _least_width(console, table))
    console.print(table, soft_wrap=True)
