"""Tests that the cycles per layer, by the timing model and the instruction-level model, add up to the whole program's."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.timing import waits
from amaranth_tpu.sim.compiler.timing.model import simulate
from amaranth_tpu.sim.golden.machines import machine_of
from amaranth_tpu.sim.tpu.layer_costs import expected_layers, first_stages, measured_layers
from seeds import seed
from suites import slow
from training_steps import chain


#: Programs in which chunks of the batch and streamed operands interleave the instructions and tiles of layers.
@pytest.fixture(scope="module", params=[((30, 21, 17, 9), 24, 64), *slow((((64, 40, 8), 40, 32),)), ((12, 8), 4, 256)])
def program(request):
    sizes, batch, depth = request.param
    config = Config(n=4, unified_buffer_depth=depth, accumulator_depth=32, bias_depth=8)
    return compile_network(chain(np.random.default_rng(seed()), sizes), config, batch)


def test_programs_of_the_first_layers(program):
    """The program of the first k layers ends without a fault and uses all the tiles that it loads. For all layers it is the whole
    program."""
    layers = len(program.plan)
    matmuls = []
    for count in range(1, layers + 1):
        part = first_stages(program, count)
        machine = machine_of(
            program.config,
            {region: bytearray(size) for region, size in part.sizes.items()} | {Region.MODEL: bytearray(part.model)},
        )
        machine.run()
        tiles = sum(op.rows for op in part.ops if op.opcode.name == "LOAD_WEIGHTS")
        assert tiles == sum(op.passes for op in part.ops if op.opcode.name == "MATMUL" and not op.keep)
        assert machine.executed == len(part.ops) + 1 == part.instructions
        simulate(part.ops, program.config)
        for op in program.ops:
            assert op.opcode.name != "LOAD_WEIGHTS" or [stage for stage, _ in op.parts] == sorted(stage for stage, _ in op.parts)
        matmuls.append(tiles)
    assert part.model == program.model and len(part.ops) == len(program.ops)
    assert [len(first_stages(program, 0).ops), *matmuls] == sorted({0, *matmuls})


def test_expected_layers_add_up(program, monkeypatch):
    """The layers come from one simulation, however many there are, and their costs add up to the program's."""
    simulations = []
    monkeypatch.setattr(waits, "simulate", lambda *args, **options: simulations.append(0) or simulate(*args, **options))
    layers = expected_layers(program)
    assert len(simulations) == 1
    assert sum(layer.cycles for layer in layers) == program.predicted_cycles
    assert sum(layer.macs for layer in layers) == program.useful_macs
    assert sum(layer.compute_cycles for layer in layers) == program.cost.compute_cycles
    assert sum(layer.write_beats for layer in layers) == program.cost.write_beats
    halt = program.config.instruction_bytes // program.config.bus_bytes
    assert (
        0 <= program.cost.read_beats - halt - sum(layer.read_beats for layer in layers) < len(layers)
    )  # shares are rounded down
    assert all(0 < layer.busy <= layer.cycles and 0 < layer.utilisation <= 1 for layer in layers)


def test_overlap_is_counted_once(program):
    """If a layer shortens the preceding layer's drain stall, no layer has negative stalls, and the cycles still add up."""
    layers = len(program.plan)
    if layers < 2:
        return
    busy, drain = [100 * (number + 1) for number in range(layers)], [70, 20, 90][:layers]
    counters = [{"busy": one, "stall_drain": two} for one, two in zip(busy, drain)]

    def run(part, number, count):
        assert count == layers
        return {f"stall_{name}": 5 for name in _reasons()} | counters[number - 1]

    measured = measured_layers(program, run)
    assert [layer.stalls["drain"] for layer in measured] == [20, 0, 70][:layers]
    assert [layer.busy for layer in measured] == [100] * layers
    assert sum(layer.cycles for layer in measured) == busy[-1] + drain[-1] + 5 * (len(_reasons()) - 1)


def _reasons():
    from amaranth_tpu.hw.spec.registers import STALLS

    return STALLS
