"""The text form of a program: a line for each tensor in host memory, a line for each stage's tiling, and a line for each
instruction. Programs with equal texts execute the same instructions."""

__all__ = ["layout_text", "program_text"]


def program_text(program):
    """Returns the text of a :class:`sim.compiler.program.Program` of a network."""
    batched, host = program.memory.batched, program.memory.host
    lines = [f"program {batched.graph.name}: batch {batched.batch}, {program.predicted_cycles} cycles"]
    for name, layout in host.layouts.items():
        region, first = host.regions.get(name, (None, 0))
        place = f"{region.name}+{first}" if region is not None else "unified buffer"
        lines.append(f"tensor {name}: {place} {layout_text(layout)}")
    lines += [f"stage {stage.name}: {_tiling(plan)}" for stage, plan in zip(batched.stages, program.plan)]
    for op in program.ops:
        fields = (f"{name}={getattr(value, 'name', value)}" for name, value in op.fields.items() if value)
        lines.append(" ".join([f"{op.stage}: {op.opcode.name}", *fields]))
    return "\n".join(lines)


def layout_text(layout):
    """Returns the axes of a layout, from the outermost to the innermost, as `name size*stride`, with `+margin` after the size."""
    axes = (f"{axis.name} {axis.size}{f'+{axis.margin}' if axis.margin else ''}*{axis.stride}" for axis in layout.axes)
    return f"[{', '.join(axes)}]" + (f" from {layout.lead}" if layout.lead else "")


def _tiling(plan):
    groups, blocks = "+".join(map(str, plan.groups)), len(plan.blocks)
    return f"jobs {plan.samples}x{plan.rows}x{plan.columns}, column tiles {groups}, blocks {blocks}, staging areas {plan.slots}"
