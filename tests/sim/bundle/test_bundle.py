"""Tests of bundles for hosts, covering copy descriptions, the constants of the header, and the memory images."""

import ctypes
import json
import re
import zlib
from dataclasses import fields, replace

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.bundle.bundle import FILES, make_bundle
from amaranth_tpu.sim.bundle.copies import copies_of, expand
from amaranth_tpu.sim.bundle.host_model import host_model
from amaranth_tpu.sim.bundle.tensors import input_tensors, output_tensors
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.ir.graph import dense_chain
from bundles import wrong_bytes
from c_driver import ERRORS, build_library
from core_networks import bfloat16s
from graphs import random_graph

CONFIG = Config(n=4, unified_buffer_depth=1024, accumulator_depth=256)


def pairs(values, places):
    return sorted(zip(np.asarray(values).tolist(), np.asarray(places).tolist()))


def test_copies_of_loops(rng):
    """The index pattern of nested loops with any strides becomes a single copy description with the same counts."""
    counts, steps = rng.integers(2, 6, 4), rng.integers(-50, 50, (2, 4)) * 1000 ** np.arange(4)[::-1]
    rounds = np.indices(counts).reshape(4, -1)
    values, places = steps[0] @ rounds, steps[1] @ rounds
    copies = copies_of(values, places)
    assert len(copies) == 1 and copies[0].count == tuple(counts)
    assert (np.stack(expand(copies)) == [values, places]).all()


@pytest.mark.parametrize("count", [1, 2, 3, 50, 500])
def test_copies_of_anything(rng, count):
    values, places = rng.integers(0, 4, count), rng.permutation(count) // 2
    assert pairs(*expand(copies_of(values, places))) == pairs(values, places)


@pytest.mark.parametrize("batch", [1, 5])
def test_tensors_are_where_the_compiler_has_them(rng, batch):
    """The bundle's copies put every input value of every sample where the compiler expects it, and read each output where the
    compiler stores it."""
    graph = random_graph(rng, stages=2)
    order = rng.permutation(graph.input_size)
    graph = replace(graph, input_order=order, output_order=rng.integers(0, graph.output_size, 7))
    program = compile_network(graph, CONFIG, batch)
    memory = program.memory
    samples = rng.integers(1, 1 << 15, (batch, graph.input_size)).astype(np.uint16)
    packed = np.frombuffer(program.pack_input(samples.view(bfloat16)), np.uint16)
    image = np.zeros_like(packed)
    for tensor in input_tensors(memory):
        for sample in range(batch):
            values, places = expand(tensor.copies)
            image[places + tensor.offset(sample)] = samples[sample, values]
    assert (image == packed).all()
    size = 4 if memory.wide else 2
    for sample in range(batch):
        found = {}
        for output in output_tensors(memory):
            values, places = expand(output.copies)
            found |= dict(zip(values.tolist(), (size * (places + output.offset(sample))).tolist()))
        assert found == {value: memory.output_offset(sample, value) for value in range(7)}


@pytest.fixture(scope="module")
def made():
    rng = np.random.default_rng(4)
    layers = [("a", bfloat16s(rng, (9, 5), 0), None, "relu"), ("b", bfloat16s(rng, (5, 3), 0), None, "none")]
    network = dense_chain("two */ layers\\", layers)
    program = compile_network(network, CONFIG, 2)
    return network, program, make_bundle(network, program, rng.normal(size=(2, 9)).astype(np.float32), name="own")


@pytest.mark.search  # the fixture of the module is compiled with the fastest order
def test_files(made):
    network, program, bundle = made
    assert tuple(bundle.files) == FILES and bundle.files["model.bin"] == program.model
    assert wrong_bytes(bundle, CONFIG) == 0
    layout = json.loads(bundle.files["layout.json"])
    for name, entry in layout["files"].items():
        assert entry["bytes"] == len(bundle.files[name]) and int(entry["crc32"], 0) == zlib.crc32(bundle.files[name])
    assert {*layout["files"]} == {*FILES} - {"layout.json"}
    for region in layout["regions"].values():
        assert region["file"] is None or region["bytes"] == len(bundle.files[region["file"]])
    for name, entry in layout["vectors"].items():
        assert 4 * np.prod(entry["shape"]) == len(bundle.files[name])
    again = make_bundle(network, compile_network(network, CONFIG, 2), bundle.samples, name="own")
    assert again.files == bundle.files


def test_wrong_results_are_noticed(made):
    bundle = made[2]
    image = bytearray(bundle.files["output.bin"])
    image[1] ^= 1
    assert wrong_bytes(replace(bundle, files=bundle.files | {"output.bin": bytes(image)}), CONFIG) == 1


def test_missing_samples_are_zeros(made):
    network, program, _ = made
    bundle = make_bundle(network, program, np.ones((1, 9), np.float32))
    assert not bundle.samples[1].any() and bundle.samples[0].all() and len(bundle.results) == 2


def test_header_is_checked(made, tmp_path):
    """The C driver accepts the generated header, and returns HEADER if a number of any kind in it is changed."""
    header = made[2].files["model.h"].decode()
    assert "two __ layers_" in header and header.count("*/") == header.count("/*")
    changes = [("", "")]
    changes += [(r"(OWN_SCRATCH_BYTES +)\d+u", r"\g<1>64u"), (r"(NEEDS_BIAS_DEPTH +)512u", r"\g<1>32u"), ('"two __', '"two _+')]
    changes += [(r"(own_input_shape\[\] = )\{9u\}", r"\1{8u}"), (r"\{1u, 1u, 2u, 4u\}", "{1u, 2u, 1u, 4u}"), ("32u,\n", "16u,\n")]
    for number, (old, new) in enumerate(changes):
        text = re.sub(old, new, header, count=1)
        assert (text == header) == (not old), old
        library = build_library(tmp_path / str(number), text.replace(" own = ", " model = "))
        assert library.tpu_check_header(ctypes.c_void_p(library.the_model())) == (ERRORS["HEADER"] if old else 0), old


def test_every_number_of_the_header_counts(made):
    network, program, _ = made
    model = host_model(network, program)
    crc, (tensor,) = model.crc, model.output
    assert crc == model.crc
    for field in fields(model):
        value = getattr(model, field.name)
        if isinstance(value, int):
            assert replace(model, **{field.name: value + 1}).crc != crc, field.name
    for field in fields(model.needs):
        changed = replace(model.needs, **{field.name: getattr(model.needs, field.name) + 1})
        assert replace(model, needs=changed).crc != crc, field.name
    copy = tensor.copies[0]
    for field in fields(copy):
        value = getattr(copy, field.name)
        value = value + 1 if isinstance(value, int) else (*value[:-1], value[-1] + 1)
        other = replace(tensor, copies=(replace(copy, **{field.name: value}), *tensor.copies[1:]))
        assert replace(model, output=(other,)).crc != crc and replace(model, input=(other,)).crc != crc
