"""Images of host memory: the bytes of a program's instructions, weights, biases and tables, and of a batch's samples."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Opcode, Region

from ..golden.arithmetic import bfloat16
from ..golden.function_tables import table_of
from ..ir.tiles import tiles_of
from .memory.bias_image import BiasImage
from .memory.host_tensors import host_tensor
from .memory.layout import ZEROS
from .program import Cost, Program, check_regions, cost_of
from .tiling.weight_passes import count_passes, loaded_tiles, passes_of
from .timing.model import MATMUL

__all__ = ["HostMemory", "Code", "make_code", "make_program", "array_cycles", "dense_weights", "assembled"]

#: Padding of weights: x * -0 is -0 for the zeros in the padding lanes of x, and adding -0 never changes a sum.
_PAD = 0x8000


class HostMemory:
    """The memory map of a network's program: inputs and output, and the images of biases and weights.

    Parameters
    ----------
    batched : Batched
    host : HostLayout
    config : Config
    """

    def __init__(self, batched, host, config):
        self.batched, self.host, self.n, self.network, self.output = batched, host, config.n, batched.graph, batched.graph.output

    @property
    def tensors(self):
        """Returns {name: HostTensor} of the inputs and the output."""
        found, dtype = {}, "<f4" if self.batched.wide else bfloat16
        for name in (*(gather.tensor.name for gather in self.batched.gathers), self.output):
            layout, (region, first) = self.host.layouts[name], self.host.regions[name]
            size = layout.size * self.batched.vectors(name)
            found[name] = host_tensor(region, first, size, layout.pack, partial(layout.unpack, dtype=dtype))
        return found

    def inputs(self, x):
        """Returns {name in `tensors`: values} for samples in the model's order: bfloat16, (up to batch, input size)."""
        batched, x = self.batched, np.asarray(x)
        if x.dtype != bfloat16:
            raise TypeError(f"samples must be bfloat16, not {x.dtype}")
        if x.ndim != 2 or x.shape[1] != self.network.input_size or len(x) > batched.batch:
            raise ValueError(f"samples must be of shape (up to {batched.batch}, {self.network.input_size}), not {x.shape}")
        values = self.network.arrange_inputs(x)
        return {gather.tensor.name: gather(values[gather.source]) for gather in batched.gathers}

    def output_offset(self, sample, value):
        """Returns the byte offset, in region OUTPUT, of one result: value `value`, in the model's order, of sample `sample`."""
        graph = self.network
        index = value if graph.output_order is None else int(graph.output_order[value])
        indices = map(int, np.unravel_index(index, graph.tensors[self.output].shape))
        return self.host.layouts[self.output].element(sample, *indices) * (4 if self.batched.wide else 2)

    def biases(self):
        """Returns the bias rows of all stages as bytes: binary32, padded to whole vectors with zeros."""
        return BiasImage(self.batched.stages, self.n).rows().astype("<f4").tobytes()

    def weights(self, number, column, count):
        """Returns the weight tiles that the array loads for `count` column tiles of stage `number`, starting at `column`: uint16,
        [tile, column, row]. They are ordered by pass, then by column tile."""
        stage, n = self.batched.stages[number], self.n
        tiles = self._tiles(stage, column, count)
        loads = np.array(loaded_tiles(stage, n, column, count))
        return tiles[np.arange(count) < loads[:, None]]

    def _tiles(self, stage, column, count):
        """Returns the weight tiles of all passes: uint16, [pass, column tile, column, row]."""
        n = self.n
        if count > 1 and not stage.is_uniform:
            return np.concatenate([self._tiles(stage, column + c, 1) for c in range(count)], axis=1)
        dense = [dense_weights(term, column, count, n) for term in stage.terms]
        passes = passes_of(stage, n, column)
        return (
            np.stack([dense[index][ky, kx, tile * n : (tile + 1) * n] for index, ky, kx, tile in passes])
            .reshape(len(passes), n, count, n)
            .transpose(0, 2, 3, 1)
        )


def dense_weights(term, column, count, n):
    """Returns a term's weights for `count` column tiles starting at `column`, with an entry for each channel of the source:
    bfloat16 bits as uint16, (ky, kx, rows, columns). Padding and weights between groups are -0."""
    inputs, channels = term.weights.shape[2:]
    outputs = channels // term.groups
    first, end = column * n, (column + count) * n
    dense = np.full((*term.kernel, tiles_of(inputs * term.groups, n) * n, end - first), _PAD, "<u2")
    weights = term.weights.view(np.uint16)
    for g in range(first // outputs, min(term.groups, -(-end // outputs))):
        low, high = max(first, g * outputs), min(end, (g + 1) * outputs)
        dense[:, :, g * inputs : (g + 1) * inputs, low - first : high - first] = weights[..., low:high]
    return dense


def array_cycles(batched, ops, n):
    """Returns, for each stage, the cycles in which the array accepts its rows, or waits while a tile of weights shifts in. If the
    result has samples along x, the cycles are for the whole batch as one chunk; otherwise they follow the tiling in `ops`."""
    cycles, loaded, batch = [0] * len(batched.stages), [0] * len(batched.stages), batched.batch
    for op in ops:
        if op.unit == MATMUL:
            cycles[op.stage] += op.array_cycles(n)
            loaded[op.stage] += 0 if op.keep else op.passes
    for number, stage in enumerate(batched.stages):
        if batched.is_along_x(number):
            tiles = loaded[number] // batched.chunks
            cycles[number] = tiles * max(batch, n) + (count_passes(stage, n) - tiles) * batch
    return cycles


def _tile_bytes(config):
    return INSTRUCTIONS[Opcode.LOAD_WEIGHTS].vectors(config.n) * config.vector_bytes


def _encoded(ops, config, constants, weights=0):
    """Encodes the instructions and a HALT. Returns a list with the bytes of each. Byte offsets of constants are relative to
    `constants` before, and relative to region MODEL afterwards. Tile numbers of LOAD_WEIGHTS without a region become byte
    offsets: the weights start at `weights`."""
    step, tile, words = config.instruction_bytes, _tile_bytes(config), []
    for op in ops:
        fields = dict(op.fields)
        if fields.get("region") is Region.MODEL:
            fields["offset"] += constants
        elif "region" not in fields and op.opcode is Opcode.LOAD_WEIGHTS:
            fields["offset"] = weights + fields["offset"] * tile
        words.append(encode(op.opcode, **fields).to_bytes(step, "little"))
    return [*words, encode(Opcode.HALT).to_bytes(step, "little")]


@dataclass(frozen=True)
class Code:
    """A program's encoded instructions, and the data from which its images are built again.

    Parameters
    ----------
    words : bytes
        All instructions, including HALT.
    groups : tuple
        Arguments of :meth:`HostMemory.weights` for each group of column tiles, in the order of the image.
    tiles : int
        Number of weight tiles in all groups.
    functions : tuple of Function
        Functions that have a table, in the order of the image.
    cost : Cost
    """

    words: bytes
    groups: tuple
    tiles: int
    functions: tuple
    cost: Cost


def assembled(ops, cycles, constants, sizes, config, **others):
    """Returns the :class:`Program` of instructions that are in their final order.

    Parameters
    ----------
    ops : sequence of Op
    cycles : int
        Cycles of the instructions by the timing model.
    constants : bytes
        Constants of region MODEL, which follow the instructions.
    sizes : dict of Region to int
        Vectors of each region except MODEL.
    others : dict
        Further arguments of :class:`Program`.
    """
    words = _encoded(ops, config, (len(ops) + 1) * config.instruction_bytes)
    model = b"".join([*words, constants])
    sizes = _sizes(sizes, config) | {Region.MODEL: len(model)}
    check_regions(sizes)
    cost, emit = cost_of(ops, config, cycles), partial(tuple, ops)
    return Program(model, len(words), sizes=sizes, cost=cost, config=config, emit=emit, **others)


def _constants(memory, functions, config):
    """Returns the bytes between instructions and weights: zeros, biases, and function tables."""
    tables = (table_of(function).packed() for function in functions)
    return b"".join([bytes(ZEROS * config.vector_bytes), memory.biases(), *tables])


def _first_weight(words, constants, config):
    """Returns the byte offset of the weights in region MODEL. `words` and `constants` are the sizes of the instructions and the
    constants before them."""
    align = min(_tile_bytes(config), 4096)  # with this alignment, no page boundary splits a burst within a tile
    return -(-(words + constants) // align) * align


def _sizes(vectors, config):
    return {region: size * config.vector_bytes for region, size in vectors.items()}


def _least_beats(memory, tiles, config):
    """Returns the beats of the program's input, biases and `tiles` weight tiles, each once."""
    batched, layouts = memory.batched, memory.host.layouts
    inputs = (layouts[gather.tensor.name] for gather in batched.gathers)
    vectors = sum(layout.tiles * batched.batch if layout.along_x else layout.size for layout in inputs)
    return (tiles * config.n + vectors) * config.beats_per_vector + len(memory.biases()) // config.bus_bytes


def make_code(memory, schedule, config):
    """Encodes a :class:`Schedule` for a :class:`HostMemory`. Returns the :class:`Code`. Raises CompileError if a region is too
    large."""
    ops, (order, tiles) = schedule.ops, schedule.candidate.groups
    functions = tuple(schedule.candidate.emitter.tables)
    size = (len(ops) + 1) * config.instruction_bytes
    weights = _first_weight(size, len(_constants(memory, functions, config)), config)
    check_regions({Region.MODEL: weights + tiles * _tile_bytes(config), **_sizes(memory.host.sizes, config)})
    compute = sum(array_cycles(memory.batched, ops, config.n))
    cost = cost_of(ops, config, schedule.cycles, compute, _least_beats(memory, tiles, config))
    return Code(b"".join(_encoded(ops, config, size, weights)), tuple(order), tiles, functions, cost)


def make_program(memory, plans, code, emit, config):
    """Returns the :class:`Program` with all images, from a :class:`HostMemory`, the :class:`StagePlan` of each stage, and a
    :class:`Code`. `emit()` must return the program's instructions."""
    batched, constants = memory.batched, _constants(memory, code.functions, config)
    weights = _first_weight(len(code.words), len(constants), config)
    parts = [np.ascontiguousarray(memory.weights(*group)).tobytes() for group in code.groups]
    model = b"".join([(code.words + constants).ljust(weights, b"\0"), *parts])
    assert len(model) == weights + code.tiles * _tile_bytes(config)

    return Program(
        model=model,
        instructions=len(code.words) // config.instruction_bytes,
        batch=batched.batch,
        sizes=_sizes(memory.host.sizes, config) | {Region.MODEL: len(model)},
        useful_macs=batched.batch * sum(map(batched.graph.macs, batched.graph.stages)),
        cost=code.cost,
        config=config,
        tensors=memory.tensors,
        memory=memory,
        emit=emit,
        plan=tuple(plans),
    )
