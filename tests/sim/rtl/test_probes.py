"""Tests that the signals of probes exist in the Verilog of every kind of core, and that their recordings can be read."""

import re

import pytest

from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.sim.rtl.core_probes import core_probes
from amaranth_tpu.sim.rtl.probes import Net, Probe, probe_module, read_probes
from amaranth_tpu.sim.rtl.runner import Simulation
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from amaranth_tpu.sim.rtl.verilog_names import VerilogNames
from core_runs import FULL, SMALL
from suites import slow


@pytest.mark.parametrize("config", slow(SMALL, FULL), ids=["small", "full"])
def test_every_signal_is_there(config):
    verilog = verilog_of(config)
    recorded = Simulation.of_core(verilog, config, simulator="icarus", probes=core_probes(config))
    assert recorded.verilog.startswith(verilog) and "module probes (" in recorded.verilog[len(verilog) :]


def test_names_and_bits():
    names = VerilogNames(verilog_of(SMALL))
    assert names.expression(Net("matmul.issuer.final")) == ("testbench.core.matmul.issuer.\\final ", 1)
    assert names.expression(Net("run.stall", 2, 3)) == ("testbench.core.run.stall[4:2]", 3)
    for path, said in (("run.nothing", "signal run.nothing"), ("nowhere.stall", "signal nowhere.stall")):
        with pytest.raises(ToolError, match=said):
            names.expression(Net(path))
    with pytest.raises(ToolError, match="bit 8 in signal run.stall"):
        names.expression(Net("run.stall", 7, 2))
    cells = [path for path, module in names.walk() if module == "tpu_cell"]
    assert len(cells) == SMALL.n**2 and ("array", "row_3", "cell_0") in cells


def test_what_is_written_is_read(tmp_path):
    probes = (Probe("one", {"a": Net("x"), "b": Net("y")}), Probe("two", when=(Net("z"),)))
    (tmp_path / "probes").write_text("0 7 0f x1\n1 8\n0 9 X0 3\nend 3\n")
    assert read_probes(tmp_path / "probes", probes) == {
        "one": [{"cycle": 7, "a": 15, "b": 1}, {"cycle": 9, "a": 0, "b": 3}],
        "two": [{"cycle": 8}],
    }


def test_when_and_changes():
    text = probe_module(
        [
            Probe("busy", {"stall": Net("run.stall")}, when=(Net("run.busy"),)),
            Probe("active", {"active": Net("run.registers__active")}),
        ],
        VerilogNames(verilog_of(SMALL)),
    )
    [written] = re.findall(r"&& testbench.core.run.busy\) begin\s+lines_0 = lines_0 \+ 1;\s+(.*)\s+end", text)
    assert written == '$fwrite(file, "0 %0d %h\\n", cycle, testbench.core.run.stall);'
    assert "{testbench.core.run.registers__active} !== last_1" in text


def test_cut_recording_is_an_error(tmp_path):
    """A recording that is cut anywhere, as on a full disk, raises an error, because the simulator itself reports none."""
    probes = (Probe("one", {"a": Net("x"), "b": Net("y")}), Probe("two", when=(Net("z"),)))
    text = "0 7 0f x1\n1 8\n0 9 X0 3\nend 3\n"
    for cut in (text[:-2], text[:-6], text[:15], text[:4], "", text[:12] + text[16:], text[10:], text.replace("3\ne", "e")):
        (tmp_path / "probes").write_text(cut)
        with pytest.raises(ToolError, match="cut behind line .*set TPU_BUILD"):
            read_probes(tmp_path / "probes", probes)
