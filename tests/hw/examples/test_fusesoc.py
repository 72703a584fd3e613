"""Tests that `fusesoc` builds and simulates the example SoC, and that a wrong result makes the simulation fail."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from amaranth_tpu.hw.config import PRESETS, Config
from amaranth_tpu.hw.verilog.export import to_verilog
from amaranth_tpu.hw.verilog.header import source
from amaranth_tpu.sim.rtl.simulators import find_verilator
from command import captured
from suites import slow

pytest.importorskip("fusesoc", reason="fusesoc is in the extra `test`")

ROOT = Path(__file__).parents[3]
SOC = "amaranth-tpu:example:soc"


def fusesoc(place, *words, target="sim", core=SOC, flags=(), path=(), environment=None):
    here = Path(sys.executable).parent  # generators are run by the first python3 on PATH
    env = os.environ | {"XDG_CONFIG_HOME": str(place), "XDG_DATA_HOME": str(place)} | (environment or {})
    env["PATH"] = os.pathsep.join([*path, str(here), os.environ["PATH"]])
    command = [here / "fusesoc", "--cores-root", ROOT / "hw", "--cores-root", ROOT / "sim", "run"]
    command += [*(f"--flag={flag}" for flag in flags), f"--target={target}", core, *words]
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=place, env=env, timeout=500, **outputs)
    return done.stdout, done.returncode


@pytest.mark.slow
def test_simulation_passes_without_warnings(tmp_path):
    """The example SoC's simulation compares every result, prints its progress, and prints no warning."""
    said, status = fusesoc(tmp_path)
    assert status == 0 and "passed: " in said, said
    assert "50 % of the script" in said and "readmemh" not in said and "arning" not in said, said
    assert sum("sample" in line for line in script(tmp_path)) == 2 * 7 * 10


def script(place):
    [path] = place.glob("build/*/sim/host.hex")
    return path.read_text().splitlines()


def check_that_it_fails(place, lines, step):
    """Flips one bit of the host's expected data in the step `step`, and checks that the simulation fails in that step."""
    index = next(index for index, line in enumerate(lines) if line.endswith(step) and line[0] in "23")
    _, address, data = lines[index].split()[0].split("_")
    changed = [*lines[:index], f"2_{address}_{int(data, 16) ^ 1 << 12:08x}", *lines[index + 1 :]]
    (place / "changed.hex").write_text("\n".join(changed) + "\n")
    said, status = fusesoc(place, "--script", place / "changed.hex")
    assert status != 0 and "passed" not in said, said
    assert f"step {index + 1} of the script" in said and f"address {address}" in said, said


@pytest.mark.slow
@pytest.mark.parametrize("latency, pauses", [(1, 0), (100, 0), (7, 60)])
def test_memories(latency, pauses, tmp_path):
    said, status = fusesoc(tmp_path, f"--latency={latency}", f"--pause_percent={pauses}")
    assert status == 0 and "passed: " in said, said


@pytest.mark.slow
def test_what_differs_is_found(tmp_path):
    assert fusesoc(tmp_path)[1] == 0
    lines = script(tmp_path)
    for step in ("run 0, sample 0, output 0", "run 1, sample 6, output 9", "id", "config", "status"):
        check_that_it_fails(tmp_path, lines, step)


@pytest.mark.slow
def test_missing_start_is_reported(tmp_path):
    """Without the write that starts the core, no interrupt occurs, and the simulation fails at the step that waits for it."""
    assert fusesoc(tmp_path)[1] == 0
    lines = [line for line in script(tmp_path) if not line.endswith("control")]
    (tmp_path / "changed.hex").write_text("\n".join(lines) + "\n")
    said, status = fusesoc(tmp_path, "--script", tmp_path / "changed.hex")
    assert status != 0 and "operation 4" in said, said


@pytest.mark.slow
def test_litex(tmp_path):
    """The example SoC's simulation also passes with a LiteX interconnect between host, core and memory, and with 20 % stalls."""
    pytest.importorskip("litex", reason="litex is in the extra `test`")
    said, status = fusesoc(tmp_path, "--pause_percent=20", target="litex")
    assert status == 0 and "passed: " in said, said


@pytest.mark.slow
def test_other_sizes(tmp_path):
    said, status = fusesoc(tmp_path, "--latency=100", flags=["n8"])
    assert status == 0 and "passed: " in said, said


@pytest.mark.parametrize("core", slow(SOC, "amaranth-tpu:ip:tpu"))
def test_lint(core, tmp_path):
    tool = find_verilator()
    said, status = fusesoc(
        tmp_path, target="lint", core=core, path=[str(Path(tool.program).parent)], environment=tool.environment
    )
    assert status == 0 and "%Warning" not in said, said


@pytest.mark.parametrize(
    "script, parameters, message",
    [
        ("hw/fusesoc_generator.py", "{n: 5}", "n must be a power of two"),
        *slow(("hw/fusesoc_generator.py", "{m: 4}", "unexpected keyword argument 'm'")),
        *slow(("hw/examples/soc/program.py", "{core: {n: 4}}", "needs the parameter 'seed'")),
        ("hw/examples/soc/program.py", "{core: {n: 4}, widths: [4, 4], batch: 0, runs: 1, seed: 1}", "batch must be an integer"),
    ],
)
def test_bad_parameters(script, parameters, message, tmp_path):
    (tmp_path / "input.yml").write_text(f"{{files_root: {ROOT}, vlnv: 'a:b:c:0', parameters: {parameters}}}\n")
    done = captured([sys.executable, ROOT / script, "input.yml"], cwd=tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(r"error: .*\n", done.stderr) and message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["input.yml"]


@pytest.mark.slow
def test_one_default_core(tmp_path):
    """With n as the only parameter, the FuseSoC generator writes the same Verilog as the Python call. `test_core_options.py`
    tests the command."""
    (tmp_path / "input.yml").write_text(f"{{files_root: {ROOT}, vlnv: 'a:b:c:0', parameters: {{n: 2}}}}\n")
    subprocess.run([sys.executable, ROOT / "hw" / "fusesoc_generator.py", "input.yml"], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "tpu.v").read_text() == to_verilog(Config(n=2), source=source())
    assert Config() == PRESETS["default"]


def test_versions():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cores = [path for folder in ("hw", "sim") for path in (ROOT / folder).rglob("*.core")]
    assert len(cores) == 3
    for path in cores:
        assert re.search(rf"^name: \S+:{re.escape(version)}$", path.read_text(), re.MULTILINE), path
