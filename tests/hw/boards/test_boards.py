# amaranth: UnusedElaboratable=no
"""Tests of the boards' pins and clocks, and of the errors for unsupported options."""

import functools
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

import amaranth_tpu.sim as sim
from amaranth_tpu.hw.boards import BOARDS
from amaranth_tpu.hw.boards.board_pins import request_pins
from amaranth_tpu.hw.boards.ecp5_pll import pll_instance, pll_settings
from amaranth_tpu.hw.config import PLAIN, PRESETS, Config, ConfigError
from amaranth_tpu.sim.rtl.simulators import find_verilator
from command import captured
from suites import slow

SMALL = Config(n=2, unified_buffer_depth=16, accumulator_depth=16, **PLAIN)

#: Clock in MHz; sites of the clock, of the serial line and of the first LED, from the schematics.
SAMPLED = {
    "ulx3s": (25, "G2", "M1", "L4", "B2"),
    "ecpix5": (100, "K23", "R26", "R24", "R21"),
    "orangecrab": (48, "A9", "N17", "M18", "M3"),
    "versa": (100, "P3", "C11", "A11", "E16"),
    "tang": (27, "H11", "T13", "M11", "N16"),
    "crosslink": (12, "L13", "F16", "F18", "E17"),
}


#: Lines that place a port in the constraints of ECP5, Gowin and Nexus.
PLACES = (
    r'LOCATE COMP "(?P<port>.+)" SITE "(?P<site>\w+)";',
    r'IO_LOC "(?P<port>.+)" (?P<site>\w+);',
    r"ldc_set_location -site {(?P<site>\w+)} \[get_ports {(?P<port>.+)}\]",
)


def sites_of(lines):
    """Returns {port: site} of the lines of a file of constraints."""
    found = [match for line in lines for place in PLACES if (match := re.fullmatch(place, line))]
    return {match["port"]: match["site"] for match in found}


@functools.cache
def verilog(name):
    return BOARDS[name].to_verilog(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, made", [("ulx3s-12f", "ulx3s-25f"), ("ulx3s-45f", "ulx3s-25f"), *((name, name) for name in BOARDS)]
)
def test_pins(name, made):
    """For every board, the top level's ports equal the pins of the constraints, and sampled pins equal the schematics."""
    board, verilog_ = BOARDS[name], verilog(made)
    head = verilog_.partition("\nmodule top (\n")[2].partition(");")[0]
    ports = []
    for line in head.strip().splitlines():
        *_, size, port = line.split("//")[0].rstrip().rstrip(",").split()
        wide = re.fullmatch(r"\[(\d+):0\]", size)
        ports += [f"{port}[{bit}]" for bit in range(int(wide[1]) + 1)] if wide else [port]
    lines = board.constraints().splitlines()
    sites = sites_of(lines)
    assert sorted(sites) == sorted(ports) and len(set(sites.values())) == len(sites)
    clock, *others = SAMPLED[name.split("-")[0]]
    assert [sites[port] for port in (f"clk{clock}", "uart_rx", "uart_tx", "led_0")] == others
    if board.part.startswith("ecp5"):
        assert f'FREQUENCY PORT "clk{clock}" {clock} MHZ;' in lines
    if clock == 25:
        assert {line.split('"')[1] for line in lines if line.startswith("IOBUF") and "IO_TYPE=LVCMOS33" in line} == set(ports)
    assert board.preset in PRESETS


def test_constraints_of_other_families():
    """Gowin and Nexus have their own files, the platform's attributes, and the clock of the board."""
    gowin, nexus = (BOARDS[name].constraints().splitlines() for name in ("tang-primer-20k", "crosslink-nx"))
    assert 'IO_PORT "uart_rx" PULL_MODE=UP IO_TYPE=LVCMOS33;' in gowin
    assert "create_clock -name {clk12} -period 83.333 [get_ports {clk12}]" in nexus
    assert "ldc_set_port -iobuf {IO_TYPE=LVCMOS33} [get_ports {button}]" in nexus
    for name, lines in (("tang-primer-20k", gowin), ("crosslink-nx", nexus)):
        sites = sites_of(lines)
        clock, *others = SAMPLED[name.split("-")[0]]
        assert [sites[port] for port in (f"clk{clock}", "uart_rx", "uart_tx", "led_0")] == others
        with pytest.raises(ConfigError, match=f"clock_mhz must be {clock}, the board's clock"):
            replace(BOARDS[name], clock_mhz=50).to_verilog(SMALL)


def test_late_clock():
    """The second output of the PLL is three quarters of a cycle after the first one."""
    settings = pll_settings(25, 90)
    text = pll_instance(settings, clock_in="i", clock_out="o", locked="l", late="late")
    first, second, fraction = (
        int(re.search(rf"{name}\((\d+)\)", text)[1]) for name in ("CLKOS_CPHASE", "CLKOS2_CPHASE", "CLKOS2_FPHASE")
    )
    assert (second - first + fraction / 8) / settings.output_divider == 0.75


def test_sdram_pins():
    """Pins of a signal with several are named by their number; sites as in the ULX3S schematics."""
    lines = BOARDS["ulx3s-85f"].constraints().splitlines()
    for port, site in (
        ("sdram_clk", "F19"),
        ("sdram_a[0]", "M20"),
        ("sdram_a[12]", "G19"),
        ("sdram_dq[15]", "J17"),
        ("sdram_ba[1]", "N20"),
    ):
        assert f'LOCATE COMP "{port}" SITE "{site}";' in lines
    with pytest.raises(ConfigError, match=r"x: 'sdram#0.ba\[2\]' has 2 pins"):
        request_pins(BOARDS["ulx3s-85f"].platform(), {"x": "sdram#0.ba[2]"})


@pytest.mark.parametrize("mhz", [25, 50, 80, 90, 95, 100, 110, 125, 133, 150])
def test_pll(mhz):
    settings = pll_settings(25, mhz)
    assert abs(settings.output_mhz / mhz - 1) < 0.005
    assert 400 <= settings.oscillator_mhz <= 800
    assert settings.input_mhz / settings.input_divider >= 10


def test_impossible():
    board = BOARDS["ulx3s-85f"]
    for mhz in (2, 900):
        with pytest.raises(ConfigError, match=f"PLL makes no {mhz} MHz from 25 MHz"):
            replace(board, clock_mhz=mhz).to_verilog(SMALL)
    with pytest.raises(ConfigError, match="40000000 baud"):
        replace(board, baud=40_000_000).to_verilog(SMALL)


@pytest.mark.parametrize("simulator", ["icarus", *slow("verilator")])
def test_verilog_has_no_warnings(simulator, tmp_path):
    (tmp_path / "top.v").write_text(verilog("ulx3s-25f"))
    files = ["top.v", str(Path(sim.__file__).parent / "rtl" / "ehxplll.v")]
    if simulator == "icarus":
        command, environment = ["iverilog", "-g2012", "-Wall", "-Wno-timescale", "-s", "top", "-o", "top.vvp", *files], os.environ
    else:
        tool = find_verilator()
        command, environment = [tool.program, "--lint-only", "--top-module", "top", *files], os.environ | tool.environment
    done = captured(command, cwd=tmp_path, timeout=300, env=environment)
    assert done.returncode == 0 and not done.stderr, done.stderr
