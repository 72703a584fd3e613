"""Tests of programs whose weights are stored in OCP MX formats: the bits of the golden model, and smaller images."""

from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu import tpu
from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.spec.encoding import decode
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.scripts.cli.compile_command import compiled
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.weight_formats import FORMATS, round_weights
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.models.shipped import SHIPPED
from amaranth_tpu.sim.trainer.errors import ArgumentError
from graphs import check, execute
from suites import slow

CORE = Config(n=8, unified_buffer_depth=256, accumulator_depth=64, weight_rows=2, weight_formats=True)


def chain(rng, sizes, function="relu"):
    layers = [(f"{k}", rng.normal(size=shape).astype(bfloat16), None, function) for k, shape in enumerate(zip(sizes, sizes[1:]))]
    return dense_chain("chain", layers)


def loads(program):
    """Returns the fields of all LOAD_WEIGHTS of a program."""
    step = program.config.instruction_bytes
    words = [int.from_bytes(program.model[place * step :][:32], "little") for place in range(program.instructions)]
    return [fields for opcode, fields in map(decode, words) if opcode is Opcode.LOAD_WEIGHTS]


@pytest.mark.parametrize("format_", FORMATS)
def test_bits_of_the_rounded_network(format_, rng):
    graph = round_weights(chain(rng, (72, 40, 16)), format_)
    program = check(graph, CORE, 3, rng)
    assert {fields["weight_format"] for fields in loads(program)} == {format_.value}
    plain = check(graph, replace(CORE, weight_formats=False), 3, rng)
    assert len(program.model) < len(plain.model) - 2 * (72 * 40 + 40 * 16) * (1 - format_.bits / 16 - 0.1)


def test_limit_of_the_array_with_two_vectors_a_cycle(rng):
    """No program takes fewer cycles than its limit, which counted one vector a cycle."""
    graph = round_weights(chain(rng, (128, 128, 128)), FORMATS[2])
    program = compile_network(graph, replace(CORE, unified_buffer_depth=1024, accumulator_depth=512), 2)
    assert 0.5 < program.bound / program.predicted_cycles <= 1


def test_weights_that_no_format_holds_stay_bfloat16(rng):
    """Each matrix has the smallest format that holds it, and one with other weights stays as it is."""
    graph = round_weights(chain(rng, (40, 16, 24)), FORMATS[0])
    name = graph.stages[1].terms[0].weights
    graph.constants[name] = weights = graph.constants[name].copy()
    weights[0, 3:5, 5] = 1.0078125, 1e-3  # eight significant bits, and a small number
    program = check(graph, CORE, 2, rng)
    assert {fields["weight_format"] for fields in loads(program)} == {0, FORMATS[0].value}


def test_altered_scale_changes_results(rng):
    graph = round_weights(chain(rng, (16, 8), "none"), FORMATS[2])
    program, x = compile_network(graph, CORE, 2), rng.uniform(1, 2, (2, 16)).astype(bfloat16)
    model = bytearray(program.model)
    model[loads(program)[0]["offset"] + 3] += 1  # of column 3 of the first tile
    right, wrong = execute(program, CORE, x, rng), execute(replace(program, model=bytes(model)), CORE, x, rng)
    assert np.flatnonzero((right != wrong).any(axis=0)).tolist() == [3]


@pytest.mark.parametrize("name", slow("c", "default"))
def test_shipped_networks(name, rng):
    graph = round_weights(load_network(SHIPPED[name]), FORMATS[2])
    check(graph, Config(weight_formats=True), 2, rng)


def test_python_api_tells_the_error(rng):
    """Rounded weights are told where results are compared with ONNX, and a wrong name is refused."""
    model = tpu.load("d", weights="mxfp4")
    run = model.run(rng.random((3, 1, 28, 28)), on="model", core=Config(n=8, weight_formats=True), batch=3)
    assert run.result.mismatched_bits == 0
    found = run.compare()
    assert not found.error and found.rounding is None
    assert found.note.startswith("weights are rounded to mxfp4, with a relative root-mean-square error of 1")
    with pytest.raises(ArgumentError, match="^weights must be one of mxfp4, mxfp6, mxfp8, mxint8, not 'fp8'$"):
        tpu.load("d", weights="fp8")


def test_bundle_needs_a_core_with_the_formats():
    """`tpu compile --weights` writes its option into the C header, and the driver checks that the core decodes the weights."""
    bundle = compiled(Config(n=8, weight_formats=True, **PLAIN), "d", weights="mxfp8").bundle
    header = bundle.files["model.h"]
    header = header.decode() if isinstance(header, bytes) else header
    assert " --weights mxfp8 " in header and bundle.model.needs.features == 1 << 6
