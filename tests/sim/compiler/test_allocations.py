"""Tests that each instruction accesses rows of the core's memories that were allocated together, and not reused since."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.compiler.codegen.emitter import Emitter
from amaranth_tpu.sim.compiler.codegen.instructions import accesses
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.memory.memories import Ring
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from graphs import random_graph
from trainable_graphs import random_trainable_graph
from training_steps import chain

#: The memory of each allocator among the members of Memories.
SPACES = dict.fromkeys(("operands", "results", "exchanges", "passing", "tables"), "buffer")
SPACES |= {"sums": "acc", "turning": "acc", "_held": "acc", "biases": "bias", "upper": "bias"}


class Watch:
    """The ranges of rows in use, by memory: {(memory, first row): end}. A new range ends those that it overlaps."""

    def __init__(self, monkeypatch):
        self.taken, self.used, self.checked = [], {}, 0
        take, emit = Ring.take, Emitter.emit

        def watched_take(ring, count, *key):
            place = take(ring, count, *key)
            self.taken.append((ring, place, count))
            return place

        def watched_emit(emitter, opcode, fields):
            emit(emitter, opcode, fields)
            if memories := getattr(emitter, "memories", None):
                self.check(memories, opcode, fields, emitter)
            else:
                self.used.clear()  # a new program

        monkeypatch.setattr(Ring, "take", watched_take)
        monkeypatch.setattr(Emitter, "emit", watched_emit)

    def note(self, memories):
        rings = {name: getattr(memories, name) for name in SPACES}
        spaces = {id(one): SPACES[name] for name, one in rings.items() if one}
        for ring, place, count in self.taken:
            space = spaces.get(id(ring))
            over = [key for key, end in self.used.items() if key[0] == space and key[1] < place + count and place < end]
            for key in over:
                del self.used[key]
            self.used[space, place] = place + count
        self.taken.clear()

    def check(self, memories, opcode, fields, emitter):
        self.note(memories)
        for space, first, count, _ in accesses(opcode, fields, emitter.config.vector_bytes, emitter.cores):
            fixed = {"buffer": memories.base, "bias": memories.zero_rows, "acc": 0}.get(space, first + 1)
            if first < fixed or space == "buffer" and opcode is Opcode.MATMUL:  # its span may have gaps
                continue
            fits = any(key[0] == space and key[1] <= first and first + count <= end for key, end in self.used.items())
            assert fits, f"{opcode.name}: {count} rows of {space} from {first} on are not of one allocation"
            self.checked += 1


@pytest.mark.parametrize("kind", ["network", "step", "sharded", "all-reduce", "dense"])
def test_rows_are_allocated_together(rng, monkeypatch, kind):
    watch, cores = Watch(monkeypatch), int(rng.integers(2, 5)) if kind in ("sharded", "all-reduce") else 1
    sizes = {"accumulator_depth": int(rng.choice([64, 256])), "unified_buffer_depth": int(rng.choice([256, 1024]))}
    core = Config(n=int(rng.choice([2, 4])), training=True, ring=True, **sizes)
    if kind == "network":
        compile_network(random_graph(rng, channels=7, size=6), core, 3)
    else:
        graph = random_trainable_graph(rng, stages=int(rng.integers(0, 3)), channels=7, size=6)
        graph = chain(rng, rng.integers(10, 40, 3).tolist()) if kind == "dense" else graph
        optimizer = [Adam(), Sgd(0.9), Sgd(0.9, 0.01)][rng.integers(3)]
        compile_step(with_parameters(graph), optimizer, core, 3, None, cores, kind != "all-reduce")
    assert watch.checked > 10
