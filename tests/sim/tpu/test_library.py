"""Tests of the Python API (`sim/tpu`), covering its examples, and a model with many operators in every simulator, against
onnxruntime."""

import doctest
import gc
import importlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from amaranth_tpu.hw.config import PLAIN
from amaranth_tpu.sim import tpu
from onnx_models import Builder, reference, weights
from stand_in_board import StandInBoard
from suites import slow

CORE = tpu.Config(n=2, unified_buffer_depth=256, accumulator_depth=16, **PLAIN | {"pooling": True})
SMALL = tpu.Config(n=2, unified_buffer_depth=64, accumulator_depth=16, bias_depth=4, **PLAIN)
METHODS = ("layers", "compile", "run", "predict", "trace", "estimate", "compare", "fit", "evaluate", "score", "save", "profile")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Writes a model (batch, 2, 4, 4) -> Conv, BatchNormalization, Relu -> MaxPool -> Conv, Relu -> channels last -> dense ->
    Softmax, and returns its file."""
    rng, b = np.random.default_rng(5), Builder(["batch", 2, 4, 4])
    b("Conv", weights(rng, 3, 2, 3, 3), name="first", pads=[1, 1, 1, 1])
    b("BatchNormalization", *(rng.uniform(0.5, 1.5, 3).astype(np.float32) for _ in range(4)))
    b("Relu")
    b("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    b("Conv", weights(rng, 4, 3, 1, 1), name="second")
    b("Relu")
    b("Transpose", perm=[0, 2, 3, 1])
    b("Reshape", np.array([-1, 16]))
    b("Gemm", weights(rng, 16, 3), name="third")
    b("Softmax", axis=1)
    return b.save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    rng, b = np.random.default_rng(6), Builder(["batch", 5])
    b("Gemm", weights(rng, 5, 4), np.full(4, 1, np.float32))
    b("Relu")
    b("Gemm", weights(rng, 4, 3))
    return tpu.load(b.save(tmp_path_factory.mktemp("dense")))


@pytest.fixture
def x(rng):
    return rng.normal(size=(5, 2, 4, 4)).astype(np.float32)


@pytest.fixture
def rows(rng):
    return rng.normal(size=(3, 5)).astype(np.float32)


@pytest.mark.parametrize("name", [*slow(""), *(f".{path.stem}" for path in Path(tpu.__file__).parent.glob("[a-z]*.py"))])
def test_examples(name):
    if name == ".estimators":
        pytest.importorskip("sklearn")
    module = importlib.import_module(f"amaranth_tpu.sim.tpu{name}")
    assert doctest.testmod(module).failed == 0


def test_every_call_has_an_example():
    classes = [tpu.Simulator, tpu.SerialBoard, tpu.Interpreter, tpu.Checkpoint, tpu.EarlyStopping, tpu.TensorBoard]
    calls = [tpu.load, tpu.from_torch, tpu.from_keras, tpu.as_torch, *classes, *(getattr(tpu.Model, name) for name in METHODS)]
    assert [one for one in calls if ">>> from amaranth_tpu import tpu" not in one.__doc__] == []


def test_predict(saved, x):
    """`predict` gives the same bits on all models of the core, and onnxruntime's values within rounding; inputs may be given by
    name."""
    model = tpu.load(saved)
    assert [(value.name, value.shape, value.dtype) for value in (*model.inputs, *model.outputs)] == [
        ("x", (None, 2, 4, 4), np.float32),
        ("t9", (None, 3), np.float32),
    ]
    y = model.predict(x)
    np.testing.assert_array_equal(model.predict({"x": x.astype(np.float64)}, "model", core=CORE, batch=2), y)
    exact = reference(saved, x)
    assert y.shape == exact.shape and y.dtype == exact.dtype and 0 < abs(y - exact).max() < 0.02
    for on in ("onnxruntime", "onnx", tpu.Interpreter(providers=("CPUExecutionProvider",))):
        np.testing.assert_allclose(model.predict(x, on), exact, atol=1e-5)


def test_models_in_memory(saved, x):
    """`load` takes an onnx.ModelProto and the bytes of a file, and their temporary files are removed with the models."""
    model = onnx.load(saved)
    model.graph.name = "net/1"
    found = [tpu.load(one) for one in (model, saved.read_bytes())]
    assert [one.network.name for one in found] == ["net_1", "model"]
    for one in found:
        np.testing.assert_array_equal(one.predict(x), tpu.load(saved).predict(x))
    folders = [one.network.origin.path.parent for one in found]
    assert all(folder.exists() for folder in folders)
    del found, one
    gc.collect()
    assert not any(folder.exists() for folder in folders)


@pytest.mark.slow
def test_profile(dense, rows):
    """`profile` measures each layer in the RTL: cycles that add up to the cycles of a run."""
    layers = dense.profile(rows, "icarus", core=SMALL)
    assert [layer.macs for layer in layers] == [3 * 5 * 4, 3 * 4 * 3]
    assert sum(layer.cycles for layer in layers) == dense.run(rows, "icarus", core=SMALL).result.cycles
    with pytest.raises(ValueError, match="`on` must be one of verilator, icarus, or a Simulator"):
        dense.profile(rows, "model", core=SMALL)


def test_the_short_name_is_the_same_module(capsys):
    from amaranth_tpu import tpu as short

    assert short.__all__ == tpu.__all__ and all(getattr(short, name) is getattr(tpu, name) for name in tpu.__all__)
    help(short)
    assert "tpu.load(" in (text := capsys.readouterr().out) and "check_steps" in text and "class Checkpoint" in text


def test_trace(saved, x):
    """`trace` returns each layer's values by the model's names and shapes: near onnxruntime's, and with equal bits on the models
    of the core."""
    model = tpu.load(saved)
    ours, theirs = model.trace(x), model.trace(x, "onnxruntime")
    # Convolution, scale, shift and Relu are one layer; with the maximum, if that comes first.
    assert tuple(ours) == tuple(theirs) == model.layers == ("t3", "t5", "t8")
    for name, values in ours.items():
        assert values.shape == theirs[name].shape and values.dtype == np.float32
        np.testing.assert_allclose(values, theirs[name], atol=0.05, err_msg=name)
    core = model.trace(x, "model", core=CORE, batch=5)
    assert tuple(core) == model.layers
    for name, values in core.items():
        np.testing.assert_array_equal(values, ours[name], err_msg=name)


@pytest.mark.search
def test_predict_on_the_rtl(dense, rows):
    """The RTL matches the golden model bit for bit, and the estimated cycles are within 6 % of the RTL's for small runs."""
    run, estimate = dense.run(rows, "icarus", core=SMALL).check(), dense.estimate(SMALL, 3)
    np.testing.assert_array_equal(run.output, dense.predict(rows))
    assert estimate.cycles == pytest.approx(run.result.cycles, rel=0.06)


@pytest.mark.slow
def test_trace_on_rtl(dense, rows):
    ours, core = dense.trace(rows), dense.trace(rows, "icarus", core=SMALL)
    assert len(ours) == 2 and tuple(ours) == tuple(core)
    for name, values in core.items():
        np.testing.assert_array_equal(values, ours[name], err_msg=name)


def test_trace_of_another_order(rng, tmp_path):
    """`trace` returns values in the model's order where the core stores them permuted: channels-last images and a permuted
    vector."""
    b = Builder(["batch", 4, 4, 2])
    b("Transpose", perm=[0, 3, 1, 2])
    b("Conv", weights(rng, 3, 2, 3, 3))
    b("Transpose", perm=[0, 2, 3, 1])
    b("Relu")
    b("Flatten")
    b("Gemm", weights(rng, 12, 6))
    b("Reshape", np.array([-1, 2, 3]))
    b("Transpose", perm=[0, 2, 1])
    model, x = tpu.load(b.save(tmp_path)), rng.normal(size=(3, 4, 4, 2)).astype(np.float32)
    ours, theirs = model.trace(x), model.trace(x, "onnxruntime")
    assert len(ours) == 2 and tuple(ours) == tuple(theirs)
    for name, values in ours.items():
        np.testing.assert_allclose(values, theirs[name], atol=0.1, err_msg=name)
    np.testing.assert_allclose(model.predict(x), reference(tmp_path / "model.onnx", x), atol=0.1)


def test_sample_without_an_axis_for_several(rng, tmp_path):
    b = Builder([6])
    b("MatMul", weights(rng, 6, 3))
    model, x = tpu.load(b.save(tmp_path)), rng.normal(size=6).astype(np.float32)
    exact = reference(tmp_path / "model.onnx", x)
    assert model.inputs[0].shape == (6,) and model.outputs[0].shape == exact.shape == (3,)
    for on in ("golden", "onnx", "model"):
        y = model.predict(x, on, core=None if on == "onnx" else CORE)
        assert y.shape == (3,)
        np.testing.assert_allclose(y, exact, atol=0.05)


def test_several_outputs(rng, tmp_path):
    """`predict` returns a dict if the model has several outputs, here an ArgMax label and logits."""
    b = Builder(["batch", 6])
    logits = b("Gemm", weights(rng, 6, 3))
    label = b("ArgMax", axis=1, keepdims=0)
    model = tpu.load(b.save(tmp_path, outputs=[label, logits], kinds=[TensorProto.INT64]))
    x = rng.normal(size=(5, 6)).astype(np.float32)
    for on in ("golden", "onnxruntime"):
        found = model.predict(x, on)
        assert set(found) == {label, logits} and found[logits].shape == (5, 3)
        np.testing.assert_array_equal(found[label], found[logits].argmax(axis=1))


def test_one_sample_of_several_inputs_without_a_batch(rng, tmp_path):
    """Arrays in the shapes of the model are one sample, and the output has no axis for samples, as for one input."""
    b = Builder([1, 6])
    b.inputs.append(onnx.helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, 1, 6]))
    old = b.node("ReduceSum", ["state", np.array([0])], keepdims=0)
    b.node("Add", [b.node("MatMul", ["x", weights(rng, 6, 6)]), old])
    model = tpu.load(b.save(tmp_path))
    alone = {"x": rng.normal(size=(1, 6)), "state": rng.normal(size=(2, 1, 6))}
    several = {name: np.stack([array, -array]) for name, array in alone.items()}
    assert model.predict(alone).shape == (1, 6) and model.predict(several).shape == (2, 1, 6)
    np.testing.assert_array_equal(model.predict(alone), model.predict(several)[0])


def test_estimate(saved):
    estimate = tpu.load(saved).estimate(CORE, 5)
    assert sum(layer.cycles for layer in estimate.layers) == estimate.cycles > estimate.bound
    assert estimate.macs == 5 * (3 * 2 * 100 + 4 * 3 * 4 + 16 * 3) and estimate.word_bytes == CORE.bus_bytes
    assert estimate.memory["INPUT"] >= 5 * 32 * 2 and estimate.memory["OUTPUT"] >= 5 * 3 * 4 and len(estimate.layers) >= 3
    assert estimate.read_words * estimate.word_bytes >= sum(estimate.memory[name] for name in ("MODEL", "INPUT"))


def test_batch_is_filled_evenly(saved, dense):
    """The default batch needs as few runs as the largest batch, and spreads the samples evenly over them."""
    assert [tpu.load(saved).batch_size(count) for count in (1, 31, 32, 33, 64, 100)] == [1, 31, 32, 17, 32, 25]
    assert [dense.batch_size(count) for count in (128, 129, 512, 1000)] == [128, 65, 128, 125]
    assert dense.run(np.zeros((130, 5), np.float32), "model", core="tiny").program.batch == 65


@pytest.mark.parametrize("core", [{"n": 4}, 4, ["tiny"], 2.5])
def test_core_that_is_none_is_refused(dense, rows, core):
    for call in (dense.estimate, dense.compile, lambda core: dense.predict(rows, "model", core=core)):
        with pytest.raises(tpu.ConfigError, match=r"core must be a Config, the name of a preset, or None.*tpu.Config\(n=4\)"):
            call(core=core)


def test_compare(saved, x):
    model = tpu.load(saved)
    for against in (None, "onnx", "onnxruntime", tpu.Interpreter("onnx")):
        found = model.compare(x, against=against, most=3)
        assert found.samples == 3 and found.error is None and 0 < found.largest < 0.02
        assert found.interpreter.split()[0] == ("onnx" if against not in (None, "onnxruntime") else "onnxruntime")


def test_board(dense, rows):
    with StandInBoard(SMALL) as board:
        place = tpu.SerialBoard(board.name)
        np.testing.assert_array_equal(dense.predict(rows, place), dense.predict(rows))
        assert board.runs == 1
        for name, values in dense.trace(rows, place, batch=2).items():
            np.testing.assert_array_equal(values, dense.trace(rows)[name])
        with pytest.raises(ValueError, match="a board has its own core"):
            dense.predict(rows, place, core="tiny")


def test_wrong_bits(dense, rows):
    class Wrong(StandInBoard):
        def _run(self):
            super()._run()
            self.memory[self.get("output_base_low") + 2] ^= 1

    with Wrong(SMALL) as board:
        run = dense.run(rows, tpu.SerialBoard(board.name))
        assert run.result.mismatched_bits == 1
        with pytest.raises(tpu.RunError, match="1 bits differ from the golden model"):
            run.check()


def test_refusals(saved, x, tmp_path):
    model = tpu.load(saved)
    for cause, error, words in [
        (lambda: tpu.load(tmp_path / "none.onnx"), tpu.ModelError, "No such file"),
        (lambda: model.predict(x[:, 0]), tpu.DataError, r"\(count, 2, 4, 4\)"),
        (lambda: model.predict({"y": x}), tpu.DataError, "'x', not 'y'"),
        (lambda: model.predict(x, "verilog"), tpu.ArgumentError, "icarus, model, golden.*did you mean 'verilator'"),
        (lambda: model.predict(x, tpu.Simulator("onnx")), tpu.ArgumentError, "`Simulator.name` must be one of"),
        (lambda: model.predict(x, batch=0), tpu.CompileError, "batch must be an integer of at least 1, not 0"),
        (lambda: model.compare(x, against="numpy"), tpu.ArgumentError, "`against` must be one of onnxruntime, onnx, or an I"),
        (lambda: model.compare(x, against="golden"), tpu.ArgumentError, "`against` must be one of"),
        (lambda: model.predict(x, "model", core="huge"), tpu.ConfigError, "preset must be one of"),
        (lambda: model.compile(CORE, 0), tpu.CompileError, "batch must be"),
        (lambda: model.predict(x, tpu.Interpreter(providers=("None",))), tpu.InterpreterError, "no provider None; it has .*CPU"),
        (lambda: model.run(x, "onnx").compare(), tpu.InterpreterError, "compare a run on a core"),
    ]:
        with pytest.raises(error, match=words):
            cause()


@pytest.mark.slow
def test_readme_example_runs(capsys):
    page = (Path(__file__).parents[3] / "sim" / "README.md").read_text()
    exec(page.split("```python\n")[1].split("```")[0], {})
    assert "Estimate(n=4, batch=4" in capsys.readouterr().out
