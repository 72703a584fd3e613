"""Tests that the compiled sums of a training step have the bits of their definition in numpy."""

import importlib.util

import numpy as np
import pytest

from amaranth_tpu.hw.spec.isa import TABLE_WORDS
from amaranth_tpu.sim.autodiff.initialize import initialize
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.golden import compiled_sums, sums
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.compiled_sums import fastest_sums
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.golden.function_tables import table_of
from amaranth_tpu.sim.golden.sums import Sums
from amaranth_tpu.sim.golden.table_lookup import Table
from amaranth_tpu.sim.golden.training import initial_state, one_hot, step
from amaranth_tpu.sim.golden.windows import Convolution
from amaranth_tpu.sim.ir.inverse_root import InverseRoot
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.ir.stage import Pool
from graphs import random_values
from suites import slow
from trainable_graphs import TABLES, random_trainable_graph

pytestmark = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is in the extra `train`")

KINDS = ["normal", "small", "tiny", "large", "any", "zeros"]


@pytest.fixture(scope="module", params=[*slow(1), 3])
def compiled(request):
    return fastest_sums(request.param)


@pytest.fixture(autouse=True)
def _threads_for_everything(monkeypatch):
    monkeypatch.setattr(compiled_sums, "_FEW", 1)


def _bfloat16(random, shape, kind):
    """Returns random bfloat16 values of `shape`. `kind` chooses ordinary values, values whose products are subnormal or infinite,
    mostly zeros, or any bits."""
    if kind == "any":
        return random.integers(0, 1 << 16, shape, dtype=np.uint16).view(bfloat16)
    scale = {"normal": 1, "small": 2.0**-62, "tiny": 2.0**-125, "large": 2.0**64, "zeros": 1}[kind]
    values = random_values(random, shape, scale)
    return np.where(random.random(shape) < 0.9, bfloat16(0), values) if kind == "zeros" else values


def _float32(random, shape, kind):
    if kind == "any":
        return random.integers(0, 1 << 32, shape, dtype=np.uint32).view(np.float32)
    values = random.normal(size=shape) * {"small": 2.0**-124, "tiny": 2.0**-127, "large": 2.0**125}.get(kind, 1)
    return values.astype(np.float32) * (random.random(shape) < 0.8)


def _same(one, two):
    """Sums may differ in the sign of a zero, which the accumulators do not keep."""
    assert one.dtype == two.dtype and one.shape == two.shape
    bits = np.uint32 if one.dtype == np.float32 else np.uint16 if one.dtype == bfloat16 else one.dtype
    one, two = (np.ascontiguousarray(array + np.float32(0) if bits == np.uint32 else array) for array in (one, two))
    assert np.array_equal(one.view(bits), two.view(bits))


def _case(random, kind):
    height, width, channels, outputs = (int(size) for size in random.integers(1, 9, 4))
    if random.random() < 0.3:
        height = width = 1
    kernel = tuple(int(random.integers(1, min(3, side) + 1)) for side in (height, width))
    if random.random() < 0.3:
        kernel = height, width
    stride, dilation = (tuple(int(one) for one in random.choice([1, 1, 1, 2], 2)) for _ in range(2))
    padding = tuple(int(random.integers(-1, side)) for side in kernel)
    size = tuple(int(random.integers(1, 7)) for _ in range(2))
    if random.random() < 0.3:
        size, padding = (1, 1), (0, 0)
    groups = int(random.choice([1, 1, 1, 2]))
    weights = _bfloat16(random, (*kernel, channels, outputs * groups), kind)
    values = _bfloat16(random, (int(random.integers(1, 4)), height, width, channels * groups), kind)
    if random.random() < 0.3:
        size, padding, stride, dilation, groups = kernel, tuple(side - 1 for side in kernel), (1, 1), (1, 1), 1
        values = _bfloat16(random, (3, 1, 1, channels), kind)
    return values, Convolution(weights, stride, dilation, padding, groups), size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_sums(rng, compiled, kind, monkeypatch):
    """The definition may also copy the operands of few rows of the kernel at a time, for kernels of any size."""
    for _ in range(40):
        values, term, size = _case(rng, kind)
        outputs = term.weights.shape[3]
        start = _float32(rng, (len(values), *size, outputs), kind)
        found = compiled.add_term(start, values, term)
        for block in (1, 1 << 23):
            monkeypatch.setattr(sums, "_BLOCK", block)
            _same(found, Sums().add_term(start, values, term))
        gradient = _bfloat16(rng, (len(values), *size, outputs), kind)
        for first in (None, _float32(rng, term.weights.shape, kind)):
            given = values, term, gradient, first
            _same(compiled.weight_gradient(*given), Sums().weight_gradient(*given))
        _same(compiled.bias_gradient(gradient), Sums().bias_gradient(gradient))


@pytest.mark.parametrize("weight", [np.inf, np.nan])
def test_zeros_around_one_position(rng, compiled, weight):
    """At padded positions the sum adds +0 times the weight, which gives NaN for an infinite weight. Compiled sums match numpy at
    these positions."""
    term = Convolution(random_values(rng, (2, 3, 1, 5)), padding=(1, 2))
    term.weights[0, 0, 0, 0] = weight
    values, sums = random_values(rng, (3, 1, 1, 1)), np.zeros((3, 2, 3, 5), np.float32)
    values[0] = 0
    _same(compiled.add_term(sums, values, term), Sums().add_term(sums, values, term))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_elements(rng, compiled, kind):
    shape = tuple(int(size) for size in rng.integers(1, 9, 4))
    for _ in range(20):
        start, values = _float32(rng, shape, kind), _bfloat16(rng, shape, kind)
        for factor in (_bfloat16(rng, (), kind), _bfloat16(rng, shape, kind)):
            _same(compiled.scaled(start, values, factor), Sums().scaled(start, values, factor))
        for rectified in (False, True):
            _same(compiled.rounded(start, rectified), Sums().rounded(start, rectified))
        result = _bfloat16(rng, shape, kind)
        _same(compiled.kept(values, result), Sums().kept(values, result))
        for table in map(table_of, (*TABLES, InverseRoot())):
            _same(compiled.looked_up(start, table), Sums().looked_up(start, table))
        first, ends, scale, base, spare = (rng.integers(0, most, 16).tolist() for most in (256, 4, 4, 16, 16))
        words = rng.integers(0, 1 << 16, TABLE_WORDS).astype(np.uint16)
        for settings in zip(first, ends, ends[::-1]):
            table = Table(*settings, words, scale.pop(), base.pop(), spare.pop())
            _same(compiled.looked_up(start, table), Sums().looked_up(start, table))


@pytest.mark.parametrize("kind", KINDS)
def test_pooling(rng, compiled, kind):
    for _ in range(10):
        window, count = (tuple(int(one) for one in rng.integers(1, 4, 2)) for _ in range(2))
        pool = Pool(window, count, window)
        size = tuple(side * many + int(rng.integers(0, 2)) for side, many in zip(window, count))
        sums = _float32(rng, (2, *size, 5), kind)
        sums = np.where(np.isnan(sums), np.uint32(0x7FC00000).view(np.float32), sums)  # sums have only this NaN
        for rectified in (False, True):
            both = compiled.pool(sums, pool, rectified), Sums().pool(sums, pool, rectified)
            for one, two in zip(*both):
                _same(one, two)
            gradient = _bfloat16(rng, both[0][1].shape, kind)
            _same(compiled.spread(gradient, both[0][1], pool, size), Sums().spread(gradient, both[0][1], pool, size))


@pytest.mark.parametrize("optimizer", [Sgd(0.9, 0.01), Adam()], ids=["sgd", "adam"])
def test_steps(rng, compiled, optimizer):
    for _ in range(3):
        graph = with_parameters(random_trainable_graph(rng, tables=0.5))
        one = two = initial_state(graph, optimizer, initialize(graph, 3))
        classes = graph.output_size
        for number in range(3):
            x, targets = random_values(rng, (9, graph.input_size)), one_hot(rng.integers(0, classes, 9), classes)
            masks = Dropout(0.5, 1).masks(graph, number, 9)
            one = step(graph, one, optimizer, x, targets, 0.1, masks).state
            two = step(graph, two, optimizer, x, targets, 0.1, masks, compiled).state
        for first, second in zip(one.masters, two.masters):
            _same(first, second)
        for first, second in zip(one.slots, two.slots):
            for name in optimizer.slots:
                _same(first[name], second[name])


def test_without_numba(monkeypatch):
    monkeypatch.setattr(compiled_sums.importlib.util, "find_spec", lambda name: None)
    assert type(fastest_sums()) is Sums


@pytest.mark.parametrize("kind", KINDS)
def test_each_channel_by_itself(rng, compiled, kind, monkeypatch):
    """Terms of averages, where each result reads only its own channel, and gradients of a global average match numpy bit for
    bit."""
    channels, size, kernel = int(rng.integers(2, 9)), int(rng.integers(2, 9)), int(rng.integers(1, 4))
    weights = _bfloat16(rng, (kernel, kernel, 1, channels), kind)
    term = Convolution(weights, stride=(2, 1), padding=(1, 0), groups=channels)
    values = _bfloat16(rng, (3, size, size, channels), kind)
    start = _float32(rng, (3, 2, max(1, size - kernel + 1), channels), kind)
    wanted = Sums().add_term(start, values, term)
    _same(compiled.add_term(start, values, term), wanted)
    monkeypatch.setattr(sums, "_BLOCK", 1)
    _same(compiled.add_term(start, values, term), wanted)
    whole = Convolution(_bfloat16(rng, (size, size, 1, channels), "normal"), padding=(size - 1, size - 1), groups=channels)
    given, start = _bfloat16(rng, (3, 1, 1, channels), kind), _float32(rng, (3, size, size, channels), kind)
    _same(compiled.add_term(start, given, whole), Sums().add_term(start, given, whole))


def test_operands_of_a_large_kernel_are_copied_in_parts(monkeypatch):
    """Parts take at most the memory of a block, and follow the order of the kernel."""
    monkeypatch.setattr(sums, "_BLOCK", 64)
    parts, kernel = [], np.arange(48).reshape(3, 16, 1, 1).astype(bfloat16)
    sums.in_parts(lambda total, _, term: parts.append(term.weights) or total, np.zeros((1, 4, 4, 1)), None, Convolution(kernel))
    assert max(16 * part.size for part in parts) <= 64
    assert np.array_equal(np.concatenate([part.reshape(-1) for part in parts]), kernel.reshape(-1))
