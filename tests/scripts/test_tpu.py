"""Tests of the command `tpu`, covering its outputs, and bad input, which gives a one-line error, a non-zero status, and no
partial files."""

import gzip
import re

import pytest

from amaranth_tpu.hw.spec.registers import STALLS
from amaranth_tpu.hw.verilog.header import package_version, source
from amaranth_tpu.sim.rtl import simulators
from command import SHIPPED, SMALL, refused, tpu, write_model
from json_output import printed


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "m.onnx")


def test_run(command, digits, model):
    done = command("run", *SMALL, "--model", model, "--data", digits, "--images", "all", "--batch", 4, "--json")
    assert done.returncode == 0, done.stderr
    figures = printed("run", done.stdout)
    assert {"accuracy", "cycles_per_second", "seconds"} <= set(figures)
    assert figures["simulator"] == "icarus" and figures["n"] == 4 and figures["images"] == 10
    assert figures["mismatched_bits"] == 0 and set(figures["stalls"]) == set(STALLS)
    assert figures["busy"] + sum(figures["stalls"].values()) == figures["cycles"]
    assert figures["utilisation"] == pytest.approx(10 * 16 * 3 / (figures["cycles"] * 16))


def test_run_for_people(command, digits, model):
    done = command("run", *SMALL, "--model", model, "--data", digits, "--images", 4, "--memory", 5, "--preprocess", "standard")
    assert done.returncode == 0, done.stderr
    for text in ("icarus", "4 x 4", "accuracy", "0 bits different", "cycles", "utilisation", "drain", "cycles a second"):
        assert text in done.stdout


@pytest.mark.slow
def test_preprocess_matters(command, digits, model):
    cycles = [
        printed(
            "run",
            command("run", *SMALL, "--model", model, "--data", digits, "--images", 2, "--preprocess", kind, "--json").stdout,
        )["mismatched_bits"]
        for kind in ("raw", "symmetric")
    ]
    assert cycles == [0, 0]


@pytest.mark.slow
def test_waves(digits, model, tmp_path):
    place = tmp_path / "w.fst"
    done = tpu("run", *SMALL, "--model", model, "--data", digits, "--images", 1, "--waves", place, "--json")
    assert done.returncode == 0, done.stderr
    assert printed("run", done.stdout)["waves"] == str(place) and place.stat().st_size > 1000
    assert f'[dumpfile] "{place}"' in (tmp_path / "w.gtkw").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.fst", "w.gtkw", "w.sucl"]


@pytest.mark.slow
def test_command_in_the_header_repeats_the_verilog(tmp_path):
    """The command in the Verilog's header generates the same file again, byte for byte."""
    done = tpu("generate", "--n", 4, "--cell-stages", 5, "--table-lanes", 2, "--no-pooling", "-o", tmp_path / "x.v", "--json")
    assert done.returncode == 0, done.stderr
    assert printed("generate", done.stdout)["n"] == 4
    text = (tmp_path / "x.v").read_text()
    words = re.search(r"^// Made again by: tpu (generate .*)$", text, re.MULTILINE)[1].split()
    done = tpu(*words, "-o", tmp_path / "y.v")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "y.v").read_text() == text
    for part in (
        "//   pooling = 0\n//   table_lanes = 2\n//   softmax = 1\n",
        "module tpu_function_pair (",
        "module tpu_activation_softmax (",
        f"By amaranth-tpu {package_version()}{source() and ', ' + source()}, ",
    ):
        assert part in text


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ecp5", "ice40", "xilinx7", "gw2a-18", "ulx3s-25f"])
def test_synth(target, tmp_path):
    done = tpu("synth", "--n", 2, "--target", target, "--json", "-o", tmp_path, timeout=900)
    figures = printed("synth", done.stdout)
    assert figures["dsp"] >= 4 and figures["bram"] > 0 and figures["lut"] > 1000 and figures["ff"] > 1000
    assert {"array", "unified_buffer", "dispatcher"} <= set(figures["blocks"])
    for resource in ("lut", "ff", "dsp", "bram"):
        assert sum(block[resource] for block in figures["blocks"].values()) == figures[resource]
    assert figures["fits"] == (target != "ice40")  # an UP5K is too small for any core
    assert done.returncode == (0 if figures["fits"] else 1)
    assert ("does not fit ice40-up5k" in done.stderr) != figures["fits"], done.stderr


def test_synth_refuses(command, tmp_path):
    place = ("-o", tmp_path / "x")
    refused(command("synth", "--target", "ecp6", *place), "ecp6", "ulx3s-85f", "ecp5-85", "ice40-up5k")
    refused(command("synth", "--target", "xc7a100t", "--pnr", *place), "xc7a100t", "only be synthesized", "--pnr")
    refused(command("synth", "--preset", "huge", *place), "preset", "tiny")
    refused(command("synth", "--n", 12, *place), "n must be a power of two")
    refused(command("synth", "--seed", 0, *place), "--seed")
    (tmp_path / "file").touch()
    refused(command("synth", "--n", 2, "-o", tmp_path / "file"), "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_impossible_size(command, tmp_path):
    refused(command("generate", "--n", 12, "-o", tmp_path / "x.v"), "n must be a power of two", "12")
    refused(command("run", "--n", 12), "n must be a power of two")
    refused(command("run", "--simulator", "modelsim"), "'--simulator': 'modelsim' is not one of 'verilator'")
    refused(command("generate", "--n", 4, "--table-lanes", 8, "-o", tmp_path / "x.v"), "table_lanes must be", "up to n = 4")
    refused(command("generate", "--n", "many", "-o", tmp_path / "x.v"), "--n")
    refused(command("generate", "--preset", "huge", "-o", tmp_path / "x.v"), "preset", "tiny")
    assert not list(tmp_path.iterdir())


def test_unified_buffer_too_small(command):
    refused(command("run", "--n", 16, "--unified-buffer-depth", 16, "--simulator", "icarus"), "unified_buffer_depth", "16")


def test_no_place_to_write(command, tmp_path):
    refused(command("generate", "--n", 2, "-o", tmp_path / "none" / "x.v"), "x.v")


def test_truncated_model(command, tmp_path, digits):
    path = tmp_path / "m.onnx"
    path.write_bytes(SHIPPED.read_bytes()[:100_000])
    refused(command("run", *SMALL, "--model", path, "--data", digits), "m.onnx")
    refused(command("run", *SMALL, "--model", tmp_path / "none.onnx", "--data", digits), "none.onnx")
    refused(command("run", *SMALL, "--model", "defualt", "--data", digits), "defualt: ", "a shipped network: default, a, b")


def test_unsupported_operator(command, tmp_path, digits):
    refused(command("run", *SMALL, "--model", write_model(tmp_path / "m.onnx", operator="Sin"), "--data", digits), "Sin", "last")


def test_wrong_input_size(command, tmp_path, digits):
    refused(command("run", *SMALL, "--model", write_model(tmp_path / "m.onnx", inputs=20), "--data", digits), "20", "16")


def test_bad_images(command, tmp_path, digits, model):
    images, labels = (digits / f"t10k-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1"))

    def case(name, image_bytes, label_bytes):
        folder = tmp_path / name
        folder.mkdir()
        (folder / images.name).write_bytes(image_bytes)
        (folder / labels.name).write_bytes(label_bytes)
        return command("run", *SMALL, "--model", model, "--data", folder)

    refused(case("swapped", labels.read_bytes(), images.read_bytes()))
    refused(case("truncated", images.read_bytes()[:-20], labels.read_bytes()))
    refused(case("shortened", gzip.compress(gzip.decompress(images.read_bytes())[:-1]), labels.read_bytes()))
    refused(command("run", *SMALL, "--model", model, "--data", tmp_path / "none"), "none")
    refused(command("run", *SMALL, "--model", model, "--data", digits, "--images", 11), "--images", "10")
    refused(command("run", *SMALL, "--model", model, "--data", digits, "--images", "some"), "--images")


def test_missing_simulator(command, monkeypatch, tmp_path, digits, model):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TPU_BUILD", str(tmp_path / "build"))
    simulators.icarus_version.cache_clear()
    refused(command("run", *SMALL, "--model", model, "--data", digits), "apt-get install iverilog")
