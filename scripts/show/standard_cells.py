"""The table of a core in standard cells."""

from .terminal_tables import figure_table, print_table

__all__ = ["show_standard_cells"]


def _row(counts):
    names = ("area_um2", "gate_equivalents", "registers", "memory_bits")
    return [f"{counts[name]:,.0f}" for name in names]


def show_standard_cells(console, report):
    """Prints the result of `tpu synth` for standard cells. `report` has the form of the command's `--json` output."""
    table = figure_table(
        f"n = {report['n']} in the standard cells of {report['target']}, before placement",
        ("block", "word"),
        ("µm²", "figure"),
        ("gate equivalents", "figure"),
        ("registers", "figure"),
        ("memory bits, not in the area", "figure"),
    )
    for block, counts in report["blocks"].items():
        table.add_row(block, *_row(counts))
    table.add_section()
    table.add_row("[bold]all", *(f"[bold]{text}" for text in _row(report)))
    print_table(console, table)
    cell = report["cell"]
    energies = f"{cell['energy_pj']:.1f} pJ a multiply-accumulate, or {cell['energy_with_glitches_pj']:.1f} pJ with glitches"
    console.print(
        f"cell: {cell['area_um2']:,.0f} µm², {cell['gate_equivalents']:,} equivalents, {cell['delay_ns']:.2f} ns, {energies}",
        soft_wrap=True,
        highlight=False,
    )
    if layout := report["layout"]:
        console.print(
            f"layout of the cell: {layout['area_um2']:,.0f} µm², {layout['cells']:,} cells, "
            f"{layout['delay_ns']:.2f} ns with wires, {layout['wire_mm']:.0f} mm of wires in {layout['nets']:,} nets, "
            f"{layout['drc_errors']} DRC errors, {layout['lvs_errors']} LVS errors",
            soft_wrap=True,
            highlight=False,
        )
    console.print(f"longest path: {report['slowest_delay_ns']:.2f} ns in {report['slowest_module']}", highlight=False)
    console.print(report["left_out"], soft_wrap=True, highlight=False)
