"""The tables of `tpu run --explain` and `tpu run --layers`: type, tiling, cost and error of each layer."""

from dataclasses import asdict

from .terminal import plain
from .terminal_tables import figure_table, print_table

__all__ = ["show_plan", "show_layers", "plan_of"]


def plan_of(program):
    """Returns the tiling and cost of each layer as a dict for `--json`: `layers`, and the estimated `cycles` of a batch."""
    from amaranth_tpu.sim.tpu.layer_costs import expected_layers

    layers = []
    for number, layer in enumerate(expected_layers(program)):
        values = asdict(layer)
        del values["stalls"]
        layers.append({**values, "shape": list(layer.shape), "where": _where(program, number), "bound": layer.bound})
    return {
        "batch": program.batch,
        "n": program.config.n,
        "instructions": program.instructions,
        "cycles": program.predicted_cycles,
        "bound": program.bound,
        "layers": layers,
    }


def _where(program, number):
    """Returns a text that lists where stage `number` is computed: host, array, activation unit."""
    stage, folded = program.memory.network.stages[number], program.memory.lowered.folded
    gathered = {name for entries in folded.inputs.values() for name, term, _ in entries if term is not None}
    sources = {term.source for made in folded.step.stages if made.name == stage.name for term in made.terms}
    places = ["host gathers windows"] * bool(gathered & sources) + ["array"]
    unit = [name for name, there in (("pooling", stage.pool), ("softmax", stage.softmax), ("product", stage.times)) if there]
    return ", ".join(places + [f"activation unit: {', '.join(unit)}"] * bool(unit))


def _table(title, words, *columns):
    return figure_table(
        title, ("layer", "word"), ("what", "word"), *((name, "word" if name in words else "figure") for name in columns)
    )


def _number(value):
    return "" if value is None else f"{value:,}"


def show_plan(console, plan):
    """Prints the result of `tpu run --explain`. `plan` is from :func:`plan_of`."""
    table = _table(
        f"Plan for n = {plan['n']}, batches of {plan['batch']}, {plan['instructions']:,} instructions",
        ("where", "cut into"),
        "result",
        "where",
        "cut into",
        "MACs",
        "passes' cycles",
        "expected cycles",
    )
    for layer in plan["layers"]:
        table.add_row(
            plain(layer["name"]),
            layer["kind"],
            "x".join(map(str, layer["shape"])),
            layer["where"],
            layer["tiling"],
            *(_number(layer[name]) for name in ("macs", "compute_cycles", "cycles")),
        )
    table.add_section()
    table.add_row(
        "[bold]all",
        "",
        "",
        "",
        "",
        *(_number(sum(layer[name] for layer in plan["layers"])) for name in ("macs", "compute_cycles")),
        _number(plan["cycles"]),
    )
    print_table(console, table)
    share = f"{plan['bound'] / plan['cycles']:.1%} of the limit set by array and bus, {plan['bound']:,}"
    console.print(f"expected cycles: {plan['cycles']:,}; {share}", highlight=False)


def show_layers(console, figures):
    """Prints the layers of `tpu run --layers`. `figures` has the form of the command's `--json` output."""
    layers = figures["layers"]
    table = _table(
        "Layers, one batch in the RTL",
        ("bound by",),
        "cycles",
        "utilisation",
        "bound by",
        "words read",
        "words written",
        "largest error",
        "rms error",
        "rms value",
    )
    for layer in layers:
        error = layer["error"] or {}
        table.add_row(
            plain(layer["name"]),
            layer["kind"],
            f"{layer['cycles']:,}",
            f"{layer['utilisation']:.1%}",
            layer["bound"],
            f"{layer['read_beats']:,}",
            f"{layer['write_beats']:,}",
            *(f"{error[name]:.2g}" if error else "-" for name in ("largest", "rms", "scale")),
        )
    table.add_section()
    cycles = sum(layer["cycles"] for layer in layers)
    share = sum(layer["macs"] for layer in layers) / max(1, cycles) / figures["n"] ** 2
    table.add_row(
        "[bold]all",
        "",
        f"{cycles:,}",
        f"{share:.1%}",
        "",
        f"{sum(layer['read_beats'] for layer in layers):,}",
        f"{sum(layer['write_beats'] for layer in layers):,}",
        "",
        "",
        "",
    )
    print_table(console, table)
    console.print(
        "cycles: of a layer those in which the array took its rows, and those that it adds to the waiting", highlight=False
    )
    console.print(
        f"errors: against binary32 inference by {plain(figures['layers_against'])}, on samples of this batch", highlight=False
    )
