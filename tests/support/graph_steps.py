"""Runs of the programs of step graphs, compared with the reference model of steps."""

import numpy as np

from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.sim.functions.functions import RELU
from amaranth_tpu.sim.golden.arithmetic import bfloat16, round_bfloat16
from amaranth_tpu.sim.golden.machines import ring_of
from amaranth_tpu.sim.golden.shards import shards_of
from amaranth_tpu.sim.golden.steps import run_step
from step_networks import Builder


def dense_network(rng, sizes, function=RELU):
    network = Builder(rng)
    x = network.add_input("x", (1, 1, sizes[0]))
    for number, size in enumerate(sizes[1:]):
        last = number == len(sizes) - 2
        x = network.conv(f"dense{number}", x, size, wide=last, **({} if last else {"function": function}))
    network.output = x
    return network


def kept_of(step, rng):
    """Returns the kept tensors of a step as after some steps: parameters of full precision, and optimizer state."""
    kept = {}
    for name in step.state:
        tensor = step.tensors[name]
        if name in step.parameters:
            values = step.parameters[name].initial * np.float32(rng.uniform(0.9, 1.1))
        else:
            values = rng.normal(0, 0.1, tensor.shape).astype(np.float32)
            values = values * values if tensor.wide else round_bfloat16(values)
        kept[name] = values.reshape(1, *tensor.shape)
    return kept


def inputs_of(step, batch, rng, binades=0):
    """Returns the inputs, targets and factors of positions of a step. Each number of an input is multiplied by a power of two
    from 2^-binades to 1."""
    shapes = {name: (batch, *step.tensors[name].shape) for name in step.inputs}
    values = {name: rng.random(shape) * np.exp2(-rng.integers(0, binades + 1, shape)) for name, shape in shapes.items()}
    values = {name: round_bfloat16(one.astype(np.float32)) for name, one in values.items()}
    tensor = step.tensors[step.targets]
    labels = rng.integers(0, tensor.channels, (batch, tensor.height, tensor.width))
    values[step.targets] = (labels[..., None] == np.arange(tensor.channels)).astype(bfloat16)
    if step.counted:
        values[step.counted] = (rng.random((batch, tensor.height, tensor.width, 1)) > 0.3).astype(bfloat16)
    return values


def numbers_of(step, factors):
    return {tensor: np.full((1, 1, 1, 1), factors[name], bfloat16) for name, tensor in step.factors.items()}


def wanted(step, inputs, kept, factors, cores=1):
    """Returns the tensors of the reference model, on the cores of a ring with equal shares of the samples."""
    shards = shards_of(len(inputs[step.targets]), cores)
    shared, own = run_step(step, inputs | kept | numbers_of(step, factors), None, [{} for _ in shards], shards)
    return shared | own[0]


def differing(step, found, expected):
    """Returns {tensor: number of elements whose bits differ} of the logits, of the kept tensors and of the sums over the cores of
    a ring, after a step. `found(name)` returns a tensor of the program."""
    counts, sums = {}, {stage.start: stage.output for stage in step.stages if stage.ring}
    for name, after in {step.output: step.output, **step.state, **sums}.items():
        if after not in expected:  # statistics that only samples read
            continue
        one, other = (np.ascontiguousarray(values) for values in (found(name), expected[after]))
        assert one.dtype == other.dtype and one.shape == other.shape, name
        bits = np.uint32 if one.dtype == np.float32 else np.uint16
        if count := int((one.view(bits) != other.view(bits)).sum()):
            counts[name] = count
    return counts


def run_on_model(program, optimizer, rng, steps=2):
    """Runs steps on the instruction-level model of a core, or of the cores of a ring. Asserts that logits, parameters and
    optimizer state equal the reference model's in every bit."""
    step, batch = program.memory.given, program.batch * program.cores
    kept = kept_of(step, rng)
    memories = [{Region.SCRATCH: bytearray(program.pack(Region.SCRATCH, kept))} for _ in range(program.cores)]
    for number in range(steps):
        factors = optimizer.factors(0.1, batch, number + 1)
        # Sums of samples of one size are exact: the order of the cores would not matter.
        inputs = inputs_of(step, batch, rng, 24 if program.cores > 1 else 0)
        shards = shards_of(batch, program.cores)
        for regions, shard in zip(memories, shards):
            own = {name: values[shard] for name, values in inputs.items()}
            regions[Region.MODEL] = bytearray(program.with_factors(factors))
            regions[Region.INPUT] = bytearray(program.pack(Region.INPUT, own))
            regions[Region.OUTPUT] = bytearray(program.sizes[Region.OUTPUT])
        ring_of(program.config, memories).run()
        expected = wanted(step, inputs, kept, factors, program.cores)
        for regions, shard in zip(memories, shards):

            def found(name, regions=regions):
                return program.unpack(regions[Region.OUTPUT if name == step.output else Region.SCRATCH], name)

            own = expected | {step.output: expected[step.output][shard]}
            assert not differing(step, found, own), f"step {number}"
        kept = {name: expected[after] for name, after in step.state.items()}
