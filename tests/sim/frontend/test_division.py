"""Tests of models that are divided between the core and the host: names, shapes and values against onnxruntime, and the parts."""

import json
import logging
import re

import numpy as np
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.sim import tpu
from json_output import printed
from onnx_models import Builder, close, integers, values_of, weights

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def _two(b, operator, *inputs, **attributes):
    b(operator, *inputs, **attributes)
    b.nodes[-1].output.append(f"{b.last}_second")
    return f"{b.last}_second"


def _checked(path, feeds, core=()):
    """Compares all outputs of a divided model with onnxruntime. Returns the model. `core` are the kinds of its parts."""
    with pytest.raises(tpu.ModelError):
        tpu.load(path, strict=True)
    model = tpu.load(path)
    names = [value.name for value in model.outputs]
    found = model.run(feeds).check()
    wanted = values_of(path, feeds["x"], names)
    for name in names:
        assert found.outputs[name].shape == wanted[name].shape, name
        assert found.outputs[name].dtype == wanted[name].dtype, name
        if wanted[name].size:
            close(found.outputs[name].astype(np.float32), wanted[name].astype(np.float32))
    assert found.compare().error is None
    if core:
        assert "".join("ch"[not row.on_core] for row in model.table(found.count)) == core
    return model


def _foreign(b, rng):
    """A node that the core lacks between two layers."""
    b("Gemm", weights(rng, 4, 6))
    b("Sin", name="foreign")
    b("Gemm", weights(rng, 6, 3))


def test_foreign_node_between_two_layers(rng, tmp_path, caplog):
    b = Builder(["n", 4])
    _foreign(b, rng)
    path, x = b.save(tmp_path), rng.normal(size=(3, 4)).astype(np.float32)
    with caplog.at_level(logging.WARNING):
        model = _checked(path, {"x": x}, core="chc")
    assert "the host 1 of 3 nodes, because of Sin: is not supported" in caplog.messages[0]
    assert model.outputs[0].name == b.last and model.inputs[0].shape == (None, 4) and model.outputs[0].shape == (None, 3)
    run = model.run(x, on="model", core=tpu.Config(n=2))
    assert run.mismatched_bits == 0 and (run.output == model.predict(x)).all()
    estimate = model.estimate(tpu.Config(n=2), batch=3)
    assert estimate.cycles == sum(program.predicted_cycles for program in estimate.programs) > estimate.bound > 0
    assert {name: array.shape for name, array in model.trace(x).items()} == {"t0": (3, 6), b.last: (3, 3)}
    assert [(row.read_values, row.write_values) for row in model.table(3)] == [(12, 18), (0, 0), (18, 9)]
    with pytest.raises(tpu.ModelError, match="node 'foreign': is not supported"):
        model.fit(x, [0, 1, 2])


def test_end_that_the_host_computes(rng, tmp_path):
    """Values and indices of TopK have the file's names, shapes and types."""
    b = Builder(["n", 3, 4, 4])
    b("Conv", weights(rng, 5, 3, 2, 2))
    b("Flatten")
    second = _two(b, "TopK", np.array([2]), axis=1)
    path = b.save(tmp_path, outputs=[b.last, second], kinds=[FLOAT, INT64])
    x = rng.normal(size=(2, 3, 4, 4)).astype(np.float32)
    model = tpu.load(path)
    found, scores = model.predict(x), tpu.load(b.save(tmp_path, outputs=["t1"])).predict(x)
    assert found[second].dtype == np.int64 and found[second].shape == (2, 2)
    np.testing.assert_array_equal(found[b.last], -np.sort(-scores, axis=1)[:, :2])
    np.testing.assert_array_equal(np.take_along_axis(scores, found[second], axis=1), found[b.last])


def _shared(b, rng):
    """A value that the host, two parts and the user read."""
    first = b("Gemm", weights(rng, 4, 4))
    sine = b("Sin")
    second = b.node("Gemm", [first, weights(rng, 4, 4)])
    b.node("Add", [b.node("Gemm", [sine, weights(rng, 4, 4)]), second])
    return [first, second, b.last], [FLOAT] * 3


def _around_the_host(b, rng):
    """Two nodes of the core read a value directly, and by way of the host: neither can be one part with the value's node. The
    reader's refusal names only the first node of the host."""
    for _ in range(2):
        first = b("Gemm", weights(rng, 4, 4))
        b.node("Add", [first, b("Sin")])
    b("Gemm", weights(rng, 4, 3))
    return [b.last], [FLOAT]


def _types(b, rng):
    """Truth values, integers and an empty tensor between the parts."""
    first = b("Gemm", integers(rng, 4, 4))
    truth = b("IsInf")
    number = b.node("Cast", [b.node("Sin", [first])], to=INT64)
    empty = b.node("Slice", [first, np.array([0]), np.array([0]), np.array([1])])
    joined = b.node("Concat", [first, empty], axis=1)
    b.node("Gemm", [joined, integers(rng, 4, 2)])
    return [b.last, truth, number, empty], [FLOAT, BOOL, INT64, FLOAT]


def _moved_batch(b, rng):
    """The batch is not the first axis of a value between the parts."""
    b("Gemm", weights(rng, 4, 4))
    b("Transpose", perm=[1, 0])
    b("Sin")
    b("MatMul", weights(rng, 3, 5))
    return [b.last], [FLOAT]


def _constant_outputs(b, rng):
    """Outputs that are an initialiser, a computed constant and an input."""
    _foreign(b, rng)
    last, stored = b.last, b.constant(integers(rng, 2, 2))
    return [last, stored, b.node("Sin", [stored]), "x"], [FLOAT] * 4


def _loop(b, rng):
    """A loop whose body reads a result of the core."""
    first = b("Gemm", weights(rng, 4, 4))
    body = helper.make_graph(
        [helper.make_node("Add", ["sum", first], ["more"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [
            helper.make_tensor_value_info("number", INT64, []),
            helper.make_tensor_value_info("go", BOOL, []),
            helper.make_tensor_value_info("sum", FLOAT, [3, 4]),
        ],
        [helper.make_tensor_value_info("on", BOOL, []), helper.make_tensor_value_info("more", FLOAT, [3, 4])],
    )
    b.node("Loop", [b.constant(np.array(2)), "", first], body=body)
    b("Gemm", weights(rng, 4, 3))
    return [b.last], [FLOAT]


def _condition(b, rng):
    """A branch that an input selects; both read a result of the core."""
    first = b("Gemm", weights(rng, 4, 4))
    positive = b.node("Greater", [b.node("ReduceMax", ["x"], keepdims=0), b.constant(np.array(0, np.float32))])
    branches = [
        helper.make_graph(
            [helper.make_node(name, [first], [name])], name, [], [helper.make_tensor_value_info(name, FLOAT, [3, 4])]
        )
        for name in ("Neg", "Sin")
    ]
    b.node("If", [positive], then_branch=branches[0], else_branch=branches[1])
    b("Gemm", weights(rng, 4, 3))
    return [b.last], [FLOAT]


def _unknown_size(b, rng):
    """The number of rows between the parts depends on the data. The compared sums are exact in bfloat16, and none is 0."""
    first = b("Gemm", integers(rng, 4, 4), np.full(4, 0.5, np.float32))
    places = b.node(
        "Transpose", [b.node("NonZero", [b.node("Greater", [first, b.constant(np.array(0, np.float32))])])], perm=[1, 0]
    )
    b.node("GatherND", [first, places])
    last = b("Abs")
    return [last, b.node("Gemm", [b.node("Sin", [first]), weights(rng, 4, 2)])], [FLOAT, FLOAT]


def _shape_of_a_part(b, rng):
    """A shape that is computed from the shape of a value in another part."""
    first = b("Gemm", weights(rng, 4, 4))
    sine = b("Sin")
    rows = b.node("Gather", [b.node("Shape", [first]), b.constant(np.array(0))])
    sizes = b.node("Concat", [b.node("Unsqueeze", [rows, np.array([0])]), b.constant(np.array([2, 2]))], axis=0)
    b.node("Reshape", [b.node("Gemm", [sine, weights(rng, 4, 4)]), sizes])
    return [b.last], [FLOAT]


CASES = {
    "shared value": (_shared, 3),
    "around the host": (_around_the_host, 3),
    "types": (_types, 3),
    "moved batch": (_moved_batch, 3),
    "constant outputs": (_constant_outputs, 3),
    "loop": (_loop, 3),
    "condition": (_condition, 3),
    "unknown size": (_unknown_size, 3),
    "shape of a part": (_shape_of_a_part, 3),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [3, "n"])
def test_parts_give_the_results_of_the_file(rng, tmp_path, case, rows):
    make, count = CASES[case]
    b = Builder([rows, 4])
    outputs, kinds = make(b, rng)
    _checked(b.save(tmp_path, outputs=outputs, kinds=kinds), {"x": integers(rng, count, 4)})


def test_run_shows_what_runs_where(command, rng, tmp_path):
    """The table, the JSON and the file of `tpu run`, and the refusal of `--strict`."""
    b = Builder(["n", 4])
    _foreign(b, rng)
    path, x = b.save(tmp_path), rng.normal(size=(3, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    options = "run", "--model", path, "--input", tmp_path / "x.npy", "--simulator", "golden"
    text = command(*options, "--output", tmp_path / "y.npy").stdout
    assert re.search(r"2 host\W+1\W+0.0%\W+Sin: is not supported", text) and re.search(r"3 core\W+1\W+42.9%\W+18\W+9", text)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), tpu.load(path).predict(x))
    figures = printed("divided_run", command(*options, "--json").stdout)
    assert figures["outputs"] == [b.last] and figures["share"] == 1 and len(figures["parts"]) == 3
    plan = printed("divided_plan", command("run", "--model", path, "--explain", "--n", 2, "--json").stdout)
    assert plan["cycles"] > 0
    refusal = command(*options, "--strict")
    assert refusal.returncode and "operator Sin, node 'foreign': is not supported" in refusal.stderr


def test_compile_writes_all_parts(command, rng, tmp_path):
    """The programs of the core, and the nodes of the host between them, with their values in order; `--strict` refuses."""
    b = Builder(["n", 4])
    _foreign(b, rng)
    path, folder = b.save(tmp_path), tmp_path / "made"
    options = "compile", "--model", path, "--n", 2, "--batch", 3, "-o", folder, "--json"
    figures = printed("divided_compile", command(*options).stdout)
    parts = json.loads((folder / "parts.json").read_text())["parts"]
    assert parts == figures["parts"] and [part.get("operators") for part in parts] == [None, ["Sin"], None]
    assert [part["inputs"][0]["name"] for part in parts] == ["x", "t0", "t1"]
    assert [part["outputs"][0]["shape"] for part in parts] == [[3, 6], [3, 6], [3, 3]]
    assert set(figures["files"]) > {"part1/model.bin", "part2.onnx", "part3/model.h"}
    first, last = (np.fromfile(folder / f"part{one}/{file}.bin", "<f4") for one, file in ((1, "results"), (3, "samples")))
    np.testing.assert_allclose(np.sin(first), last, rtol=1e-6)
    refusal = command(*options, "--strict")
    assert refusal.returncode and "operator Sin, node 'foreign': is not supported" in refusal.stderr


def test_label_before_other_operators(rng, tmp_path):
    b = Builder(["n", 4])
    b("MatMul", integers(rng, 4, 5))
    b("ArgMax", axis=1)
    b("Mul", np.array(2), name="end")
    _checked(b.save(tmp_path, kinds=[INT64]), {"x": integers(rng, 6, 4)}, core="ch")


def test_labels_of_values_that_are_copied(rng, tmp_path):
    """The values of the label occur several times in their node, are padded, or come from several nodes."""
    b = Builder([1, 6])
    layer, places = b("MatMul", integers(rng, 6, 5)), b.constant
    for operator, *inputs in (
        ("Gather", layer, places(np.array([1, 1, 4]))),
        ("Pad", layer, places(np.array([0, 1, 0, 2]))),
        ("Concat", layer, b.node("Reshape", [b.node("MatMul", ["x", integers(rng, 6, 4)]), np.array([1, 4])])),
    ):
        count = len(b.nodes)
        b.node(operator, inputs, **({"axis": 1} if operator != "Pad" else {}))
        b("ArgMax", axis=1)
        path, x = b.save(tmp_path, kinds=[INT64]), integers(rng, 1, 6)
        np.testing.assert_array_equal(tpu.load(path).predict(x), values_of(path, x, [b.last])[b.last])
        del b.nodes[count:]


def test_detector(rng, tmp_path):
    """Boxes and scores of a detector, whose suppression is in an `If` with a constant condition."""
    b = Builder([1, 6, 4])
    boxes = b("MatMul", weights(rng, 4, 4))
    features = b.node("Relu", ["x"])
    b.node("MatMul", [features, weights(rng, 4, 3)])
    scores = b("Transpose", perm=[0, 2, 1])
    limits = b.constant(np.array([3])), b.constant(np.array([0.5], np.float32))
    inner = [helper.make_node("NonMaxSuppression", [boxes, scores, *limits], ["kept"], "nms")]
    branch = helper.make_graph(inner, "branch", [], [helper.make_tensor_value_info("kept", INT64, None)])
    chosen = b.node("If", [b.constant(np.array(True))], then_branch=branch, else_branch=branch)
    path, x = b.save(tmp_path, outputs=[chosen, features], kinds=[INT64]), rng.normal(size=(1, 6, 4)).astype(np.float32)
    model = tpu.load(path)
    found, wanted = model.predict(x), values_of(path, x, [chosen, features])
    assert found[chosen].dtype == np.int64 and found[chosen].shape[1] == wanted[chosen].shape[1]
    close(found[features], wanted[features])


def test_values_that_the_core_cannot_take(rng, tmp_path):
    """The host computes a part of the core whose inputs are not finite in this run, and says so."""
    b = Builder([3, 4])
    b("Gemm", np.eye(4, dtype=np.float32))
    b("Log")
    b("Sin")
    b("Gemm", np.abs(weights(rng, 4, 3)))
    path, x = b.save(tmp_path), np.abs(rng.normal(size=(3, 4))).astype(np.float32)
    x[1, 2] = 0
    model = tpu.load(path)
    run = model.run(x)
    assert np.isnan(run.output[1]).all() and np.isfinite(run.output[[0, 2]]).all()
    assert any("is not a finite number" in note for note in run.notes) and run.compare().error is None


def test_infinite_results_are_compared(rng, tmp_path):
    biases = np.array([1, np.inf, -np.inf, np.nan], np.float32)
    b = Builder(["n", 4])
    b("Gemm", np.eye(4, dtype=np.float32), biases)
    compared = tpu.load(b.save(tmp_path)).run(rng.normal(size=(3, 4)).astype(np.float32)).compare()
    assert compared.error is None and compared.largest == 0 and compared.not_finite == 9


def test_model_of_the_host_alone(request, rng, tmp_path, caplog):
    b = Builder(["n", 4])
    b("Sin")
    path, x = b.save(tmp_path), rng.normal(size=(3, 4)).astype(np.float32)
    with caplog.at_level(logging.WARNING):
        _checked(path, {"x": x}, core="h")
    assert "computes 0.0% of the multiplications; this is not worth the core" in caplog.messages[0]
    command = request.getfixturevalue("command")  # it keeps loggers from new handlers
    assert "not worth it" in command("run", "--model", path, "--simulator", "golden").stdout


def test_groups_of_a_fixed_batch(rng, tmp_path):
    b = Builder([2, 4])
    _foreign(b, rng)
    path, x = b.save(tmp_path), rng.normal(size=(6, 4)).astype(np.float32)
    model = tpu.load(path)
    whole = model.predict(x)
    assert whole.shape == (6, 3)
    for first in range(0, 6, 2):
        np.testing.assert_array_equal(model.predict(x[first : first + 2]), whole[first : first + 2])
    with pytest.raises(tpu.DataError, match=r"'x': an array of shape \(5, 4\) does not fit; it takes \(2, 4\)"):
        model.predict(x[:5])


@pytest.mark.parametrize("strict", [False, True])
def test_open_sizes_are_named_together(rng, tmp_path, strict):
    """The error has the options to type, for all inputs; a model with these options is read."""
    b = Builder(["n", "rows", 4])
    b.inputs.append(helper.make_tensor_value_info("y", FLOAT, ["n", 4, "columns"]))
    b("Abs" if strict else "Sin")
    b("MatMul", "y")
    path = b.save(tmp_path)
    with pytest.raises(tpu.ModelError, match=r"--shape x=\?,\?,4 --shape y=\?,4,\? or `shapes`") as caught:
        tpu.load(path, strict=strict)
    assert str(caught.value).count(str(path)) == 1
    shapes = {"x": (2, 3, 4), "y": (2, 4, 5)}
    x = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    assert tpu.load(path, shapes=shapes, strict=strict).predict(x).shape == (2, 3, 5)


def test_constant_that_the_reader_does_not_fold(rng, tmp_path):
    """A weight that Hardmax makes is computed once, so that its layer is the core's."""
    b = Builder(["n", 4])
    weight = b.node("Hardmax", [b.constant(weights(rng, 4, 3))])
    b.node("MatMul", ["x", weight])
    x = rng.normal(size=(3, 4)).astype(np.float32)
    _checked(b.save(tmp_path), {"x": x}, core="c")


def test_output_that_is_another_with_the_batch_moved(rng, tmp_path):
    """Two outputs are the same values in the same order, but for the samples."""
    b = Builder(["n", 4, 3])
    first = b("MatMul", weights(rng, 3, 3))
    moved = b("Transpose", perm=[1, 0, 2])
    x = rng.normal(size=(2, 4, 3)).astype(np.float32)
    _checked(b.save(tmp_path, outputs=[first, moved]), {"x": x})


def test_end_that_is_copied(rng, tmp_path):
    """The last node pads results of several phases."""
    b = Builder(["n", 2, 5])
    b("ConvTranspose", weights(rng, 2, 3, 3), strides=[2])
    b("Pad", np.array([0, 0, 1, 0, 0, 2]))
    path, x = b.save(tmp_path), rng.normal(size=(2, 2, 5)).astype(np.float32)
    model = tpu.load(path, strict=True)
    close(model.predict(x, on="model", core=tpu.Config(n=4)), values_of(path, x, [b.last])[b.last])


def test_error_of_the_host_is_one_line(command, rng, tmp_path):
    """An index beyond a tensor, which only the interpreter finds."""
    b = Builder([3, 4])
    b.inputs.append(helper.make_tensor_value_info("places", INT64, [1]))
    b("Gemm", weights(rng, 4, 4))
    b.node("Gather", [b.node("Sin", [b.last]), "places"])
    path = b.save(tmp_path)
    np.savez(tmp_path / "x.npz", x=np.ones((3, 4), np.float32), places=np.array([7]))
    done = command("run", "--model", path, "--simulator", "golden", "--input", tmp_path / "x.npz")
    assert done.returncode == 1 and "Gather" in done.stderr and "Traceback" not in done.stderr
