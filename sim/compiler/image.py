"""The compiler for graphs of stages: graph, configuration and batch -> program and memory images."""

import numpy as np

from amaranth_tpu.hw.spec.isa import Opcode, Region, encode

from ..golden.arithmetic import bfloat16
from .codegen import GraphSchedule
from .emitter import ZEROS
from .memory_map import PAD, tiles_of
from .program import Program, check_regions, host_vectors
from .scheduling import ordered, with_weights
from .tiling import passes_of
from .timing import MATMUL, estimate, simulate

__all__ = ["GraphMemory", "compile_graph"]

_SIMULATED_PASSES = 60_000      # up to which a program's instructions are ordered by simulation


class GraphMemory:
    """Host memory of a graph: its images."""

    def __init__(self, schedule):
        self.schedule, self.graph, self.n, self.batch = schedule, schedule.graph, schedule.n, schedule.batch

    def pack_input(self, x):
        """Image of region INPUT for bfloat16 samples (up to batch, input size), in the model's order."""
        values = self.graph.arrange_input(x)
        return b"".join(self.schedule.layouts[gather.tensor.name].pack(gather(values)) for gather in self.schedule.gathers)

    def unpack_output(self, data):
        """float32 (batch, output size) from an image of region OUTPUT."""
        wide = np.dtype("<f4" if self.schedule.wide else bfloat16)
        return self.graph.arrange_output(self.schedule.layouts[self.graph.output].unpack(data, wide))

    def biases(self):
        """All bias rows, as bytes."""
        rows = []
        for stage in self.schedule.stages:
            row = np.zeros(tiles_of(stage.channels, self.n) * self.n, np.float32)
            if stage.bias is not None:
                row[:stage.channels] = stage.bias
            rows.append(row)
        return np.concatenate(rows).astype("<f4").tobytes()

    def weights(self, number, column, count):
        """Tiles of `count` column tiles of a stage, in the order of their passes: [pass, column tile, column, row]."""
        stage, n = self.schedule.stages[number], self.n
        dense = [self._dense(term, column, count) for term in stage.terms]
        passes = passes_of(stage, n, column, self.schedule.layouts)
        return np.stack([dense[index][ky, kx, tile * n:(tile + 1) * n] for index, ky, kx, tile in passes]).reshape(
            len(passes), n, count, n).transpose(0, 2, 3, 1)

    def _dense(self, term, column, count):
        """Weights of all source channels for these columns, padded and between groups -0: uint16 (ky, kx, rows, columns)."""
        inputs, channels = term.weights.shape[2:]
        outputs = channels // term.groups
        first, end = column * self.n, (column + count) * self.n
        dense = np.full((*term.kernel, tiles_of(inputs * term.groups, self.n) * self.n, end - first), PAD, "<u2")
        weights = term.weights.view(np.uint16)
        for g in range(first // outputs, min(term.groups, -(-end // outputs))):
            low, high = max(first, g * outputs), min(end, (g + 1) * outputs)
            dense[:, :, g * inputs:(g + 1) * inputs, low - first:high - first] = weights[..., low:high]
        return dense


def compile_graph(graph, config, batch):
    """See :func:`sim.compiler.compile.compile_network`."""
    schedule = GraphSchedule(graph, config, batch)
    memory = GraphMemory(schedule)
    ops, (groups, tiles) = with_weights(schedule.emitter.ops)
    passes = sum(op.passes for op in ops if op.unit == MATMUL)
    short = passes <= _SIMULATED_PASSES
    ops = ordered(ops, simulate(ops, config, ideal=True) if short else estimate(ops, config), 1)

    n, step = config.n, config.instruction_bytes
    constants = (len(ops) + 1) * step
    fixed = bytes(ZEROS * 2 * n) + memory.biases() + b"".join(
        function.table().words.astype("<u2").tobytes() for function in schedule.emitter.tables)
    tile = 2 * n * n
    align = min(tile, 4096)     # then no burst ends within a tile because of a page's end
    weights = -(-(constants + len(fixed)) // align) * align
    sizes = {region: schedule.sizes[region] * 2 * n for region in (Region.INPUT, Region.OUTPUT, Region.SCRATCH)}
    check_regions({"MODEL": weights + tiles * tile, **{region.name: size for region, size in sizes.items()}})
    words = []
    for op in ops:
        fields = dict(op.fields)
        if fields.get("region") is Region.MODEL:
            fields["offset"] += constants
        elif op.opcode is Opcode.LOAD_WEIGHTS:
            fields["offset"] = weights + fields["offset"] * tile
        words.append(encode(op.opcode, **fields).to_bytes(step, "little"))
    words.append(encode(Opcode.HALT).to_bytes(step, "little"))
    parts = [np.ascontiguousarray(memory.weights(*group)).tobytes() for group in groups]
    model = b"".join([b"".join([*words, fixed]).ljust(weights, b"\0"), *parts])
    assert len(model) == weights + tiles * tile

    beats = config.beats_per_vector
    read = host_vectors(ops, "r", n) * beats
    inputs = schedule.sizes[Region.INPUT]
    return Program(
        model=model, instructions=len(words), batch=batch, plan=schedule.plans, config=config, memory=memory,
        input_bytes=sizes[Region.INPUT], output_bytes=sizes[Region.OUTPUT], scratch_bytes=sizes[Region.SCRATCH],
        input_size=graph.input_size, output_size=graph.output_size,
        useful_macs=batch * sum(map(graph.macs, graph.stages)), passes=passes,
        compute_cycles=sum(op.passes * max(op.rows, n) for op in ops if op.unit == MATMUL),
        read_beats=read + len(words) * (step // config.bus_bytes),
        write_beats=host_vectors(ops, "w", n) * beats,
        least_beats=(tiles * n + inputs + 2 * schedule.emitter.total_biases) * beats,
        predicted_cycles=simulate(ops, config).cycles if short else None,
        ops=tuple(ops))
