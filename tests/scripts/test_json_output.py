"""Tests of the objects that the JSON outputs of all commands share, and of their schema. Each command's tests also check its
output against the schema (`printed`)."""

import hashlib
import json
from dataclasses import asdict, fields
from importlib.metadata import version

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.registers import STALLS
from amaranth_tpu.hw.verilog.header import source
from amaranth_tpu.sim.check.against_model import ModelComparison
from amaranth_tpu.sim.models.shipped import SHIPPED
from amaranth_tpu.sim.tpu.layer_costs import LayerCost
from json_output import SCHEMA, printed
from training_runs import write_dense_model, write_samples

CORE = asdict(Config(n=4))


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "kind, words",
    [
        ("run", ["run", "--simulator", "model", "--images", "3"]),
        ("plan", ["run", "--explain"]),
        ("compile", ["compile", "-o", "bundle"]),
        ("train", ["train", "--epochs", "1", "--batch", "64", "--rtl-steps", "1", "--simulator", "model"]),
    ],
)
def test_program_model_and_core_are_named(command, tmp_path, monkeypatch, rng, kind, words):
    monkeypatch.chdir(tmp_path)
    path = write_dense_model(tmp_path / "m.onnx", rng)
    if kind == "train":
        rows, labels = write_samples(tmp_path, rng, 64)
        words = [*words, "--input", rows, "--labels", labels]
    done = command(*words, "--model", "m.onnx", "--n", "4", "--json")
    assert done.returncode == 0, done.stderr
    figures = printed(kind, done.stdout)
    made_by = {"name": "amaranth-tpu", "version": version("amaranth-tpu"), "commit": source().removeprefix("commit ") or None}
    assert figures["made_by"] == made_by
    assert figures["model"] == {"name": "m.onnx", "sha256": digest(path)}
    assert figures["core"] == CORE | ({"training": True, "bias_depth": figures["core"]["bias_depth"]} if kind == "train" else {})


@pytest.mark.slow
def test_points_of_a_sweep_name_their_model_and_core(command):
    figures = printed("sweep", command("sweep", "--model", "d", "--n", "4,8", "--json").stdout)
    assert [point["core"] for point in figures["points"]] == [CORE, asdict(Config(n=8))]
    assert {point["model"]["sha256"] for point in figures["points"]} == {digest(SHIPPED["d"])}


def test_golden_model_has_no_core(command):
    figures = printed("run", command("run", "--model", "d", "--images", "2", "--simulator", "golden", "--json").stdout)
    assert figures["core"] is None and figures["model"] == {"name": "d", "sha256": digest(SHIPPED["d"])}


def test_text_without_a_core(command):
    figures = printed("text", command("text", "--letters", 1, "--simulator", "golden", "--json").stdout)
    assert figures["core"] is None and len(figures["text"]) == 1 and figures["prompt_cycles"] is None


@pytest.mark.slow
def test_generated_core(command, tmp_path):
    done = command("generate", "--preset", "tiny", "--n", "2", "-o", tmp_path / "x.v", "--json")
    figures = printed("generate", done.stdout)
    assert figures["core"]["n"] == 2 and Config(**figures["core"])


def test_synthesized_core(command, tmp_path, monkeypatch):
    """The JSON of `tpu synth` has the core's configuration and version. Synthesis is replaced here; a slow test runs it."""
    report = {"target": "ecp5-85", "n": 2, "config": {}, "errors": [], "advice": [], "fits": True}
    monkeypatch.setattr("amaranth_tpu.hw.fpga.implement.implement", lambda *_, **__: report)
    figures = json.loads(command("synth", "--n", "2", "-o", tmp_path, "--json").stdout)
    assert figures["core"] == asdict(Config(n=2)) and "config" not in figures and figures["made_by"]["version"]


def test_schema_has_the_fields_of_the_code():
    """The schema of the JSON outputs lists exactly the fields of the dataclasses, so that a new field must be added to the schema
    even if no test prints it."""
    there = {name: {*SCHEMA["$defs"][name]["properties"]} for name in SCHEMA["$defs"] if "properties" in SCHEMA["$defs"][name]}
    assert there["core"] == {one.name for one in fields(Config)}
    assert there["stalls"] == {*STALLS}
    assert there["against_model"] == {one.name for one in fields(ModelComparison)}
    layer = {one.name for one in fields(LayerCost)} | {"bound"}
    assert there["planned_layer"] == layer - {"stalls"} | {"where"} and there["measured_layer"] == layer | {"error"}
    assert {entry["$ref"] for entry in SCHEMA["anyOf"]} >= {f"#/$defs/{name}" for name in ("run", "train", "compile", "synth")}


def test_schema_refuses_what_is_not_in_it(command):
    text = command("run", "--operators", "--json").stdout
    value = printed("operators", text)
    for wrong in (value | {"more": 1}, {"operators": value["operators"]}, value | {"made_by": {"name": "amaranth-tpu"}}):
        with pytest.raises(AssertionError, match="error"):
            printed("operators", json.dumps(wrong))
