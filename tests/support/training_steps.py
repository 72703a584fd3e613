"""Training steps on the instruction-level model, compared with the golden model's step."""

from dataclasses import replace
from itertools import groupby

import numpy as np

from amaranth_tpu.hw.spec.isa import TABLE_SETTINGS, Opcode, Region
from amaranth_tpu.sim.compiler.step_state import pack_state, unpack_states, with_rate
from amaranth_tpu.sim.functions.functions import RELU
from amaranth_tpu.sim.golden.arithmetic import bfloat16, round_bfloat16
from amaranth_tpu.sim.golden.machines import ring_of
from amaranth_tpu.sim.golden.training import initial_state, one_hot, step
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.ir.stage import Pool, Tensor
from stage_graphs import GivenStage, GivenTerm, linked


def chain(rng, sizes, biased=True, end="none"):
    layers = []
    for number, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
        weights = round_bfloat16(rng.normal(0, (2 / inputs) ** 0.5, (inputs, outputs)).astype(np.float32))
        bias = rng.normal(0, 0.1, outputs).astype(np.float32) if biased else None
        layers.append((f"dense{number}", weights, bias, end if number == len(sizes) - 2 else "relu"))
    return dense_chain("chain", layers)


def convolutions(rng, channels, size=28, classes=10, hidden=128):
    """Returns a graph like network `a`: two 3 x 3 convolutions with 2 x 2 pooling, and two dense layers."""

    def weights(*shape):
        return round_bfloat16(rng.normal(0, (2 / np.prod(shape[:-1])) ** 0.5, shape).astype(np.float32))

    def bias(count):
        return rng.normal(0, 0.1, count).astype(np.float32)

    stages, source = [], Tensor("x", 1, size, size)
    for number, count in enumerate(channels):
        sums, name = source.height - 2, f"a{number}"
        term = GivenTerm(source.name, weights(3, 3, source.channels, count))
        pool = Pool((2, 2), (sums // 2, sums // 2), (2, 2))
        stages.append(GivenStage(f"conv{number}", name, (term,), (sums, sums), bias(count), pool, RELU))
        source = Tensor(name, count, sums // 2, sums // 2)
    dense = GivenTerm(source.name, weights(source.height, source.width, source.channels, hidden))
    stages.append(GivenStage("dense0", "d", (dense,), bias=bias(hidden), function=RELU))
    stages.append(GivenStage("dense1", "y", (GivenTerm("d", weights(1, 1, hidden, classes)),), bias=bias(classes)))
    return linked("a", Tensor("x", 1, size, size), stages, softmax=True)


def with_function(graph, function):
    stages = (replace(stage, function=function) if stage.function == RELU else stage for stage in graph.stages)
    return replace(graph, stages=tuple(stages))


def started_state(training, optimizer, rng):
    """Returns a training state as after some steps: master weights of full precision, and non-zero slots."""
    masters = [one.initial * np.float32(rng.uniform(0.9, 1.1)) for one in training.parameters.values()]
    state = initial_state(training, optimizer, masters)
    for slots in state.slots:
        for name, values in slots.items():
            drawn = rng.normal(0, 1, values.shape).astype(np.float32)
            slots[name] = (drawn if values.dtype == bfloat16 else drawn * drawn).astype(values.dtype)
    return state


def batch_of(training, batch, rng):
    x = round_bfloat16(rng.random((batch, training.input_size)).astype(np.float32))
    return x, one_hot(rng.integers(0, training.output_size, batch), training.output_size)


def _bits(values):
    return np.ascontiguousarray(values).view(np.uint16 if values.dtype == bfloat16 else np.uint32)


def differences(training, found, wanted):
    """Returns {name: number of differing elements} of two states, only for arrays that differ."""
    pairs = {}
    for index, one in enumerate(training.parameters):
        pairs[one] = found.masters[index], wanted.masters[index]
        for name, values in wanted.slots[index].items():
            pairs[f"{one}, {name}"] = found.slots[index][name], values
    counts = {name: int((_bits(a) != _bits(b)).sum()) for name, (a, b) in pairs.items()}
    return {name: count for name, count in counts.items() if count}


def run_steps(program, training, optimizer, rng, steps=2, rate=0.1, dropout=None):
    """Runs `steps` steps on all cores, and checks that every parameter, slot and logit matches the golden model bit for bit."""
    state, cores = started_state(training, optimizer, rng), program.cores
    memories = [{region: bytearray(size) for region, size in program.sizes.items()} for _ in range(cores)]
    for rank, regions in enumerate(memories):
        regions[Region.SCRATCH][:] = pack_state(program, state, rank)
    for number in range(steps):
        x, targets = batch_of(training, program.batch * cores, rng)
        masks = dropout.masks(training, number, len(x)) if dropout else {}
        wanted = step(training, state, optimizer, x, targets, rate, masks, cores=cores)
        for rank, regions in enumerate(memories):
            part = slice(rank * program.batch, (rank + 1) * program.batch)
            regions[Region.MODEL] = with_rate(program, rate, number + 1)
            own = {stage: mask[part] for stage, mask in masks.items()}
            regions[Region.INPUT] = program.pack_input(x[part], targets[part], own)
        ring_of(program.config, memories).run()
        logits = np.concatenate([program.unpack_output(regions[Region.OUTPUT]) for regions in memories])
        assert (_bits(logits) == _bits(wanted.logits)).all(), f"step {number}: logits"
        states = unpack_states(program, [regions[Region.SCRATCH] for regions in memories], number + 1)
        assert len(states) == cores
        for rank, found in enumerate(states):
            found = differences(training, found, wanted.state)
            assert not found, f"step {number}, core {rank}: {found}"
        state, rate = wanted.state, rate / 2


def selections(ops):
    loads = (op.fields for op in ops if op.opcode is Opcode.LOAD_TABLE)
    return [settings for settings, _ in groupby({name: fields[name] for name in TABLE_SETTINGS} for fields in loads)]
