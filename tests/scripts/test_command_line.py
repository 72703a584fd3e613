"""Tests of features that all subcommands of `tpu` share, such as help, version, completion, early checks of paths, tables, and
Ctrl-C."""

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from amaranth_tpu.hw.tools import process
from amaranth_tpu.scripts import tpu
from amaranth_tpu.scripts.cli import command_line
from amaranth_tpu.scripts.show.terminal_tables import figure_table, print_table
from amaranth_tpu.sim.data.whole_files import write_file
from command import captured, refused
from suites import slow

ROOT = Path(__file__).parents[2]


def command(*words):
    return CliRunner().invoke(tpu.app, list(map(str, words)), env={"COLUMNS": "100"})


# --- Help and version ---------------------------------------------------------------------------------------------


def test_alone():
    done = command()
    assert done.exit_code == 2 and "Usage: " in done.output and "synth" in done.output


@pytest.mark.parametrize("name", ["generate", "run", "train", "synth"])
def test_help(name):
    said = command(name, "--help").output
    assert "─ Core ─" in said and f"\n tpu {name} " in said, said  # options are grouped, and there is an example


def test_version(monkeypatch):
    assert re.fullmatch(r"amaranth-tpu \d+\.\d+\.\d+( \(commit [0-9a-f]{40}(\+changes)?\))?\n", command("--version").output)
    monkeypatch.setattr(tpu, "source", lambda: "")
    assert re.fullmatch(r"amaranth-tpu \d+\.\d+\.\d+\n", command("--version").output)


#: Runs `tpu`, and writes the names of all imported modules to its standard error.
_IMPORTED = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from amaranth_tpu.scripts.tpu import main
main()
"""


_OF_THE_WORK = {*"amaranth concurrent.futures ml_dtypes numpy onnx platformdirs rich.progress".split()}


@pytest.mark.parametrize(
    "words, completed, found",
    [(["--version"], None, "amaranth-tpu "), ([], "tpu run --simulator i", "icarus"), (["train", "--help"], None, "--rtl-steps")],
)
def test_answers_without_the_slow_imports(words, completed, found):
    """Version, completion and help import neither the packages of the work nor modules that only the work needs."""
    environment = {"_TPU_COMPLETE": "complete_bash", "COMP_WORDS": completed, "COMP_CWORD": "3"} if completed else {}
    done = captured(
        [sys.executable, "-c", f"import sys; sys.argv = {['tpu', *words]}\n{_IMPORTED}"], env=os.environ | environment
    )
    assert found in done.stdout, done.stderr
    assert "typer" in done.stderr.split() and not _OF_THE_WORK & {*done.stderr.split()}


@pytest.mark.parametrize("words, found", [("generate --preset pl", "plain"), *slow(("synth --target gw", "gw2a-18"))])
def test_completion(words, found):
    environment = os.environ | {
        "_TPU_COMPLETE": "complete_bash",
        "COMP_WORDS": f"tpu {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    done = captured(
        [sys.executable, "-c", "import sys; sys.argv = ['tpu']; from amaranth_tpu.scripts.tpu import main; main()"],
        env=environment,
    )
    assert done.stdout.split() == [found], done.stderr


# --- Paths --------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_work(monkeypatch):
    """Makes Verilog generation and synthesis raise an error, so that a test shows that options are checked first."""

    def begun(*_, **__):
        raise AssertionError("the work was begun")

    monkeypatch.setattr("amaranth_tpu.hw.verilog.export.to_verilog", begun)
    monkeypatch.setattr("amaranth_tpu.hw.fpga.implement.implement", begun)


@pytest.fixture
def read_only(tmp_path, monkeypatch):
    folder = tmp_path / "locked"
    folder.mkdir()
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).resolve() != folder and allowed(path, mode))
    return folder


def test_places_are_checked_first(tmp_path, no_work, read_only):
    (tmp_path / "file").touch()
    for words, said in (
        (("generate", "-o", tmp_path / "none" / "x.v"), f"{tmp_path / 'none' / 'x.v'}: there is no folder"),
        (("generate", "-o", tmp_path), f"{tmp_path} is a folder; name a file"),
        (("generate", "-o", read_only / "x.v"), f"no permission to write into the folder {read_only}; choose another one"),
        (("synth", "-o", tmp_path / "file"), "is a file; name a folder"),
        (("synth", "-o", tmp_path / "file" / "below"), "is a file; name a folder"),
        (("synth", "-o", read_only / "new" / "newer"), f"no permission to write into the folder {read_only}"),
    ):
        done = command(*words)
        assert done.exit_code == 2 and said in re.sub(r"\s*│\s*\n│ ", " ", done.output).replace("\n", ""), (words, done.output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "locked"]


def test_a_device_stays_one():
    write_file(Path("/dev/null"), b"x")
    assert not Path("/dev/null").is_file()


def test_links_are_written_through(tmp_path, monkeypatch):
    """A path that is a symbolic link is written through to its target, and a dangling link into a missing folder is refused."""
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "file"
    link.symlink_to("there/file")
    for text in ("new", "over it"):
        command_line.usable_file(link)
        write_file(link, text.encode())
        assert link.is_symlink() and target.read_text() == text and not target.is_symlink()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "link", "there"]
    (tmp_path / "lost").symlink_to("nowhere/file")
    with pytest.raises(typer.BadParameter, match="there is no folder .*nowhere"):
        command_line.usable_file(tmp_path / "lost")


def test_build_directory(tmp_path, monkeypatch, read_only):
    """The build folder is `build` in the checkout. If the checkout is read-only, it is the user's cache. If the cache is
    read-only too, the function raises ToolError."""
    monkeypatch.delenv("TPU_BUILD", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(process, "_ROOT", tmp_path / "checkout")
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "pyproject.toml").touch()
    assert process.build_directory() == tmp_path / "checkout" / "build"
    (tmp_path / "checkout" / "build").rmdir()
    (tmp_path / "checkout" / "build").symlink_to(read_only)
    assert process.build_directory() == tmp_path / "cache" / "amaranth-tpu"
    monkeypatch.setenv("XDG_CACHE_HOME", str(read_only / "x" / ".." / ".."))
    (tmp_path / "cache" / "amaranth-tpu").rmdir()
    (tmp_path / "amaranth-tpu").symlink_to(read_only)
    with pytest.raises(process.ToolError, match="set TPU_BUILD to a folder that can"):
        process.build_directory()
    monkeypatch.setenv("TPU_BUILD", str(tmp_path / "given"))
    assert process.build_directory() == tmp_path / "given"


# --- The standard output ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full")
@pytest.mark.parametrize("words, unbuffered", [("run --operators --json", ""), *slow(("run --operators", "1"), ("--help", ""))])
def test_full_disk(words, unbuffered):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "amaranth_tpu.scripts.tpu", *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, "error: standard output: No space left on device\n")


def test_error_of_the_system_names_a_place(command, monkeypatch, tmp_path):
    """An error without a file, as of a full disk in a temporary folder, names the folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def full(*_, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("amaranth_tpu.hw.verilog.export.to_verilog", full)
    refused(
        command("generate", "-o", tmp_path / "x.v"), f"error: a file in {tmp_path}, or an output of this command: No space left"
    )


@pytest.mark.parametrize(
    "words, said",
    [
        ("generate --n 4.5", "'--n': must be an integer"),
        ("train --dropout x", "must be a number"),
        ("package --mhz 1e12", "'--mhz': must be less than or equal to 10000"),
    ],
)
def test_wrong_values_of_numbers(command, words, said):
    done = command(*words.split())
    assert done.returncode == 2 and "Input should" not in done.stderr
    refused(done, said)


def test_closed_output():
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m amaranth_tpu.scripts.tpu --version >&-"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- Tables -------------------------------------------------------------------------------------------------------

FIGURES = ["1,437,385", "100.0%", "213,133", "12,333", "0.00123"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
@pytest.mark.parametrize("terminal", [False, True])
def test_no_figure_is_cut(width, terminal):
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    table = figure_table(
        "A title that is about as long as a title is",
        ("layer", "word"),
        ("cycles", "figure"),
        ("utilisation", "figure"),
        ("bound by", "word"),
        ("words read", "figure"),
        ("words written", "figure"),
        ("largest error", "figure"),
    )
    table.add_row("a_name_that_is_longer_than_most", *FIGURES[:2], "array or bus, as it comes", *FIGURES[2:])
    print_table(console, table)
    lines = console.file.getvalue().splitlines()
    assert sum(all(figure in line for figure in FIGURES) for line in lines) == 1, "\n".join(lines)
    if terminal and width >= 80:
        assert max(map(len, lines)) <= width
    if not terminal:  # each row is one line
        assert sum("a_name_that_is_longer_than_most" in line and "array or bus, as it comes" in line for line in lines) == 1


# --- Ctrl-C -------------------------------------------------------------------------------------------------------


def test_ctrl_c_during_elaboration(tmp_path):
    """Ctrl-C while Amaranth elaborates a design prints only "interrupted" and exits with 130. Without the handler, Amaranth would
    list the open modules."""
    code = f"""
import os, time
from amaranth_tpu.hw.control.fetch_unit import FetchUnit
from amaranth_tpu.scripts import tpu
def interrupted(self, platform):
    os.kill(os.getpid(), {int(signal.SIGINT)})
    time.sleep(60)
FetchUnit.elaborate = interrupted
tpu.main()
"""
    done = captured([sys.executable, "-c", code, "generate", "-o", tmp_path / "x.v"], env=os.environ)
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")
    assert not list(tmp_path.iterdir())


def test_ctrl_c_during_imports(tmp_path):
    """Ctrl-C while modules are being imported prints only "interrupted" and exits with 130."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["tpu"]
    (tmp_path / "typer.py").write_text(f"import os, time\nos.kill(os.getpid(), {int(signal.SIGINT)})\ntime.sleep(60)\n")
    code = "import sys; from {} import {} as main; sys.exit(main())".format(*entry.split(":"))
    done = captured([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")


def test_ctrl_c_leaves_no_files_of_a_simulation(tmp_path, monkeypatch):
    from amaranth_tpu.sim.rtl import bench_runs, runner

    class Interrupted:
        def test(self, **_):
            raise KeyboardInterrupt

    monkeypatch.setenv("TPU_BUILD", str(tmp_path))
    monkeypatch.setattr(bench_runs, "cocotb_runners", lambda: {"icarus": Interrupted})
    simulation = runner.Simulation(simulator="icarus", verilog="module a; endmodule", top="a")
    monkeypatch.setattr(runner.Simulation, "build", lambda self: tmp_path)
    with pytest.raises(KeyboardInterrupt):
        simulation.run("amaranth_tpu.sim.benches.bench_core")
    assert not list((tmp_path / "runs").iterdir())


def test_unexpected_option():
    with pytest.raises(SystemExit) as ended:
        tpu.app(["generate", "--bogus"])
    assert ended.value.code == 2


def test_operators_in_a_pipe():
    """`tpu run --operators` in a pipe wraps its long lists at 132 columns, although rows of other tables are not wrapped."""
    done = command("run", "--operators")
    assert done.exit_code == 0 and max(map(len, done.output.splitlines())) <= 132, done.output


def test_full_build_folder_is_named(tmp_path):
    """If the build folder's disk is full, the error starts with the folder's path. The system's own error does not name it."""

    def make(partial):
        with open("/dev/full", "w") as file:
            file.write("x")

    with pytest.raises(process.ToolError, match="^[^\\n]*No space left on device; free some, or set TPU_BUILD") as raised:
        process.made_once(tmp_path / "sim" / "model", make, 10)
    assert str(raised.value).startswith(f"{tmp_path / 'sim'}: ") and not (tmp_path / "sim" / "model").exists()
