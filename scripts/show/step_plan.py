"""The table of `tpu train --explain`: the cost of each sum of a training step."""

from dataclasses import asdict

from .terminal import plain
from .terminal_tables import figure_table, print_table

__all__ = ["plan_of_step", "show_step_plan"]

_SHOWN = 2  # reasons for waiting in a row


def plan_of_step(program):
    """Returns the costs of a training step as a dict for `--json`."""
    from amaranth_tpu.sim.compiler.timing.waits import sum_costs

    return {
        "n": program.config.n,
        "batch": program.batch,
        "cores": program.cores,
        "instructions": program.instructions,
        "cycles": program.predicted_cycles,
        "bound": program.bound,
        "macs": program.useful_macs,
        "utilisation": program.useful_macs / program.predicted_cycles / program.config.n**2,
        "sums": [asdict(one) | {"cycles": one.cycles} for one in sum_costs(program)],
    }


def show_step_plan(console, plan):
    """Prints the result of `tpu train --explain`. `plan` is from :func:`plan_of_step`."""
    from amaranth_tpu.sim.compiler.timing.waits import REASONS

    cores = f", {plan['cores']} cores" if plan["cores"] > 1 else ""
    table = figure_table(
        f"A step for n = {plan['n']}, {plan['batch']} samples a core{cores}, {plan['instructions']:,} instructions",
        ("computes", "word"),
        *((name, "figure") for name in ("cycles", "array busy", "waits")),
        ("mostly for", "word"),
    )
    for one in plan["sums"]:
        most = sorted(one["waits"].items(), key=lambda wait: -wait[1])[:_SHOWN]
        reasons = ", ".join(f"{name} {cycles:,}" for name, cycles in most)
        _row(table, plain(one["name"]), one["busy"], sum(one["waits"].values()), reasons)
    table.add_section()
    busy = sum(one["busy"] for one in plan["sums"])
    _row(table, "[bold]all", busy, plan["cycles"] - busy, "")
    print_table(console, table)
    met = {name for one in plan["sums"] for name in one["waits"]}
    for name, meaning in REASONS.items():
        if name in met:
            console.print(f"{name}: {meaning}", highlight=False)
    share = f"{plan['bound'] / plan['cycles']:.1%} of the limit set by its rows and bus words, {plan['bound']:,}"
    console.print(
        f"{plan['cycles']:,} cycles by the timing model; utilisation {plan['utilisation']:.1%}; {share}", highlight=False
    )


def _row(table, name, busy, waits, reasons):
    table.add_row(name, f"{busy + waits:,}", f"{busy:,}", f"{waits:,}", reasons)
