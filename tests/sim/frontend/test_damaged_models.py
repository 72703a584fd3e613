"""Tests that each damaged or malicious file gives a network or a one-line error that is safe to print, in limited time and
memory."""

import resource
import time
import unicodedata

import numpy as np
import onnx
import pytest
from onnx import helper

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.data.printable import printable
from amaranth_tpu.sim.frontend.apply import supported_operators
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.ir.errors import ModelError
from damage import HOSTILE, damaged, originals
from onnx_models import Builder, refused, weights
from seeds import seed
from suites import slow

_MOST_SECONDS, _MOST_MEMORY = 10, 2e6  # CPU seconds; kB


def _safe(text):
    return text.isprintable() and not any(unicodedata.category(one)[0] == "M" for one in text)


@pytest.mark.parametrize("trials", [40, *slow(3000)])
def test_damaged(tmp_path, trials):
    rng = np.random.default_rng(seed())
    path, models = tmp_path / "model.onnx", originals(rng)
    (tmp_path / "weights.bin").write_bytes(weights(rng, 96).tobytes())
    for model in models:
        path.write_bytes(model.SerializeToString())
        load_network(path)
    before, said = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    for _ in range(trials):
        path.write_bytes(damaged(models[rng.integers(len(models))], rng))
        start = time.process_time()
        try:
            compile_network(load_network(path), Config(n=4), 2)
        except (ModelError, CompileError) as error:
            assert _safe(str(error)) and len(str(error)) <= 600, error
            said += 1
        assert time.process_time() - start < _MOST_SECONDS
    assert said > trials // 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < max(before, _MOST_MEMORY)


def _everywhere(name):
    """Returns `build(where)`, which builds a model with an error at `where`. The model uses `name` at that place, so that the
    error message may contain it."""

    def build(where):
        b = Builder(["n", 12])
        b("MatMul", np.ones((12, 12), np.float32))
        b("Relu" if where != "operator" else name, name="odd")
        model = b.model()
        node, graph = model.graph.node[1], model.graph
        if where == "node":
            node.name, node.op_type = name, "LRN"
        elif where == "unnamed":
            node.name, node.op_type, node.output[0] = "", "LRN", name
            graph.output[0].name = name
        elif where == "domain":
            node.domain = name
            model.opset_import.add(domain=name, version=1)
        elif where == "domain without a version":
            node.domain = name
        elif where == "attribute":
            node.attribute.append(helper.make_attribute(name, 1))
        elif where == "word":
            node.op_type = "Gelu"
            model.opset_import[0].version = 20
            node.attribute.append(helper.make_attribute("approximate", name))
        elif where == "input":
            node.input[0] = name
        elif where == "graph input":
            graph.input[0].name = graph.node[0].input[0] = name
            graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1 << 24
        elif where == "second input":
            graph.input.append(helper.make_tensor_value_info(name, 1, [1]))
        elif where == "size":
            graph.input[0].type.tensor_type.shape.dim[1].dim_param = name
        elif where == "output":
            graph.output[0].name = name
        elif where == "initialiser":
            graph.initializer[0].name = graph.node[0].input[1] = name
            graph.initializer[0].dims[0] = -1
        elif where == "external":
            onnx.external_data_helper.set_external_data(graph.initializer[0], name)
            graph.initializer[0].ClearField("raw_data")
        elif where == "external key":
            onnx.external_data_helper.set_external_data(graph.initializer[0], "weights.bin")
            graph.initializer[0].ClearField("raw_data")
            graph.initializer[0].external_data.add(key=name, value=name)
        elif where == "equation":
            node.op_type = "Einsum"
            node.input.append("c0")
            node.attribute.append(helper.make_attribute("equation", name))
        return model

    return build


_PLACES = "operator,node,unnamed,domain,domain without a version,attribute,word,input,graph input,second input,size,output"
_PLACES = (*_PLACES.split(","), "initialiser", "external", "external key", "equation")


@pytest.mark.parametrize("place", _PLACES)
def test_hostile_names(tmp_path, place, recwarn):
    """Error messages contain no control or combining characters from names in the model, and stay within 600 characters."""
    path = tmp_path / "model.onnx"
    for name in HOSTILE[:-1]:
        path.write_bytes(_everywhere(name)(place).SerializeToString())
        with pytest.raises(ModelError) as caught:
            load_network(path)
        message = str(caught.value)
        assert _safe(message) and len(message) <= 600, message
        assert len(message) - len(str(path)) < 420, message
    assert not recwarn.list


def test_hostile_names_in_a_network(tmp_path):
    """In an accepted model, names of stages and tensors and the metadata contain only safe characters, because reports print
    them."""
    for name in HOSTILE[:-1]:
        b = Builder(["n", 12])
        b("MatMul", np.ones((12, 12), np.float32), name=name)
        b("Sigmoid", name=name + "2")
        model = b.model()
        model.graph.node[1].output[0] = model.graph.output[0].name = name + "3"
        model.metadata_props.add(key="preprocess", value=name)
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        graph = load_network(path)
        texts = [graph.name, graph.preprocess, *graph.tensors, *(stage.name for stage in graph.stages)]
        assert all(_safe(text) and len(text) <= 90 for text in texts), texts


def test_too_large(tmp_path):
    """A model with more than 8,388,608 values per sample, as its input or in between, is refused. So is a small file with large
    values, or with a large kernel."""
    b = Builder(["n", 1 << 24])
    b("Relu")
    refused(b.save(tmp_path), "input 'x' has the shape (n, 16777216); at most 8388608 values per sample are supported")
    b = Builder(["n", 1, 1 << 12])
    b("Relu")
    b("Expand", np.array([1, 1 << 12, 1]), name="odd")
    refused(b.save(tmp_path), "operator Expand, node 'odd': makes 16777216 values per sample")
    b = Builder(["n", 1, 1 << 12])
    b("Expand", np.array([1, 1 << 11, 1]), name="odd")
    path = b.save(tmp_path)
    refused(path, "operator Expand, node 'odd': makes 8388608 values per sample; at most 104")  # a small file
    b = Builder(["n", 5_000_000])
    b("Relu")
    refused(b.save(tmp_path), "input 'x' has 5000000 values per sample; at most 104", "in so small a file")
    b.constant(np.zeros(1 << 17, np.float32))
    load_network(b.save(tmp_path))
    b = Builder(["n", 600_000])
    b("Tanh")
    load_network(b.save(tmp_path))
    b("Softmax", name="odd")
    refused(b.save(tmp_path), "node 'odd': the results up to it have 75000 tiles of 16 channels", "in so small a file")
    b = Builder(["n", 1, 1000, 1000])
    kernel = b.node("ConstantOfShape", [np.array([1, 1, 1000, 1000])])
    b.node("Conv", ["x", kernel], name="odd", pads=[500] * 4)
    refused(b.save(tmp_path), "node 'odd': takes 1002001000000 multiplications per sample; at most", "in so small a file")


def test_file_name(tmp_path):
    folder = tmp_path / "\x1b[31mred\nline"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"no model")
    for path in (folder / "model.onnx", folder / "absent.onnx", folder):
        with pytest.raises(ModelError) as caught:
            load_network(path)
        assert _safe(str(caught.value)) and "\\x1b[31mred\\nline" in str(caught.value)


def test_name_that_is_not_utf8(tmp_path):
    """A name that is not UTF-8, which protobuf returns as bytes, is refused with its bytes in the error."""
    path = tmp_path / "model.onnx"
    content = Builder(["n", 12])
    content("MatMul", np.ones((12, 3), np.float32), name="NAME")
    path.write_bytes(content.model().SerializeToString().replace(b"NAME", b"\xff\x1b[m"))
    refused(path, "NodeProto has a name that is not UTF-8 text: b'\\xff\\x1b[m'")


def test_external_data_elsewhere(tmp_path):
    """External weights are read only from regular files in the model's own folder: other paths, links and short files are
    refused."""
    outside, folder = tmp_path / "weights.bin", tmp_path / "model"
    folder.mkdir()
    outside.write_bytes(bytes(4 * 36))
    (folder / "link.bin").symlink_to(outside)
    (folder / "short.bin").write_bytes(bytes(8))
    for place in ("../weights.bin", str(outside), "link.bin", "absent.bin", "short.bin", ".", ""):
        b = Builder(["n", 12])
        b("MatMul", np.zeros((12, 3), np.float32))
        model = b.model()
        onnx.external_data_helper.set_external_data(model.graph.initializer[0], place)
        model.graph.initializer[0].ClearField("raw_data")
        path = folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        refused(path, "initialiser 'c0' cannot be read")


def test_printable():
    for name in HOSTILE:
        text = printable(name)
        assert _safe(text) and printable(text) == text
        assert len(printable(name, 30)) <= 30
    assert printable("Größe 层/conv.1[0]") == "Größe 层/conv.1[0]"
    assert printable("\x1b[0m\u202e\u200b\ud83d") == "\\x1b[0m\\u202e\\u200b\\ud83d"
    short = printable("begin" + "-" * 99 + "end", 20)
    assert short.startswith("begin") and short.endswith("end")


def test_supported_operators():
    groups = supported_operators()
    assert {"Gemm", "Conv"} <= set(groups["linear"]) and "Log" in groups["as part of a function that is written out"]
    for operators in groups.values():
        assert operators and all(isinstance(name, str) for name in operators)
