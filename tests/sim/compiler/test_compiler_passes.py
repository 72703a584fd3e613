"""Tests of single compiler passes, covering search, instructions of a stage, MATMULs of a group, and memory images."""

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.compiler import search as search_pass
from amaranth_tpu.sim.compiler.codegen.generate import generate
from amaranth_tpu.sim.compiler.codegen.instructions import accesses
from amaranth_tpu.sim.compiler.codegen.matmuls import Group
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.memory.batching import lay_along_x
from amaranth_tpu.sim.compiler.memory.layout import lay_out
from amaranth_tpu.sim.compiler.passes.im2col import Gather
from amaranth_tpu.sim.compiler.tiling import stage_tiling as tiling
from amaranth_tpu.sim.compiler.timing.model import simulate
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.ir.graph import Graph, Stage, Tensor, Term, dense_chain
from graphs import check, check_order, execute, random_graph, random_values


def _chain(rng, *widths):
    return dense_chain(
        "g",
        [(f"layer{index}", random_values(rng, sizes, 0.1), None, "none") for index, sizes in enumerate(zip(widths, widths[1:]))],
    )


def _batched(graph, batch):
    return lay_along_x(graph, replace(graph, gathers=(Gather(graph.input, graph.tensors[graph.input]),)), batch, 1)


# ---- search


def test_search_keeps_the_fastest_schedule(rng, monkeypatch):
    """The compiler's search keeps the fastest of all schedules. It never aborts the simulation of a faster one."""
    cycles, scheduled = [], search_pass.Candidate.scheduled

    def watched(draft, eager, limit=None):
        cycles.append(scheduled(draft, eager).cycles)
        return scheduled(draft, eager, limit)

    monkeypatch.setattr(search_pass.Candidate, "scheduled", watched)
    program = compile_network(_chain(rng, 70, 30, 9), Config(n=4), 11)
    assert len(set(cycles)) > 3 and program.predicted_cycles == min(cycles)


def test_fast_programs_in_estimated_order_have_the_bits_of_the_golden_model(rng, monkeypatch):
    monkeypatch.setattr(search_pass, "_LONG", 0)
    for depth in (64, 512):
        graph, config = random_graph(rng), Config(n=4, unified_buffer_depth=depth)
        x = random_values(rng, (3, graph.input_size))
        with suppress(search_pass.CompileError):
            program = compile_network(graph, config, 3, effort="fast")
            check_order(program)
            got, want = execute(program, config, x, rng), run_network(graph, x)
            assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


def test_a_simulation_ends_at_its_limit(rng):
    program = compile_network(_chain(rng, 50, 20), Config(n=4), 6)
    cycles = program.predicted_cycles
    assert simulate(program.ops, program.config, limit=cycles) is None
    assert simulate(program.ops, program.config, limit=cycles + 1).cycles == cycles


def test_simulations_stay_within_the_budget(rng, monkeypatch):
    """The array passes in all simulations of one search, which measure compile time, stay within the budget."""
    passes, budget = [], 2000
    monkeypatch.setattr(search_pass, "_SIMULATED_PASSES", budget)
    monkeypatch.setattr(search_pass, "_REFINING_PASSES", budget)

    def counted(ops, *arguments, **options):
        passes.append(sum(op.passes for op in ops if op.opcode is Opcode.MATMUL))
        return simulate(ops, *arguments, **options)

    monkeypatch.setattr(search_pass, "simulate", counted)
    compile_network(_chain(rng, 784, 128, 10), Config(), 128)
    # Every schedule is simulated twice, to order it and to time it.
    assert budget < sum(passes) <= 2 * budget * (1 + search_pass._REFINED * len(search_pass.REFINEMENTS))


def test_program_beyond_the_budget_has_a_schedule_and_cycles(rng, monkeypatch):
    """A program beyond the simulation budget is still ordered and timed once, and its predicted cycles equal a simulation's."""
    monkeypatch.setattr(search_pass, "_SIMULATED_PASSES", 1)
    monkeypatch.setattr(search_pass, "_OVERLAP_PASSES", 1)
    program = compile_network(_chain(rng, 50, 20), Config(n=4), 6)
    assert program.predicted_cycles == simulate(program.ops, program.config).cycles
    graph = random_graph(rng, stages=4)
    program = compile_network(graph, Config(n=4), 3)
    assert program.predicted_cycles == simulate(program.ops, program.config).cycles
    check(graph, Config(n=4), 3, rng)


# ---- tiling


@pytest.mark.parametrize("depth", [64, 256, 2048])
def test_pruned_tilings_are_not_cheaper(rng, depth, monkeypatch):
    """The tiler prunes candidates by a bound on their cost. It finds the same plan as without pruning."""
    batched, config, cost = _batched(random_graph(rng), 3), Config(n=4, unified_buffer_depth=depth), tiling._cost
    layouts, plans = lay_out(batched, config.n).layouts, []
    for bound in (cost, lambda job, config, together, *sizes: cost(job, config, together, *sizes) if sizes else (-1, 0, 0)):
        monkeypatch.setattr(tiling, "_cost", bound)
        plans.append([])
        for number in range(len(batched.stages)):
            with suppress(tiling.NothingFits):
                plans[-1].append(tiling.plan_stage(batched, number, config, layouts, depth, config.accumulator_depth))
    assert plans[0] == plans[1]


def test_jobs_of_each_size_stand_for_all_jobs(rng):
    """The memory needs of a stage's largest job are computed from one job of each size."""
    for _ in range(4):
        batched = _batched(random_graph(rng), 3)
        layouts = lay_out(batched, 4).layouts
        for number, stage in enumerate(batched.stages):
            if batched.is_along_x(number):
                continue
            for shape in tiling._shapes(stage, 3, layouts):
                plan = tiling.StagePlan(*shape[:3], (), (), 0, 1, tiles=shape[3:])
                job, every = tiling.Job(batched, number, layouts, plan), plan.rectangles(stage, replace(batched, batch=shape[0]))
                assert job.count == len(every) and job.largest == max(every, key=lambda one: one.volume)
                for blocks in tiling.blocks_of(stage, layouts):
                    assert job.operands(blocks) == max(max(job.sizes(blocks, one)) for one in every)


# ---- instructions of a stage


def _places(first, *loops):
    """Returns the rows that nested loops of (count, stride), outermost first, visit starting at row `first`."""
    places = [first]
    for count, stride in loops:
        places = [place + index * stride for place in places for index in range(count)]
    return places


@pytest.mark.parametrize("height, width, batch", [(3, 3, 2), (1, 1, 5), (9, 7, 3)])
def test_positions_reach_their_result(rng, height, width, batch):
    """Each position of a 1 x 1 convolution, followed from host memory through the buffers and back, reaches the same position of
    the result."""
    config = Config(n=4, unified_buffer_depth=64, accumulator_depth=16)
    tensors = {"x": Tensor("x", 4, height, width), "y": Tensor("y", 4, height, width)}
    stage = Stage("c", "y", (Term("x", random_values(rng, (1, 1, 4, 4))),), (height, width))
    program = compile_network(Graph("g", tensors, "x", "y", (stage,)), config, batch)
    buffer, sums, stored = {}, {}, {}
    graph, gathers = program.memory.network, program.memory.batched.gathers
    choice, schedule = search_pass.search(graph, replace(graph, gathers=gathers), config, batch)
    assert [op.fields for op in schedule.ops] == [op.fields for op in program.ops]
    for op in generate(choice.batched, choice.host, choice.runs, config).ops:
        f = op.fields
        first = f.get("offset", 0) // config.vector_bytes
        if op.opcode is Opcode.LOAD:
            source = (lambda row, first=first: first + row) if f["region"] is Region.INPUT else (lambda row: "zeros")
            buffer.update({f["buffer"] + row: source(row) for row in range(f["rows"])})
        elif op.opcode is Opcode.MATMUL:
            assert f["start"] and f["tiles0"] == f["tiles1"] == 1
            rows = _places(f["buffer"], (f["rows1"], f["rows1_stride"]), (f["rows0"], f["rows0_stride"]))
            sums.update({f["acc"] + index: buffer[row] for index, row in enumerate(rows)})
        elif op.opcode is Opcode.ACTIVATE:
            buffer.update({f["buffer"] + row: sums[f["acc"] + row // 2] for row in range(2 * f["rows"])})
        elif op.opcode is Opcode.STORE:
            stored.update({first + row: buffer[f["buffer"] + row] for row in range(f["rows"])})
    assert stored == {vector: vector // 2 for vector in range(2 * batch * height * width)}


def test_accesses_are_the_spans_of_the_record():
    product = {"rows": 3, "lanes": 4, "buffer": 10, "acc": 5, "operand": 40}
    assert set(accesses(Opcode.MULTIPLY, product, 8)) == {("buffer", 10, 33, True), ("acc", 5, 3, False)}  # and rows between
    store = {"region": Region.SCRATCH, "offset": 48, "rows": 2, "buffer": 7}
    assert set(accesses(Opcode.STORE, store, 8)) == {("buffer", 7, 2, False), ("scratch", 6, 2, True)}
    assert set(accesses(Opcode.LOAD, store, 8)) == {("buffer", 7, 2, True), ("scratch", 6, 2, False)}
    assert set(accesses(Opcode.STORE, store | {"region": Region.OUTPUT}, 8)) == {("buffer", 7, 2, False)}


# ---- MATMULs of a group


@pytest.mark.parametrize("count, parts, passes", [(1, 1, 7), (3, 1, 7), (1, 2, 7), (3, 2, 7), (3, 2, 2)])
def test_a_group_sums_every_pass_once(rng, count, parts, passes):
    """A group of MATMULs adds every pass once to each column tile, starting from its bias, with the next weights, and the last
    passes in row blocks."""
    sums, stride, acc, made = 6, 2, 20, []
    emitter = SimpleNamespace(
        stage=0,
        bias=lambda column, count: 30 + column,
        emit=lambda opcode, fields, tiles, group_tiles: made.append((fields, tiles, group_tiles)),
    )
    cut = [(begin, sums // parts) for begin in range(0, sums, sums // parts)]
    whole = passes if parts == 1 else passes - 2
    group = Group(emitter, 5, count, acc, sums, passes, cut, whole)
    operands = rng.integers(0, 500, passes).tolist()
    assert not any(group.add(operands[:3], [(1, 0), (sums, stride)]))
    assert not any(group.add(operands[3:], [(1, 0), (sums, stride)]))
    walked, weights, tile = [], 0, None
    for f, tiles, group_tiles in made:
        inner, outer = (f["tiles0"], f["tiles0_stride"]), (f["tiles1"], f["tiles1_stride"])
        first = _places(f["buffer"], outer, inner)
        first_sum = _places(f["acc"], (f["tiles1"], f["tiles1_acc_stride"]), (f["tiles0"], f["tiles0_acc_stride"]))
        assert bool(tiles) != bool(f["keep"]) and group_tiles == passes * count
        if tiles:
            assert tiles == (0, 5, count, weights, len(first))
        for index, (row, total) in enumerate(zip(first, first_sum)):
            if not f["keep"]:
                tile, weights = weights, weights + 1
            bias = f["bias"] + index if f["start"] else None
            walked += [(tile, row + r * f["rows0_stride"], total + r, bias) for r in range(f["rows0"])]
    assert group.done == passes and sorted(walked, key=lambda one: one[:3]) == sorted(
        [
            (index * count + c, place + r * stride, acc + c * sums + r, 35 + c if index == 0 else None)
            for index, place in enumerate(operands)
            for c in range(count)
            for r in range(sums)
        ],
        key=lambda one: one[:3],
    )


# ---- images


def test_weights_are_at_the_loaded_offsets(rng):
    """Each tile's bytes are at the image offset of its LOAD_WEIGHTS, padded with -0 outside the matrix."""
    config, weights = Config(n=4), random_values(rng, (11, 6))
    program = compile_network(dense_chain("g", [("only", weights, None, "none")]), config, 3)
    padded = np.full((12, 8), 0x8000, "<u2")
    padded[:11, :6] = weights.view("<u2")
    step, found = config.instruction_bytes, set()
    for number, op in enumerate(program.ops):
        if op.opcode is Opcode.LOAD_WEIGHTS:
            word = int.from_bytes(program.model[number * step : (number + 1) * step], "little")
            offset = next(
                offset for offset in range(0, len(program.model), 32) if encode(op.opcode, offset=offset, rows=op.rows) == word
            )
            found |= {program.model[offset + 32 * tile :][:32] for tile in range(op.rows)}
    assert found == {padded[k : k + 4, c : c + 4].T.tobytes() for k in range(0, 12, 4) for c in (0, 4)}


def test_weights_of_depthwise_groups_do_not_mix(rng):
    """In the weight tiles of a depthwise convolution, each column has only its own channel's weights, and -0 for the others."""
    weights = random_values(rng, (2, 2, 1, 6))
    tensors = {"x": Tensor("x", 6, 5, 5), "y": Tensor("y", 6, 4, 4)}
    graph = Graph("g", tensors, "x", "y", (Stage("c", "y", (Term("x", weights, groups=6),), (4, 4)),))
    tiles = compile_network(graph, Config(n=4), 1).memory.weights(0, 0, 1)  # [tile, column, row]
    expected = np.full((4, 4, 4), 0x8000, "<u2")
    for one in range(4):
        for channel in range(4):
            expected[one, channel, channel] = weights.view("<u2")[one // 2, one % 2, 0, channel]
    assert np.array_equal(tiles, expected)
