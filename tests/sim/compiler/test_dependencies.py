"""Tests that instructions wait for exactly the instructions of other units that use the same rows, and that each loaded row is
read. The rows are from the decoder's tests."""

from collections import deque

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.compiler.codegen.emitter import Emitter
from amaranth_tpu.sim.compiler.codegen.scheduling import ordered
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.compile_graph import compile_graph
from amaranth_tpu.sim.compiler.order import search
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.compiler.timing.model import _Run
from amaranth_tpu.sim.compiler.timing.units import LOAD, STORE, UNITS, Timeline
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.rtl.host_memory import DEFAULT_HOST
from decoder_words import touched
from graph_steps import dense_network
from graphs import random_graph
from step_networks import transformer
from trainable_graphs import random_trainable_graph
from training_steps import chain


def _uses(op, config, cores):
    """Yields `(memory, first, last, True for a write)`. The function table has one unit; reads of constants meet no write."""
    for space, (use, first, last) in touched(op.opcode, op.fields, config, cores).items():
        memory = op.fields["region"] if space == "host" else space
        if memory not in ("table", Region.MODEL, Region.INPUT):
            yield memory, first, last, "w" in use


def _needed(ops, config, cores):
    """Returns, for each instruction, {unit: number of its last instruction before that uses the same rows}."""
    earlier, issued, found = [], [0] * UNITS, []
    for op in ops:
        issued[op.unit] += 1
        needed, uses = {}, [*_uses(op, config, cores)]
        for unit, number, others in earlier:
            if unit != op.unit and any(
                memory == other and first <= end and start <= last and (write or writes)
                for memory, first, last, write in uses
                for other, start, end, writes in others
            ):
                needed[unit] = number
        found.append(needed)
        earlier.append((op.unit, issued[op.unit], uses))
    return found


@pytest.mark.parametrize("kind", ["network", "step", "ring"])
def test_instructions_wait_for_those_that_use_the_same_rows(rng, monkeypatch, kind):
    monkeypatch.setattr(search, "without_dead_stores", lambda ops, *_: ops)  # others may wait for a STORE that is removed
    cores = 3 if kind == "ring" else 1
    core = Config(n=4, training=True, ring=cores > 1, unified_buffer_depth=256, update_lanes=int(rng.integers(2)))
    if kind == "network":
        program = compile_network(random_graph(rng, channels=7, size=6), core, 3)
    else:
        training = with_parameters(random_trainable_graph(rng, stages=int(rng.integers(0, 2)), channels=7, size=5))
        program = compile_step(training, Adam() if rng.random() < 0.3 else Sgd(0.9), core, 3, None, cores)
    for op, needed in zip(program.ops, _needed(program.ops, core, cores)):
        assert dict(op.waits) == needed, op.opcode
    assert {Opcode.MATMUL, Opcode.STORE} <= {op.opcode for op in program.ops}


def _operands(op):
    """Returns the rows of the unified buffer that a MATMUL reads."""
    loops = [(f"{axis}{number}", f"{axis}{number}_stride") for axis in ("rows", "tiles") for number in (0, 1)]
    rows = sum(np.ix_(*(np.arange(op.fields[count]) * op.fields[stride] for count, stride in loops)))
    return np.unique(op.fields["buffer"] + rows).tolist()


def _unread(program):
    """Returns how many rows a LOAD writes to the unified buffer that no instruction reads before the next write."""
    loaded, unread = {}, 0
    for op in program.ops:
        use, first, last = touched(op.opcode, op.fields, program.config, program.cores).get("buffer", ("", 0, -1))
        rows = _operands(op) if op.opcode is Opcode.MATMUL else range(first, last + 1)
        for row in rows:
            if "r" in use:
                loaded.pop(row, None)
            else:
                unread += row in loaded
            loaded |= {row: op} if op.opcode is Opcode.LOAD else {}
    return unread + len(loaded)


@pytest.mark.parametrize("kind", ["network", "step", "words"])
def test_each_loaded_row_is_read(rng, kind):
    """A step reads one row of the factor of ones, and all other rows."""
    sizes, core = rng.integers(2, 30, 3).tolist(), Config(n=4, training=True, unified_buffer_depth=512)
    optimizer = [Adam(), Sgd(0.9), Sgd(0.9, 0.01)][rng.integers(3)]
    if kind == "network":
        program = compile_network(chain(rng, sizes), core, int(rng.integers(1, 30)))
    elif kind == "step":
        program = compile_graph(make_step(dense_network(rng, sizes), optimizer), core, int(rng.integers(1, 30)))
    else:
        program = compile_graph(make_step(transformer(rng, 3, 5, 1, 3), optimizer, counted=True), core, 2)
    assert _unread(program) == (0 if kind == "network" else core.n - 1)


def test_units_keep_the_order_of_their_instructions(rng):
    """A schedule never exchanges two instructions of a unit, as no wait protects their order."""
    emitter = Emitter(Config(n=4), {Region.SCRATCH: 64})
    for opcode, region in zip(rng.choice([Opcode.LOAD, Opcode.STORE], 50), [Region.SCRATCH] * 50):
        emitter.transfer(opcode, region, int(rng.integers(60)), 3, buffer=int(rng.integers(60)))
    starts = rng.integers(0, 99, 50).tolist()
    for late in (0, 50):
        made = ordered(emitter.ops, Timeline(99, starts, 0, [], []), 1, late)
        for unit in (LOAD, STORE):
            assert [op for op in made if op.unit == unit] == [op for op in emitter.ops if op.unit == unit]


def test_room_for_a_load_is_not_in_the_past():
    """The simulated time never goes back, although a burst arrives beat by beat."""
    run = _Run([], Config(n=4), DEFAULT_HOST, True, None, 1)
    run.load_bursts, run.load_beats = deque([(116, 16), (132, 16), (148, 16), (150, 2)]), 50
    assert [run.room_for_load(now) for now in range(99, 116)] == [102, 102, 102, *range(102, 116)]
