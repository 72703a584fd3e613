"""The Verilog of a core: accepted by every tool without a word, the same each time, readable at its head."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hw.config import PLAIN, Config
from hw.export import to_verilog
from hw.yosys import YosysError, run_yosys
from sim.tools import find_verilator


@pytest.fixture(scope="module")
def verilog():
    return to_verilog(Config())


def test_icarus(verilog, tmp_path):
    (tmp_path / "tpu.v").write_text(verilog)
    done = subprocess.run(["iverilog", "-g2012", "-Wall", "-Wno-timescale", "-s", "tpu", "-o", "tpu.vvp", "tpu.v"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize("sizes", [{"n": 2}, {}, {"n": 4, "table_lanes": 2, "softmax": False}, {"n": 8} | PLAIN | {"table_lanes": 8},
                                   pytest.param({"n": 32}, marks=pytest.mark.slow)], ids=str)
def test_verilator_lint(sizes, tmp_path):
    """Default warnings."""
    (tmp_path / "tpu.v").write_text(to_verilog(Config(**sizes)))
    tool = find_verilator()
    done = subprocess.run([tool.program, "--lint-only", "--top-module", "tpu", "tpu.v"], cwd=tmp_path, capture_output=True,
                          text=True, timeout=300, env=os.environ | tool.environment)
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.fixture(scope="module")
def largest():
    return to_verilog(Config(n=128, **PLAIN))


def test_text_grows_with_n(largest):
    """Not with n * n, and not the count of modules either."""
    texts = [*(to_verilog(Config(n=n, **PLAIN)) for n in (32, 64)), largest]
    sizes = [len(text) for text in texts]
    assert sizes[2] - sizes[1] < 2.5 * (sizes[1] - sizes[0])
    assert sizes[2] < 1_000_000
    assert len({text.count("\nmodule tpu_") for text in texts[:2]}) == 1


def test_hierarchy_of_the_largest(largest):
    """Every instance fits its module: names and directions of the ports, for Yosys."""
    script = "read_verilog -sv design.v\nhierarchy -check -top tpu\ncheck -assert tpu tpu_array tpu_band tpu_row\nwrite_file done <<EOT\nEOT\n"
    run_yosys(script, {"design.v": largest}, "done", timeout=300)


@pytest.mark.slow
def test_verilator_lint_of_the_largest(largest, tmp_path):
    """Default warnings, the rows as hierarchical blocks: lint alone takes the 16,384 cells apart."""
    (tmp_path / "tpu.v").write_text(largest)
    (tmp_path / "rows.vlt").write_text('`verilator_config\nhier_block -module "tpu_row"\n')
    tool = find_verilator()
    done = subprocess.run([tool.program, "--cc", "--hierarchical", "--quiet", "--top-module", "tpu", "rows.vlt", "tpu.v"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=300, env=os.environ | tool.environment)
    assert done.returncode == 0 and "%" not in done.stdout + done.stderr, done.stderr


def test_slang(verilog, tmp_path, capfd):
    from pyslang import driver

    path = tmp_path / "tpu.v"
    path.write_text(verilog)
    slang = driver.Driver()
    slang.addStandardArgs()
    assert slang.parseCommandLine(f"slang {path} --top tpu")
    assert slang.processOptions() and slang.parseAllSources()
    assert slang.reportParseDiags()
    slang.reportCompilation(slang.createCompilation(), False)
    said = capfd.readouterr()
    assert "tpu" in said.out + said.err, "slang did not find the top"
    assert (slang.diagEngine.numErrors, slang.diagEngine.numWarnings) == (0, 0), said.err + said.out


def test_deterministic(verilog):
    assert to_verilog(Config()) == verilog


def test_no_path(verilog):
    assert not re.search(r"(?<![\w*/])/(?:[\w.+-]+/)+", verilog)


def test_port_list(verilog):
    """One port a line, with direction and width, standard names, and the channels together."""
    head = re.search(r"^module tpu \(\n(.*?)\n\);", verilog, re.MULTILINE | re.DOTALL)[1].split(",\n")
    names = []
    for line in head:
        match = re.fullmatch(r"  (?:input |output) wire (?:\[\d+:0\] )?(\w+)", line)
        assert match, line
        names.append(match[1])
    assert names[:2] == ["aclk", "aresetn"] and names[-1] == "irq"
    assert {"s_axil_awaddr", "s_axil_rready", "m_axi_araddr", "m_axi_arburst", "m_axi_rlast", "m_axi_wstrb"} <= set(names)
    channels = [re.match(r"(m_axi|s_axil)_(aw|ar|w|b|r)", name) for name in names[2:-1]]
    seen = [match[0] for match in channels]
    assert seen == sorted(seen, key=seen.index)


@pytest.mark.parametrize("module", ["tpu_cell", "tpu_row", "tpu_unified_buffer_lane", "tpu_weight_fifo_lane",
                                    "tpu_accumulator_column", "tpu_activation_lane", "tpu_band"])
def test_repeated_modules_are_written_once(verilog, module):
    assert verilog.count(f"\nmodule {module} (") == 1


def test_memories_are_synchronous(verilog):
    """The large memories are read into registers, as block RAM is."""
    lane = verilog.partition("\nmodule tpu_unified_buffer_lane (")[2].partition("\nendmodule")[0]
    assert re.search(r"reg \[15:0\] memory \[4095:0\]", lane)
    assert not re.search(r"assign .*= memory\[", lane)


def test_hardware_needs_neither_numpy_nor_cocotb():
    code = "import sys; sys.modules['numpy'] = sys.modules['cocotb'] = None; import hw.export, hw.tpu"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parent.parent)


def test_yosys_that_fails():
    with pytest.raises(YosysError, match="ERROR: .*nonsense"):
        run_yosys("nonsense", {}, "nothing.v", timeout=100)
