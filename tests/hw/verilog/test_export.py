"""Tests that every tool accepts the Verilog of a core without warnings, that the file is reproducible, and that its header
describes the core."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_tpu.hw.config import PLAIN, Config, ConfigError
from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.hw.tools.yosys import run_yosys
from amaranth_tpu.hw.verilog.export import component_to_verilog, pod_to_verilog, to_verilog
from amaranth_tpu.hw.verilog.header import package_version, with_header
from amaranth_tpu.hw.verilog.signal_names import names_from_source
from amaranth_tpu.sim.rtl.simulators import find_verilator
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from command import captured
from core_runs import FEW_SIZES, FULL, MIXED, TINY
from slang import check_with_slang
from suites import slow


@pytest.fixture(scope="module")
def verilog():
    return verilog_of(Config())


@pytest.fixture(scope="module")
def everything():
    return verilog_of(FULL)


@pytest.mark.slow
def test_icarus(verilog, tmp_path):
    (tmp_path / "tpu.v").write_text(verilog)
    done = captured(
        ["iverilog", "-g2005", "-Wall", "-Wno-timescale", "-s", "tpu", "-o", "tpu.vvp", "tpu.v"], cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize(
    "sizes",
    [
        asdict(FULL),
        *slow(
            TINY | MIXED,
            {"n": 4, "table_lanes": 2},
            TINY | FEW_SIZES[0],
            TINY | FEW_SIZES[4],
            {"n": 2, "cell_stages": 9},
            {},
            {"n": 32},
            {"n": 8, "table_lanes": 8},
        ),
    ],
    ids=lambda sizes: "full" if len(sizes) > 20 else str(sizes),
)
def test_verilator_lint(sizes, tmp_path):
    """Verilator reports no warning with -Wall, apart from those that the file itself waives."""
    (tmp_path / "tpu.v").write_text(verilog_of(Config(**sizes)))
    tool = find_verilator()
    done = captured(
        [tool.program, "--lint-only", "-Wall", "--top-module", "tpu", "tpu.v"],
        cwd=tmp_path,
        timeout=300,
        env=os.environ | tool.environment,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.fixture(scope="module")
def largest():
    return to_verilog(Config(n=128, **PLAIN))


@pytest.mark.parametrize("n", slow(32, 128))
def test_text_grows_with_n(n):
    """The Verilog grows linearly with n, not with n * n. All n have the same modules, except for converters to vectors wider than
    the bus."""
    texts = [verilog_of(Config(n=size)) for size in (4, 16, n)]
    sizes = [len(text) for text in texts]
    assert (sizes[2] - sizes[1]) / (n - 16) < 1.3 * (sizes[1] - sizes[0]) / (16 - 4)
    modules = [
        {name for name in re.findall(r"^module (\w+)", text, re.MULTILINE) if "_converter" not in name} for text in texts[1:]
    ]
    assert modules[0] == modules[1]


@pytest.mark.parametrize("n", [4, *slow(16, 128)])
def test_yosys_accepts_the_verilog(n, request):
    """Yosys reads the file as plain Verilog, every instance matches its module, and every net has exactly one driver. There
    are no latches. In the core with every feature, there are no loops of gates through several modules either."""
    text = request.getfixturevalue({4: "everything", 16: "verilog", 128: "largest"}[n])
    check_netlist(text, flat=n == 4)


def check_netlist(text, flat):
    script = "read_verilog design.v\nhierarchy -check -top tpu\nproc\nselect -assert-none t:$*dlatch*\n"
    script += f"{'flatten' * flat}\ncheck -assert\nwrite_file done <<EOT\nEOT\n"
    run_yosys(script, {"design.v": text}, "done", timeout=300)


@pytest.mark.parametrize(
    "fault, message",
    [
        ("always @(latched or en) if (en) out = in;\n", "dlatch"),
        ("assign out = en & ~across;\nother other (.in(out), .out(across));\n", "check -assert"),
    ],
    ids=["latch", "loop"],
)
def test_latches_and_loops_are_noticed(fault, message):
    head = f"module tpu(input in, input en, output {'reg ' * ('always' in fault)}out);\nwire across, latched = in;\n"
    with pytest.raises(ToolError, match=message):
        check_netlist(f"{head}{fault}endmodule\nmodule other(input in, output out);\nassign out = in;\nendmodule\n", flat=True)


def test_bursts_have_the_attributes_of_the_configuration(everything):
    for channel in ("ar", "aw"):
        assert f"assign m_axi_{channel}cache = 4'hf;" in everything and f"assign m_axi_{channel}prot = 3'h2;" in everything


# promise: rising-edge
def test_all_processes_are_clocked(everything):
    """All processes are clocked, because Icarus Verilog never runs an `always @*` whose inputs do not change. Initial values are
    in separate blocks."""
    assert set(re.findall(r"\balways\w*[^\n;]*?\)", everything)) == {"always @(posedge aclk)", "always @(posedge clk)"}
    assert not re.search(r"^ *(output +)?(reg|wire|logic)\b.* = ", everything, re.MULTILINE)
    assert "  initial begin\n" in everything


@pytest.mark.slow
def test_verilator_lint_of_the_largest(largest, tmp_path):
    """Verilator reports no default warning for n = 128. The rows are hierarchical blocks, because otherwise lint elaborates
    16,384 cells."""
    (tmp_path / "tpu.v").write_text(largest)
    (tmp_path / "rows.vlt").write_text('`verilator_config\nhier_block -module "tpu_row"\n')
    tool = find_verilator()
    done = captured(
        [tool.program, "--cc", "--hierarchical", "--quiet", "--top-module", "tpu", "rows.vlt", "tpu.v"],
        cwd=tmp_path,
        timeout=300,
        env=os.environ | tool.environment,
    )
    assert done.returncode == 0 and "%" not in done.stdout + done.stderr, done.stderr


def test_slang(everything, tmp_path):
    (tmp_path / "tpu.v").write_text(everything)
    check_with_slang(tmp_path / "tpu.v", "tpu")


def test_threads_keep_their_names():
    """Signals of a thread have the names of the source text, although another thread ends its own naming in between. Proofs
    failed for names that were lost."""
    inside = threading.Event()

    def hold():
        with names_from_source():
            inside.set()
            time.sleep(0.1)

    other = threading.Thread(target=hold)
    other.start()
    inside.wait(10)
    with names_from_source():
        other.join()
        one, two = Signal(), Signal()
    assert (one.name, two.name) == ("one", "two")


def test_submodules_keep_their_names(everything):
    """No submodule has the name of a signal, which would rename the submodule and drop it from the tables of blocks."""
    assert "\nmodule tpu_fault_latch (" in everything and not re.search(r"^module \\", everything, re.MULTILINE)


def written_by(python, seed):
    """Returns the Verilog of a core, written by the interpreter `python` with hash seed `seed` and this interpreter's packages.
    Names from byte code are disabled, because they depend on the Python version. A signal made outside `names_from_source` would
    use them."""
    root = Path(__file__).parents[3]
    code = (
        "import sys; from amaranth import tracer; from amaranth_tpu.hw.config import Config; "
        "from amaranth_tpu.hw.verilog.export import to_verilog; "
        "tracer.get_var_name = lambda depth=2, default='$nothing': default; "
        f"sys.stdout.write(to_verilog(Config(**{asdict(FULL)})))"
    )
    paths = os.pathsep.join([str(root), sysconfig.get_path("purelib")])
    return captured(
        [python, "-c", code], check=True, timeout=300, env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": paths}
    ).stdout


# promise: two-cores-in-one-design
@pytest.mark.slow
def test_two_cores_in_one_design(tmp_path):
    """The modules of two differently named designs have different names, even if one is a pod, and tools accept both in one
    design."""
    one = to_verilog(Config(n=2, **PLAIN), name="left")
    other = pod_to_verilog(Config(n=4, ring=True, training=True), cores=2, name="Right_1")
    names = re.findall(r"^module (\S+)", one + other, re.M)
    assert len(names) == len({*names}) and {"left", "left_cell", "Right_1", "Right_1_pod", "Right_1_cell"} <= {*names}
    assert all(re.match("left|Right_1", name) for name in names)
    assert "// Made again by: tpu generate --n 2" in one and one.partition("\n\n")[0].count(" --name left") == 1
    both = one + other + "module both (input wire clk);\n  left a (.aclk(clk));\n  Right_1_pod b (.aclk(clk));\nendmodule\n"
    (tmp_path / "both.v").write_text(both)
    command = ["iverilog", "-g2005", "-s", "both", "-o", tmp_path / "both", tmp_path / "both.v"]
    done = captured(command, timeout=120)
    assert done.returncode == 0, done.stderr
    script = "read_verilog both.v\nhierarchy -check -top both\nwrite_rtlil both.il\n"
    assert "\\Right_1_pod" in run_yosys(script, {"both.v": both}, "both.il", timeout=300)


@pytest.mark.parametrize("name", ["reg", "logic", "1st", "a-b", "", "a" * 41])
def test_names_that_no_module_has(name):
    with pytest.raises(ConfigError, match="^name[^\n]*$"):
        to_verilog(Config(n=2, **PLAIN), name=name)


# promise: same-bytes
@pytest.mark.slow
def test_verilog_is_deterministic(everything):
    """The Verilog does not depend on the hash seed (order of sets) or on names from byte code."""
    assert written_by(sys.executable, 1) == everything


def _other_pythons():
    found = []
    for minor in range(11, 20):
        program = shutil.which(f"python3.{minor}")
        if program and minor != sys.version_info.minor:
            done = captured([program, "-c", "import sys; print(sys.version_info[1])"])
            found += [program] if done.stdout.strip() == str(minor) else []
    return found


@pytest.mark.slow
def test_every_python_writes_the_same_verilog(everything):
    others = _other_pythons()
    if not others:
        pytest.skip("no other Python on PATH")
    for program in others:
        assert written_by(program, 2) == everything, program


def test_names_from_source():
    class Place:
        pass

    with names_from_source():
        place = Place()
        plain = Signal(3)
        second = plain  # Python 3.13 stores and loads in one instruction
        place.attribute = Signal(4)
        one, (two, three) = Signal(), (Signal.like(plain), Signal())
        annotated: Signal = Signal()
        assert (walrus := Signal()).name == "walrus"
        first = same = Signal()
        several = [Signal() for _ in range(2)]
    names = [signal.name for signal in (second, place.attribute, one, two, three, annotated, same, walrus, *several, first)]
    assert names == "plain attribute one two three annotated first walrus $signal $signal first".split()
    theirs = Signal()
    assert theirs.name == "theirs"


def test_header_describes_the_core(verilog):
    """The header of the core's Verilog has licence, versions and every field of the configuration. The source commit appears only
    on request, because the text is a cache key."""
    head, _, body = verilog.partition("\n\n")
    assert all(line.startswith("//") for line in head.splitlines()) and "commit" not in head
    assert head.startswith("// SPDX-License-Identifier: Apache-2.0\n")
    for name, value in {"n": 16, "in_flight": 8, "address_width": 32, "weight_fifo_depth": 16, "bus_width": 256}.items():
        assert f"\n//   {name} = {value}" in head
    assert re.search(r"amaranth-tpu \d+\.\d+.*, with Amaranth 0\.5\.\d+ and Yosys 0\.\d+", head)
    assert body.count("lint_off") == 2 and body.endswith("\n/* verilator lint_restore */\n")
    assert f"amaranth-tpu {package_version()}, commit 1234+changes, with" in with_header(
        "", Config(), source="commit 1234+changes"
    )


def test_no_path(verilog):
    assert not re.search(r"(?<![\w*/])/(?:[\w.+-]+/)+", verilog)


def test_port_list(verilog):
    """The port list of the core's Verilog has one port per line with direction, width and standard name, and the ports of a
    channel are adjacent."""
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


def test_repeated_modules_are_written_once(verilog):
    for module in "cell row unified_buffer_lane weight_fifo_lane accumulator_column activation_lane band".split():
        assert verilog.count(f"\nmodule tpu_{module} (") == 1, module


def test_memories_are_synchronous(verilog):
    """The unified buffer's memory is read into a register, as block RAMs require."""
    lane = verilog.partition("\nmodule tpu_unified_buffer_lane (")[2].partition("\nendmodule")[0]
    assert re.search(r"reg \[15:0\] memory \[4095:0\]", lane)
    assert not re.search(r"assign .*= memory\[", lane)


def test_hardware_needs_neither_numpy_nor_cocotb():
    code = (
        "import sys; sys.modules['numpy'] = sys.modules['cocotb'] = None; "
        "import amaranth_tpu.hw.verilog.export, amaranth_tpu.hw.tpu"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[3])


class _SumWithNothing(wiring.Component):
    """A sum with a signal that has no driver."""

    a: In(8)
    o: Out(9)

    def elaborate(self, platform):
        m = Module()
        undriven = Signal(8)
        m.d.comb += self.o.eq(self.a + undriven)
        return m


def test_operand_without_driver_is_refused_by_name():
    with pytest.raises(ToolError, match="^adds: an operand is always 0, .*; leave its operator out$"):
        component_to_verilog(_SumWithNothing(), name="adds")


def test_yosys_that_fails():
    with pytest.raises(ToolError, match="ERROR: .*nonsense"):
        run_yosys("nonsense", {}, "nothing.v", timeout=100)
