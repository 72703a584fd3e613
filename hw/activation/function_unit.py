"""The function unit: serialises vectors into groups of lanes for the function table, and loads the table."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..spec.isa import TABLE_SETTINGS, TABLE_WORDS, Task
from .function_table import FunctionTable

__all__ = ["FunctionUnit", "entry_cycles", "product_cycles", "table_latency"]


def table_latency(n, lanes):
    """Returns the cycles from a group's entry into the table to its exit from the unit: one more for vectors of one group."""
    return FunctionTable.latency + (lanes == n)


def product_cycles(n, lanes):
    """Returns the cycles from one row of MULTIPLY to the next: one for each group of lanes, and at least two.

    A row accesses the unified buffer twice, to read an operand and to write a product. :func:`table_latency` makes the distance
    between them odd, so that the two accesses of different rows never fall in the same cycle.
    """
    groups, cycles = n // lanes, max(n // lanes, 2)
    assert (2 + table_latency(n, lanes) + groups) % cycles, "an operand and a product need the vector port in the same cycle"
    return cycles


def entry_cycles(n):
    """Returns the cycles from one row of LOAD_TABLE to the next: one for each entry of two lanes, and at least two."""
    return max(n // 2, 2)


class FunctionUnit(wiring.Component):
    """The unit that applies the table's function to vectors, or multiplies them by an operand, in order.

    A vector is taken in a cycle with `ready`, `i_valid` and `advance`. Throughput is `lanes` lanes a cycle, one vector every
    n / lanes cycles. The groups of a vector leave in `group`, lowest lanes first, while `valid` is 1; the first leaves
    :func:`table_latency` + 1 cycles after the vector is taken. The unit stalls while `advance` is 0.

    A vector with the task LOAD_TABLE is ignored. Instead, the lanes of the operand are written into the table, one entry of two
    lanes a cycle.

    Parameters
    ----------
    n : int
        Lanes of a vector.
    lanes : int
        Lanes at a time: a power of two up to n.
    tag : layout
        Tag that accompanies the groups of a vector.

    Members
    -------
    advance : 1, in
    busy : 1, out
        A vector is in flight.
    ready : 1, out
    i_valid : 1, in
    i_vector : 16 n, in
    i_between : 12 n, in
    i_keep : n, in
        The vector and its operands of :class:`.FunctionTable`; lanes without `keep` become +0.
    i_task : Task, in
    i_tag : tag, in
    valid : 1, out
    last : 1, out
        The group is the last of its vector.
    group : 16 lanes, out
    tag : tag, out
        Tag of the vector.
    take : 1, in
        Takes `operand`, the operand of the vector that is taken in the same cycle.
    operand : 16 n, in
    load : 1, in
        Takes the settings. `busy` must be 0 unless only `word` changes.
    first : 8, in
    linear_low, linear_high, scale : 2, in
    base, spare : 4, in
    word : place in the function table, in
        The settings, which are operands of LOAD_TABLE. `word` counts vectors.
    loaded : 1, out
        The last lanes of a LOAD_TABLE are written into the table.
    loaded_tag : tag, out
        Tag of that vector.
    """

    def __init__(self, *, n, lanes, tag):
        self.n = n
        self.lanes = lanes
        self._settings = {**TABLE_SETTINGS, "word": exact_log2(TABLE_WORDS // n)}
        super().__init__(
            {
                "advance": In(1),
                "busy": Out(1),
                "ready": Out(1),
                "i_valid": In(1),
                "i_vector": In(16 * n),
                "i_between": In(12 * n),
                "i_keep": In(n),
                "i_task": In(Task),
                "i_tag": In(tag),
                "valid": Out(1),
                "last": Out(1),
                "group": Out(16 * lanes),
                "tag": Out(tag),
                "take": In(1),
                "operand": In(16 * n),
                "load": In(1),
                "loaded": Out(1),
                "loaded_tag": Out(tag),
                **{name: In(width) for name, width in self._settings.items()},
            }
        )

    def elaborate(self, platform):
        m = Module()
        lanes, groups, entries = self.lanes, self.n // self.lanes, self.n // 2
        m.submodules.table = table = FunctionTable(lanes=lanes)

        operand = Signal(16 * self.n, reset_less=True)
        # The settings have no reset, like the table.
        settings = {name: Signal(width, name=f"set_{name}", reset_less=True) for name, width in self._settings.items()}
        with m.If(self.load):
            m.d.sync += [register.eq(getattr(self, name)) for name, register in settings.items()]

        # The current vector, shifted so that the current group is lowest. `pair` counts the pairs of lanes in a group for
        # LOAD_TABLE. If a group is one lane, LOAD_TABLE shifts by two lanes.
        there, task = Signal(), Signal(Task)
        vector, between = Signal(16 * self.n, reset_less=True), Signal(12 * self.n, reset_less=True)
        keep = Signal(self.n)
        tag = Signal.like(self.tag)
        pairs = max(lanes // 2, 1)
        group, pair = Signal(range(groups)), Signal(range(pairs))
        loading, next_group, last = Signal(), Signal(), Signal()
        m.d.comb += [
            loading.eq(task == Task.LOAD_TABLE),
            next_group.eq(there & (~loading | (pair == pairs - 1))),
            self.ready.eq(~there | last),
            self.loaded.eq(self.advance & there & loading & last),
            self.loaded_tag.eq(tag),
        ]
        with m.If(self.advance):
            with m.If(next_group):
                m.d.sync += [
                    vector.eq(vector >> 16 * lanes),
                    between.eq(between >> 12 * lanes),
                    keep.eq(keep >> lanes),
                    operand.eq(operand >> 16 * lanes if lanes > 1 else Mux(loading, operand >> 32, operand >> 16)),
                ]
                m.d.sync += group.eq(group + 1)
            # `last` is computed one cycle ahead, as all earlier stages stall on it.
            m.d.sync += last.eq(Mux(loading, Cat(pair, group) == entries - 2, group == groups - 2))
            with m.If(there & loading):
                m.d.sync += pair.eq(pair + 1)
            with m.If(self.ready):
                m.d.sync += [
                    there.eq(self.i_valid),
                    vector.eq(self.i_vector),
                    between.eq(self.i_between),
                    keep.eq(self.i_keep),
                    task.eq(self.i_task),
                    tag.eq(self.i_tag),
                    group.eq(0),
                    last.eq(Mux(self.i_task == Task.LOAD_TABLE, entries == 1, groups == 1)),
                ]
        word = Signal.like(settings["word"], name="word", reset_less=True)
        with m.If(self.take):
            m.d.sync += [operand.eq(self.operand), word.eq(settings["word"])]

        m.d.comb += [
            table.enable.eq(self.advance),
            table.x.eq(vector[: 16 * lanes]),
            table.between.eq(between[: 12 * lanes]),
            table.w.eq(operand[: 16 * lanes]),
            table.keep.eq(keep[:lanes]),
            table.multiply.eq(task == Task.MULTIPLY),
            table.write.eq(there & loading),
            table.entry.eq(Cat(Cat(pair, group)[: exact_log2(entries)], word)),
            table.data.eq(operand.word_select(pair, 32)),
            *(getattr(table, name).eq(settings[name]) for name in TABLE_SETTINGS if name != "spare"),
            table.last.eq(~settings["spare"]),
        ]
        if groups == 1:
            with m.If(self.advance):
                m.d.sync += self.group.eq(table.o)
        else:
            m.d.comb += self.group.eq(table.o)

        # The pipeline of valid bits and tags beside the table.
        layout = data.StructLayout({"valid": 1, "last": 1, "tag": tag.shape()})
        under_way = Signal()
        stages = [Signal(layout, name=f"stage_{index}") for index in range(table_latency(self.n, lanes) + 1)]
        m.d.comb += [
            stages[0].valid.eq(there & ~loading),
            stages[0].last.eq(last),
            stages[0].tag.eq(tag),
            self.valid.eq(stages[-1].valid),
            self.last.eq(stages[-1].last),
            self.tag.eq(stages[-1].tag),
            self.busy.eq(there | under_way),
        ]
        with m.If(self.advance):
            m.d.sync += [stage.eq(previous) for previous, stage in zip(stages, stages[1:])]
            m.d.sync += under_way.eq(Cat(stage.valid for stage in stages[:-1]).any())
        return m
