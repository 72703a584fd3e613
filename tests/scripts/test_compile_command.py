"""Tests that `tpu compile` writes reproducible files completely or not at all, and refuses bad options."""

import re
from pathlib import Path

import numpy as np
import pytest
import typer

from amaranth_tpu.scripts.cli import command_line
from amaranth_tpu.sim.bundle.bundle import FILES
from amaranth_tpu.sim.bundle.c_words import is_taken
from command import captured, refused, tpu, write_model
from json_output import printed


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_the_same_bytes_twice(tmp_path):
    model = write_model(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.arange(48, dtype=np.float32).reshape(3, 16))
    words = ("compile", "--model", model, "--preset", "tiny", "--batch", 2, "--input", tmp_path / "x.npy", "--name", "digits")
    done = tpu(*words, "-o", tmp_path / "one", "--json")
    assert done.returncode == 0, done.stderr
    figures = printed("compile", done.stdout)
    assert figures["n"] == 4 and figures["against_model"]["samples"] == 2 and {*figures["files"]} == {*FILES}
    done = tpu(*words, "-o", tmp_path / "deep" / "two", environment={"PYTHONHASHSEED": "7"})
    assert done.returncode == 0, done.stderr
    for text in ("m for n = 4, batch of 2", "region SCRATCH", "model.bin", "x.npy", "difference at most"):
        assert text in done.stdout
    assert contents(tmp_path / "one") == contents(tmp_path / "deep" / "two")
    assert {name: len(data) for name, data in contents(tmp_path / "one").items()} == figures["files"]
    assert (tmp_path / "one" / "samples.bin").read_bytes() == np.arange(32, dtype="<f4").tobytes()
    header = (tmp_path / "one" / "model.h").read_text()
    command = (
        "tpu compile --n 4 --unified-buffer-depth 1024 --accumulator-depth 256 --model m.onnx --batch 2 -o digits --name digits"
    )
    assert f"`{command}`" in header and "static const tpu_model digits = {" in header
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "x.npy", "one", "deep"}


def test_refusals(command, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    refused(command("compile", "--model", "d", "-o", tmp_path / "full"), "full", "mine")
    for name, said in (
        ("tpu_x", "--name"),
        ("a" * 41, "up to 40"),
        ("Int", "lower-case"),
        ("int", "--name int is reserved in C"),
    ):
        refused(command("compile", "--model", "d", "-o", tmp_path / "x", "--name", name), said)
    refused(command("compile", "--model", "d", "-o", tmp_path / "x", "--batch", 10**9), "batch of 1000000000", "at most 65536")
    refused(command("compile", "--model", "defualt", "-o", tmp_path / "x"), "name an ONNX file, or a shipped network: default, a")
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "mine"]


def test_passes_are_listed_and_graphs_printed(command, tmp_path):
    done = command("compile", "--passes", "--json")
    names = [*printed("passes", done.stdout)["passes"]]
    assert names[-1] == "positions-in-lanes" and all(name in command("compile", "--passes").stdout for name in names)
    done = command("compile", "--model", "d", "--print-after", "crop")
    assert done.returncode == 0 and done.stdout.splitlines()[:2] == [
        "sw dense1_values 1x1x10 = [dense1.bias] + image * dense1.weights",
        "input image 1x1x784",
    ]
    sums = command("compile", "--model", "d", "--print-after", "lower").stdout.splitlines()
    assert sums[-1] == "sum dense1: 1 x 10 = [dense1.bias] + matrix(image * dense1.weights) -> dense1_values"
    program = command("compile", "--model", "d", "--effort", "fast", "--print-after", "program", "--json")
    assert "0: STORE region=OUTPUT" in printed("after", program.stdout)["texts"][0]
    refused(command("compile", "--print-after", "crob"), "crob", "did you mean 'crop'?")
    refused(command("compile", "--print-after", "crop", "-o", tmp_path / "x"), "-o", "writes no files")
    refused(command("compile", "--model", "d"), "-o is missing")


def objections(names, language):
    """Returns the `names` that the C or C++ compiler refuses as the name of an object."""
    lines = [
        "#include <stddef.h>",
        "#include <stdint.h>",
        *(f"static const struct {{ int x; }} {name} = {{ 1 }};" for name in names),
    ]
    words = ["gcc", "-x", language, "-fsyntax-only", "-fmax-errors=0", "-"]
    said = captured(words, input="\n".join(lines) + "\n").stderr
    return {names[int(line) - 3] for line in re.findall(r"^<stdin>:(\d+):\d+: error:", said, re.M)}


@pytest.mark.parametrize("language, program", [("c", "cc1"), pytest.param("c++", "cc1plus", marks=pytest.mark.slow)])
def test_names_that_a_compiler_refuses(language, program):
    """`is_taken` knows each word in the compiler's binary, including keywords, and each predefined macro that the compiler
    refuses as a name."""
    for name in ("model", "digits", "integer", "interrupts", "x"):
        assert not is_taken(name)
    found = captured(["gcc", f"-print-prog-name={program}"]).stdout.strip()
    if not Path(found).is_file():
        pytest.skip(f"no {program}")
    words = {word.decode() for word in re.findall(rb"(?<![!-~])[a-z][a-z0-9_]{1,19}(?=\0)", Path(found).read_bytes())}
    words |= {*re.findall(r"define ([a-z]\w*) ", captured(["gcc", "-x", language, "-dM", "-E", "-"], input="").stdout)}
    refused = objections(sorted(words), language)
    assert {"int", "while", "unix"} <= refused
    assert not [word for word in sorted(refused) if not is_taken(word) and objections([word], language)]


def test_folders_that_are_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "a").touch()
    command_line.replaceable_folder(tmp_path / "ours", ["a", "b"])
    command_line.replaceable_folder(tmp_path / "deep" / "new", ["a"])
    monkeypatch.chdir(tmp_path / "ours")
    for place, words in ((Path(), "current folder"), (tmp_path / "file", "is a file"), (tmp_path / "file" / "x", "is a file")):
        with pytest.raises(typer.BadParameter, match=words):
            command_line.replaceable_folder(place, ["a"])


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", ["write_bytes", "rename"])
def test_whole_or_not_at_all(tmp_path, monkeypatch, at, error):
    """If the disk is full, a rename fails or the user presses Ctrl-C, the old output folder stays complete."""
    target = tmp_path / "x"
    command_line.write_folder(target, {"a": b"1", "b": b"2"})
    done, calls = getattr(command_line.Path, at), []

    def fail(path, other):
        calls.append(path)
        if len(calls) == 2:
            raise error
        return done(path, other)

    monkeypatch.setattr(command_line.Path, at, fail)
    with pytest.raises((command_line.RunFailed, KeyboardInterrupt), match="No space left|^$"):
        command_line.write_folder(target, {"a": b"3", "b": b"4"})
    assert contents(target) == {"a": b"1", "b": b"2"} and list(tmp_path.iterdir()) == [target]


def test_killed_between_two_renames(tmp_path):
    """If the command was killed between its two renames, the next call restores the old folder, even if the call fails."""
    target = tmp_path / "x[1]"
    command_line.write_folder(target, {"a": b"1"})
    target.rename(tmp_path / ".x[1].old-123")
    with pytest.raises(AttributeError):
        command_line.write_folder(target, None)
    assert contents(target) == {"a": b"1"}
    target.rename(tmp_path / ".x[1].old-123")
    command_line.write_folder(target, {"a": b"2"})
    assert contents(target) == {"a": b"2"} and [*tmp_path.iterdir()] == [target]
