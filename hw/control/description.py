"""The decoded form of a checked instruction word: its footprint, and the operation for its unit."""

from functools import cache, reduce
from operator import or_

from amaranth import Cat, Mux
from amaranth.lib import data
from amaranth.utils import bits_for, exact_log2

from ..spec.instruction import Unit
from ..spec.isa import TABLE_SETTINGS, Condition, Format, FunctionCode, Opcode, Region, Task, WeightFormat, space_depth, spaces_of
from ..spec.operations import activate_layout, matmul_layout, ring_layout, transfer_layout

__all__ = ["decoded_layout", "describe", "footprint_layout", "packed_vectors"]


@cache
def footprint_layout(config):
    """Returns the layout of a footprint. It has, for each memory, the first and the last row accessed, and flags for read and
    write."""

    def span(width):
        return data.StructLayout({"first": width, "last": width, "reads": 1, "writes": 1})

    depths = {space: bits_for(space_depth(config, space) - 1) for space in spaces_of(config)}
    return data.StructLayout(
        {"unit": Unit, "region": Region, "host": span(32), **{space: span(width) for space, width in depths.items()}}
    )


@cache
def decoded_layout(config):
    """Returns the layout of a checked instruction. Only the operation for `footprint.unit` is valid. `pc`
    is the instruction's offset in region MODEL."""
    return data.StructLayout(
        {
            "halt": 1,
            "pc": 32,
            "footprint": footprint_layout(config),
            "transfer": transfer_layout(config),
            "matmul": matmul_layout(config),
            "activate": activate_layout(config),
            **({"ring": ring_layout(config)} if config.ring else {}),
        }
    )


def describe(m, o, word, *, pc, base, host_end, extents):
    """Adds the logic that connects the fields of an :class:`.InstructionWord` to its footprint and to the operations of the
    units.

    Parameters
    ----------
    m : Module
    o : View of decoded_layout
        Driven combinationally.
    pc : Signal
        Offset of the instruction in region MODEL.
    base, host_end : Signal
        Base address of the region, and offset of the first byte after the transfer.
    extents : SpanExtents
    """
    matmul = word[Opcode.MATMUL]
    m.d.comb += [
        o.halt.eq(word.one_of(Opcode.HALT)),
        *(o.matmul[name].eq(matmul[name]) for name in word.records[Opcode.MATMUL].widths),
        o.matmul.rows.eq(extents.rows),
        o.matmul.single0.eq(matmul.tiles0 == 1),
        o.matmul.single1.eq(matmul.tiles1 == 1),
        o.pc.eq(pc),
    ]
    _describe_footprint(m, o.footprint, word, host_end, extents)
    _describe_transfer(m, o.transfer, word, base)
    _describe_activate(m, o.activate, word)
    if word.config.ring:
        ring = word[Opcode.RING]
        m.d.comb += [o.ring[name].eq(ring[name]) for name in word.records[Opcode.RING].widths]


def _describe_footprint(m, footprint, word, host_end, extents):
    transfer = word[Opcode.LOAD]
    m.d.comb += [
        footprint.region.eq(transfer.region),
        footprint.host.first.eq(transfer.offset),
        footprint.host.last.eq(host_end - 1),
        footprint.host.reads.eq(word.where(lambda record: record.transfer and record.transfer.use == "r")),
        footprint.host.writes.eq(word.where(lambda record: record.transfer and record.transfer.use == "w")),
        footprint.buffer.last.eq(extents.last_buffer),
        footprint.acc.last.eq(extents.last_acc),
        footprint.bias.last.eq(extents.last_bias),
        *([footprint.update.last.eq(extents.last_update)] if word.config.update_lanes else []),
        footprint.unit.eq(word.choose({opcode: record.unit.value for opcode, record in word.records.items()})),
    ]
    for space in spaces_of(word.config):
        _describe_use(m, footprint[space], word, space, extents.behind)


def _describe_use(m, use, word, space, behind):
    touching = {opcode: spans for opcode, record in word.records.items() if (spans := record.spans_of(space))}
    for side, letter in ((use.reads, "r"), (use.writes, "w")):
        uses = {
            opcode: word[opcode][span.only_if] if span.only_if else 1
            for opcode, spans in touching.items()
            for span in spans
            if span.use == letter
        }
        if uses:
            m.d.comb += side.eq(word.choose(uses))
    # Opcodes whose spans begin with a field at the same bits of the word share one input of the mux.
    places = {}
    for opcode, spans in touching.items():
        bits = {field.name: field.first for field in word.records[opcode].fields}
        places.setdefault(tuple(bits[span.base] for span in spans), []).append(opcode)
    firsts = []
    for opcodes in places.values():
        view, spans = word[opcodes[0]], touching[opcodes[0]]
        first = view[spans[0].base]
        if len(spans) == 2:
            # One span covers both the rows read and the rows written.
            first = Mux(behind, first, view[spans[1].base])
        firsts.append(Mux(word.one_of(*opcodes), first, 0))
    m.d.comb += use.first.eq(reduce(or_, firsts))


def packed_vectors(word):
    """Returns `(packed, vectors)`: 1 if the word loads weights of another format than BFLOAT16, and the number of their vectors,
    as :meth:`.WeightFormat.vectors`."""
    load, n = word[Opcode.LOAD_WEIGHTS], word.config.n
    quarter = load.rows << exact_log2(n // 4)  # the vectors of 4 bits a weight
    more = {WeightFormat.MXFP4: 0, WeightFormat.MXFP6: quarter >> 1}
    rest = quarter
    for one, vectors in more.items():
        rest = Mux(load.weight_format == one, vectors, rest)
    packed = word.one_of(Opcode.LOAD_WEIGHTS) & (load.weight_format != WeightFormat.BFLOAT16)
    return packed, quarter + rest + (load.rows + 1 >> 1)


def _describe_transfer(m, operation, word, base):
    transfer, n = word[Opcode.LOAD], word.config.n
    m.d.comb += [
        operation.address.eq(base + transfer.offset),
        operation.vectors.eq(transfer.rows),
        operation.row.eq(transfer.buffer),
        operation.bias.eq(0),
    ]
    for opcode, record in word.records.items():
        if record.vectors(n) > 1:
            with m.If(word.one_of(opcode)):
                m.d.comb += operation.vectors.eq(transfer.rows << exact_log2(record.vectors(n)))
                if (half := word.half(opcode)) is not None:
                    with m.If(half):
                        m.d.comb += operation.vectors.eq(transfer.rows << exact_log2(record.vectors(n) // 2))
    if word.config.weight_formats:
        packed, vectors = packed_vectors(word)
        m.d.comb += operation.weight_format.eq(word[Opcode.LOAD_WEIGHTS].weight_format)
        with m.If(packed):
            m.d.comb += operation.vectors.eq(vectors)
    with m.If(word.one_of(Opcode.LOAD_BIAS)):
        # A bias row is two vectors.
        m.d.comb += [operation.row.eq(word[Opcode.LOAD_BIAS].bias << 1), operation.bias.eq(1)]
        if word.config.training:
            m.d.comb += operation.half.eq(word[Opcode.LOAD_BIAS].half)
    if word.config.update_lanes:
        with m.If(word.one_of(Opcode.STORE_UPDATE)):
            m.d.comb += operation.part.eq(word[Opcode.STORE_UPDATE].part)
    if word.config.transpose:  # the same bit in LOAD and LOAD_WEIGHTS; in LOAD_BIAS it is `half`
        m.d.comb += operation.transpose.eq(word[Opcode.LOAD].transpose & ~word.one_of(Opcode.LOAD_BIAS))
    elif word.config.attention:
        m.d.comb += operation.transpose.eq(word[Opcode.LOAD_WEIGHTS].transpose)


def _describe_activate(m, operation, word):
    config, activate = word.config, word[Opcode.ACTIVATE]
    m.d.comb += [
        operation.function.eq(activate.function),
        operation.format.eq(activate.format),
        operation.rows.eq(activate.rows),
        operation.lanes.eq(activate.lanes),
        operation.row.eq(activate.buffer),
        operation.acc.eq(activate.acc),
    ]
    if config.pooling:
        pool = word[Opcode.POOL]
        counts = {"left0": pool.rows0, "left1": pool.rows1, "across": pool.window0, "down": pool.window1}
        m.d.comb += [
            *(operation[name].eq(1) for name in ("rows0_stride", "rows1", "window0", "window1")),
            operation.single.as_value().eq(-1),
            operation.single.left0.eq(pool.rows0 == 1),
        ]
        with m.If(word.one_of(Opcode.POOL)):
            m.d.comb += [
                operation[name].eq(pool[name])
                for name in (
                    "rows0_stride",
                    "rows1",
                    "rows1_stride",
                    "buffer_stride",
                    "window0",
                    "window0_stride",
                    "window1",
                    "window1_stride",
                )
            ]
            m.d.comb += [operation.single[name].eq(count == 1) for name, count in counts.items()]
    if config.softmax:
        softmax = word[Opcode.SOFTMAX]
        with m.If(word.one_of(Opcode.SOFTMAX, Opcode.NORMALIZE)):
            m.d.comb += [
                operation.softmax.eq(1),
                operation.rows1.eq(softmax.tiles),
                operation.rows1_stride.eq(softmax.acc_stride),
                operation.buffer_stride.eq(softmax.buffer_stride),
            ]
    if config.normalize:
        m.d.comb += operation.normalize.eq(word.one_of(Opcode.NORMALIZE))
        m.d.comb += [operation[name].eq(word[Opcode.NORMALIZE][name]) for name in ("centred", "root", "factor", "epsilon")]
    if config.table_lanes:
        _describe_table(m, operation, word)
    if config.training:
        _describe_select(m, operation, word)
    if config.update_lanes:
        update = word[Opcode.UPDATE]
        m.d.comb += [
            operation.update.eq(word.one_of(Opcode.UPDATE)),
            operation.update_row.eq(update.update),
            *(operation[name].eq(update[name]) for name in ("bias", "momentum", "rate")),
        ]


def _describe_table(m, operation, word):
    table, vectors = word[Opcode.LOAD_TABLE], word[Opcode.MULTIPLY]
    m.d.comb += [
        operation.operand.eq(vectors.operand),
        operation.word.eq(table.word >> exact_log2(word.config.n)),
        *(operation[name].eq(table[name]) for name in TABLE_SETTINGS),
    ]
    with m.If(word.one_of(Opcode.LOAD_TABLE)):
        m.d.comb += operation.operand.eq(table.buffer)
    for opcode, record in word.records.items():
        if record.task is not None:
            with m.If(word.one_of(opcode)):
                m.d.comb += operation.task.eq(record.task)


def _describe_select(m, operation, word):
    """Connects the fields of SELECT, and the steps between results. SELECT loops like POOL with windows of one row."""
    select, activate = word[Opcode.SELECT], word[Opcode.ACTIVATE]
    m.d.comb += [
        operation.equal.eq(select.condition == Condition.EQUAL),
        operation.twice.eq(Cat(activate.format == code.value for code in Format if code.height == 2).any()),
        operation.number.eq(select.number),
        operation.operand_stride.eq(select.operand_stride),
        operation.buffer_step.eq(Mux(operation.format == Format.BINARY32, 2, 1)),
    ]
    if word.config.table_lanes:
        with m.If(operation.task != Task.RESULTS):
            m.d.comb += operation.twice.eq(1)
    with m.If(word.one_of(Opcode.POOL, Opcode.SELECT) & select.buffer_step.any()):
        m.d.comb += operation.buffer_step.eq(select.buffer_step)
    with m.If(word.one_of(Opcode.SELECT)):
        m.d.comb += [
            operation.select.eq(1),
            operation.twice.eq(1),
            operation.function.eq(FunctionCode.NONE),
            operation.lanes.eq(word.config.n),
            operation.operand.eq(select.operand),
            *(operation[name].eq(select[name]) for name in ("rows0_stride", "rows1", "rows1_stride", "buffer_stride")),
            operation.single.left1.eq(select.rows1 == 1),
        ]
