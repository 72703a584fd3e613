"""Random networks that run on the whole core, with a check of their logits."""

import numpy as np

from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.machines import machine_of
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.rtl.number_classes import numbers


def bfloat16s(rng, shape, specials):
    """Returns random bfloat16; the fraction `specials` is of all classes of numbers."""
    return numbers(rng, shape, specials, 16).astype(np.uint16).view(bfloat16)


def random_network(rng, specials, most=40):
    return make_network(rng, rng.integers(1, most, rng.integers(2, 5)), specials)


def make_network(rng, widths, specials):
    layers = []
    for index, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        bias, weights = None, bfloat16s(rng, (inputs, outputs), specials)
        if rng.random() < 0.7:
            bias = numbers(rng, outputs, specials).view(np.float32)
            bias[0], weights[:, 0] = -0.0, -0.0  # a sum of -0 of positive numbers: padding could change it
        layers.append((f"layer{index}", weights, bias, str(rng.choice(["relu", "none"]))))
    return dense_chain("random", layers)


def network_runs(rng, config, host, count, most=40, largest=10):
    """Compiles `count` random networks into host memory. Returns their runs, and a function that checks the results against the
    golden model."""
    runs, checks = [], []
    for index in range(count):
        network = random_network(rng, 0.03 if index % 2 else 0.0, most)
        batch = int(rng.integers(1, largest))
        samples = bfloat16s(rng, (batch, network.input_size), 0.03 if index % 2 else 0.0)
        samples[0] = abs(samples[0])
        program = compile_network(network, config, batch)
        regions = {
            "MODEL": host.place(program.model),
            "INPUT": host.place(program.pack_input(samples)),
            "OUTPUT": host.place(bytes(program.sizes[Region.OUTPUT])),
            "SCRATCH": host.place(bytes(program.sizes[Region.SCRATCH])),
        }
        runs.append({"regions": regions, "timeout": 20_000})
        expected = run_network(network, samples)
        checks.append((program, regions["OUTPUT"], expected))
        images = [host.bytes[base : base + size] for base, size in regions.values()]
        machine = machine_of(config, dict(zip(map(Region.__getitem__, regions), images)))
        machine.run()
        assert (program.unpack_output(images[2]).view(np.uint32) == expected.view(np.uint32)).all(), "the program is wrong"

    def check(result):
        assert [one["fault"] for one in result["runs"]] == [None] * len(runs)
        for program, (base, size), expected in checks:
            found = program.unpack_output(result["memory"][base : base + size])
            assert (found.view(np.uint32) == expected.view(np.uint32)).all(), program.plan

    return runs, check
