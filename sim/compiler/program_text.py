"""The text form of a program: a line for each tensor in host memory, a line for each stage's jobs, and a line for each
instruction. Programs with equal texts execute the same instructions."""

from amaranth_tpu.hw.spec.isa import Region

__all__ = ["program_text"]


def program_text(program):
    """Returns the text of a :class:`sim.compiler.program.Program` of a network."""
    graph = program.memory.network
    lines = [f"program {graph.name}: batch {program.batch}, {program.predicted_cycles} cycles"]
    for (name, form), matrix in program.memory.lowered.matrices.items():
        first = matrix.vector * program.config.vector_bytes
        is_stored = matrix.region is not Region.SCRATCH or first < program.sizes[matrix.region]
        place = f"{matrix.region.name}+{matrix.vector}" if is_stored else "on the chip"
        lines.append(f"tensor {name}: {place}, {form}, {matrix.tiles} x {matrix.rows} vectors")
    lines += [f"stage {stage.name}: {plan}" for stage, plan in zip(graph.stages, program.plan)]
    for op in program.ops:
        fields = (f"{name}={getattr(value, 'name', value)}" for name, value in op.fields.items() if value)
        lines.append(" ".join([f"{op.stage}: {op.opcode.name}", *fields]))
    return "\n".join(lines)
