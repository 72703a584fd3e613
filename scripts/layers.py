"""The tables of `tpu run --explain` and `--layers`: what each layer is, how it is cut, what it costs, how exact it is."""

from .terminal_tables import figure_table, print_table

__all__ = ["show_plan", "show_layers", "plan_of"]


def plan_of(network, program):
    """What the compiler chose, as a dict for `--json`: `layers`, and `cycles` expected for a batch."""
    from sim.graph import Graph
    from sim.layer_report import expected_layers

    if isinstance(network, Graph):
        layers = [{"name": layer.name, "kind": layer.kind, "shape": list(layer.shape), "tiling": layer.tiling,
                   "where": _where(program, number), "macs": layer.macs, "compute_cycles": layer.compute_cycles,
                   "cycles": layer.cycles, "utilisation": layer.utilisation, "read_beats": layer.read_beats,
                   "write_beats": layer.write_beats, "bound": layer.bound}
                  for number, layer in enumerate(expected_layers(program))]
    else:
        plan, n = program.plan, program.config.n
        layers = [{"name": layer.name, "kind": "dense" + (f", {layer.function}" if layer.function != "none" else ""),
                   "shape": [1, 1, layer.weights.shape[1]],
                   "tiling": f"{len(plan.chunks)} x {plan.chunks[0]} rows, column tiles "
                             + "+".join(map(str, plan.groups[number])),
                   "where": "array, operands on the chip" if plan.resident[number] else "array, operands streamed",
                   "macs": program.batch * layer.weights.size,
                   "compute_cycles": -(-layer.weights.shape[0] // n) * -(-layer.weights.shape[1] // n) * max(program.batch, n)}
                  for number, layer in enumerate(network.layers)]
    return {"batch": program.batch, "n": program.config.n, "instructions": program.instructions,
            "cycles": program.predicted_cycles, "bound": program.bound, "layers": layers}


def _where(program, number):
    """Of a stage: what works on it beside the array."""
    schedule = program.memory.schedule
    stage = schedule.stages[number]
    gathered = {gather.tensor.name for gather in schedule.gathers if gather.term is not None}
    places = ["array"]
    if any(term.source in gathered for term in stage.terms):
        places.insert(0, "host gathers windows")
    unit = [name for name, there in (("pooling", stage.pool), ("softmax", stage.softmax), ("product", stage.times)) if there]
    return ", ".join(places + [f"activation unit: {', '.join(unit)}"] * bool(unit))


def _table(title, words, *columns):
    return figure_table(title, ("layer", "word"), ("what", "word"),
                        *((name, "word" if name in words else "figure") for name in columns))


def show_plan(console, plan):
    """The result of `tpu run --explain`."""
    table = _table(f"Plan for n = {plan['n']}, batches of {plan['batch']}, {plan['instructions']:,} instructions",
                   ("where", "cut into"), "result", "where", "cut into", "MACs", "cycles of passes", "expected cycles")
    for layer in plan["layers"]:
        table.add_row(layer["name"], layer["kind"], "x".join(map(str, layer["shape"])), layer["where"], layer["tiling"],
                      f"{layer['macs']:,}", f"{layer['compute_cycles']:,}", f"{layer['cycles']:,}" if "cycles" in layer else "")
    print_table(console, table)
    expected = f"{plan['cycles']:,}" if plan["cycles"] else "not estimated (a long program)"
    console.print(f"expected cycles: {expected}; no schedule needs fewer than {plan['bound']:,}", highlight=False)


def show_layers(console, layers):
    """The layers of `tpu run --layers`, as :func:`scripts.tpu.run` gives them in `--json`."""
    table = _table("Layers, one batch in the RTL", ("bound by",), "cycles", "utilisation", "bound by", "words read",
                   "words written", "largest error", "rms error", "rms value")
    for layer in layers:
        error = layer["error"] or {}
        table.add_row(layer["name"], layer["kind"], f"{layer['cycles']:,}", f"{layer['utilisation']:.1%}", layer["bound"],
                      f"{layer['read_beats']:,}", f"{layer['write_beats']:,}",
                      *(f"{error[name]:.2g}" if error else "-" for name in ("largest", "rms", "scale")))
    print_table(console, table)
    console.print("errors: against binary32 inference by onnxruntime, on the same images", highlight=False)
