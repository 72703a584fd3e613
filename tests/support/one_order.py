"""Compilation with one order of instructions, drawn at random, instead of the fastest of many. It takes a third of the time, and
tests over many graphs try all orders."""

from contextlib import suppress

import numpy as np

import seeds
from amaranth_tpu.sim.compiler import compile_graph
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.compiler.order import search


def draw_orders(monkeypatch, name):
    """Replaces the compiler's search. The draws depend on the seed, the test's `name` and the size of the graph, so that a graph
    that is compiled twice has one program."""
    whole, fastest, orders = search.search, compile_graph._fastest, (None, *search.ORDERS)

    def drawn_search(constants, config, cores=1, fast=False):
        lowered = constants.lowered
        rng = _rng(name, len(lowered.sums), lowered.geometry.batch)
        changes = search.changes(lowered, config)
        with monkeypatch.context() as patch:
            patch.setattr(search, "ORDERS", tuple(orders[number] for number in rng.permutation(len(orders))))
            patch.setattr(search, "changes", lambda *_: [changes[rng.integers(len(changes))]])
            with suppress(CompileError):
                return whole(constants, config, cores, True)
            patch.setattr(search, "changes", lambda *_: changes)
            return whole(constants, config, cores, True)

    def drawn_variant(variants, *others):
        for number in _rng(name, len(variants[0].given.stages)).permutation(len(variants)):
            with suppress(CompileError):
                return int(number), fastest([variants[number]], *others)[1]
        return fastest(variants, *others)

    monkeypatch.setattr(compile_graph, "search", drawn_search)
    monkeypatch.setattr(compile_graph, "_fastest", drawn_variant)


def _rng(name, *numbers):
    return np.random.default_rng([seeds.seed(), *numbers, *name.encode()])
