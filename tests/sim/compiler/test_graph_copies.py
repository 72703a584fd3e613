"""Tests of the copies of results that gradients of convolutions' weights read."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.compiler.compile_graph import compile_graph
from amaranth_tpu.sim.compiler.lowering import lowering
from amaranth_tpu.sim.compiler.lowering.copies import Copy, copies_of
from amaranth_tpu.sim.compiler.memory.matrices import Geometry, matrix_of
from amaranth_tpu.sim.functions.functions import RELU
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.windows import Convolution, patches
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.ir.stage import Pool, Term
from graph_steps import run_on_model
from step_networks import Builder
from suites import slow


def _network(rng, size, channels, fields, pool=(1, 2)):
    """Returns a network in which a convolution reads the result of another one, which has `channels` channels."""
    network = Builder(rng)
    pools = Pool(pool, (size[0] // pool[0], size[1] // pool[1]), pool)
    x = network.conv("first", network.add_input("x", (*size, 3)), channels, kernel=3, padding=1, function=RELU, pool=pools)
    x = network.conv("second", x, 6, function=RELU, **fields)
    tensor = network.tensors[x]
    term = Term(x, network.weights("w", tensor.height * tensor.width, 6, 3), tensor.shape[:2])
    network.output = network.stage("logits", 3, term, start=network.bias("b", 3), wide=True)
    return network


def _check(network, rng, batch, optimizer=None, **config):
    optimizer = optimizer or Sgd(0.75, 0.01)
    program = compile_graph(make_step(network, optimizer), Config(**{"n": 4, "training": True, **config}), batch)
    run_on_model(program, optimizer, rng)
    return program


def _gathers(program):
    """Returns the products that gather windows of convolutions; a dense layer's is another."""
    products = [one for sums in program.memory.sums for one in getattr(sums, "products", ())]
    return [one for one in products if one.is_whole_copy and one.source.name == "first"]


@pytest.mark.parametrize(
    "size, channels, fields, batch",
    [
        ((6, 8), 5, dict(kernel=3), 3),
        ((5, 10), 3, dict(kernel=2, dilation=2, padding=1), 2),
        *slow(((7, 12), 9, dict(kernel=3, padding=1), 5), ((9, 8), 4, dict(kernel=3, padding=2), 1)),
    ],
)
def test_gradients_read_copies(rng, size, channels, fields, batch):
    """Samples of the gradient are whole tiles, or are padded; the windows have no matrix of their own."""
    program = _check(_network(rng, size, channels, fields), rng, batch, n=4, transpose=bool(rng.integers(2)))
    assert program.memory.copies and not _gathers(program)
    gradient = program.memory.matrix("gradient of second")
    stores = [op.fields for op in program.ops if op.opcode is Opcode.STORE and op.fields["region"] is Region.SCRATCH]
    starts = {fields["offset"] // program.config.vector_bytes for fields in stores}
    stored = starts & {*range(gradient.vector, gradient.vector + gradient.size)}
    assert bool(stored) == (gradient.padded is gradient)  # all readers read the copy


@pytest.mark.search
def test_copies_take_fewer_cycles(rng, monkeypatch):
    """The array does not copy windows."""
    network = _network(rng, (8, 8), 8, dict(kernel=3, padding=1))
    program = _check(network, rng, 4, Adam())
    monkeypatch.setattr(lowering, "gradient_copies", lambda *_: {})
    gathered = compile_graph(make_step(network, Adam()), Config(n=4, training=True), 4)
    assert len(_gathers(gathered)) == 1 and program.cost.compute_cycles < gathered.cost.compute_cycles


def test_windows_with_a_stride_in_lines_have_no_copies(rng):
    """A STORE has consecutive rows, so the array gathers columns of a stride."""
    assert not _check(_network(rng, (6, 8), 3, dict(kernel=2, stride=2)), rng, 2).memory.copies


def test_gradients_are_transposed_once(rng):
    """Jobs of other column tiles load the transposed gradient, which is larger than the unified buffer."""
    memories = dict(accumulator_depth=64, unified_buffer_depth=256, bias_depth=64)
    program = _check(_network(rng, (9, 10), 5, dict(kernel=3, padding=1)), rng, 2, **memories)
    identity = 1 + 4 * ("ones", "identity").index("identity")
    passes = [op for op in program.ops if op.opcode is Opcode.MATMUL and op.stage == "gradient of second.weights"]
    mine = [op for op in passes if op.fields["buffer"] == identity]
    gradient = program.memory.matrix("gradient of second")
    assert sum(op.passes for op in mine) == gradient.tiles * 2 * -(-9 * 5 // 4)  # samples are whole tiles


def _term(rng, size):
    kernel, dilation = (tuple(int(one) for one in rng.integers(1, 4, 2)) for _ in range(2))
    padding, stride = tuple(int(one) for one in rng.integers(-1, 3, 2)), (int(rng.integers(1, 4)), 1)
    need = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    sums = tuple((have + 2 * p - k) // s + 1 for have, p, k, s in zip(size, padding, need, stride))
    return Term("x", "d", kernel, stride, dilation, padding, transposed=True), sums


def _geometry(size, batch):
    return Geometry(4, batch, size[0] * size[1], size[0] * size[1], size[1])


def _stored(values, copy, tensor, rng):
    """Returns the memory with a copy, of which parts of any rows are stored, one tile of channels after the other."""
    memory, row = np.zeros((copy.matrix.vector + copy.matrix.size, 4), np.float32), 0
    rows = np.pad(values.reshape(-1, 6), ((0, 0), (0, 2)))
    while row < tensor.rows:
        count = int(rng.integers(1, 20))
        for tile in range(2):
            for vector, first, some in copy.ranges(tensor, tile, row, count):
                memory[vector : vector + some] = rows[first : first + some, tile * 4 :][:, :4]
        row += count
    return memory


def test_copies_are_the_patches_of_the_reference_model(rng):
    batch, found = 3, 0
    while found < 30:
        size = tuple(int(one) for one in rng.integers(4, 9, 2))
        term, sums = _term(rng, size)
        made = copies_of(term, _geometry(sums, batch), 16, 4) if min(sums) > 0 else None
        if made is None:
            continue
        found += 1
        values, layout = rng.integers(1, 100, (batch, *size, 6)).astype(np.float32), made.source
        sizes = batch * layout.geometry.period, 6, layout.geometry
        copy = Copy(layout, replace(matrix_of("copy", "samples", *sizes, blocks=len(layout.corners)), vector=5))
        memory = _stored(values, copy, _geometry(size, batch), rng)
        windows = made.windows(matrix_of("x", "samples", 0, 6, _geometry(size, batch), copies=(copy,)))
        plain = Convolution(np.zeros((*term.kernel, 6, 1), bfloat16), term.stride, term.dilation, term.padding)
        expected = patches(bfloat16(values), plain, sums).reshape(batch, sums[0] * sums[1], -1, 6).astype(np.float32)
        for position, tile, sample in product(range(windows.blocks), range(2), range(batch)):
            place = windows.place(position * 2 + tile, sample * made.rows.period)
            assert place + made.rows.period <= len(memory)  # a tile is within the copy
            here = memory[place : place + sums[0] * sums[1], : 6 - tile * 4]
            assert np.array_equal(here, expected[sample, :, position, tile * 4 :][:, :4])
