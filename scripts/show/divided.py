"""Tables of models that are divided between the core and the host: what runs where, and the results of a run."""

from .terminal import plain, show_comparison
from .terminal_tables import figure_table, print_table

__all__ = ["show_divided", "show_parts"]

_MOST_REASONS = 3


def show_parts(console, figures):
    """Prints what runs where. `figures` has the form of the command's `--json` output."""
    title = "What runs where"
    if figures.get("cycles") is not None:
        title += f": {figures['cycles']:,} cycles of the core"
    table = figure_table(
        title,
        ("part", "word"),
        ("nodes", "figure"),
        ("multiplications", "figure"),
        ("words to the core", "figure"),
        ("from the core", "figure"),
        ("why not the core", "word"),
    )
    for number, row in enumerate(figures["parts"], 1):
        why = "; ".join(row["why"][:_MOST_REASONS]) + (" ..." if row["why"][_MOST_REASONS:] else "")
        words = [f"{row[name]:,}" if row["on_core"] else "" for name in ("read_values", "write_values")]
        place = "core" if row["on_core"] else "host"
        table.add_row(f"{number} {place}", f"{row['nodes']:,}", f"{row['share']:.1%}", *words, plain(why))
    print_table(console, table)
    if figures["share"] < 0.01:
        console.print(f"The core computes {figures['share']:.2%} of the multiplications: it is not worth it for this model.")


def show_divided(console, figures):
    """Prints the result of `tpu run` of a divided model. `figures` has the form of the command's `--json` output."""
    table = figure_table(f"amaranth-tpu and host, {figures['simulator']}", ("", "word"), ("", "word"), header=False)
    table.add_row("samples", f"{figures['images']:,}, {plain(figures['data']['text'])}")
    table.add_row("on the core", f"{figures['share']:.1%} of the multiplications")
    if figures["mismatched_bits"] is not None:
        colour = "red" if figures["mismatched_bits"] else "green"
        table.add_row("against the golden model", f"[{colour}]{figures['mismatched_bits']:,} bits different[/]")
    show_comparison(table, figures["against_model"])
    for note in figures["notes"]:
        table.add_row("computed by the host in this run", f"[yellow]{plain(note)}[/]")
    table.add_row("computed in", f"{figures['seconds']:.1f} s")
    if figures["output"]:
        shape = " x ".join(map(str, figures["output"]["shape"]))
        facts = f"{shape}, {figures['output']['type']}, output {plain(figures['output']['name'])}"
        table.add_row("results", f"{plain(figures['output']['file'])}: {facts}")
    print_table(console, table)
    show_parts(console, figures)
