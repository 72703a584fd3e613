# amaranth: UnusedElaboratable=no
"""Tests of the SDRAM controller against a model of the chip that checks each time and order of its data sheet."""

from dataclasses import replace
from pathlib import Path

import pytest
from amaranth.hdl import Value
from amaranth.lib.wiring import In

import amaranth_tpu.sim as sim
from amaranth_tpu.hw.boards.sdram_chip import SDRAM_32M
from amaranth_tpu.hw.boards.sdram_memory import SdramMemory
from amaranth_tpu.hw.verilog.export import component_to_verilog
from amaranth_tpu.sim.rtl.runner import Simulation
from seeds import seed
from suites import slow

SMALL = replace(SDRAM_32M, row_bits=2, column_bits=8, power_up=2_000)
RTL = Path(sim.__file__).parent / "rtl"


def simulation(chip, mhz, width, simulator="icarus", controller=None):
    """Returns a simulation of the memory with its chip; `controller` is the chip that the memory is made for."""
    memory = SdramMemory(chip=controller or chip, mhz=mhz, address_width=32, data_width=width)
    ports, pins, wires, chip_pins = [], [], [], []
    for path, member, value in memory.signature.flatten(memory):
        name, size = "__".join(map(str, path)), f"[{len(Value.cast(value)) - 1}:0]"
        if path[0] == "pins":
            wires.append(f"wire {size} {name};")
            chip_pins.append(f".{path[1]}({name})")
        else:
            ports.append(f"{'input' if member.flow is In else 'output'} wire {size} {name}")
        pins.append(f".{name}({name})")
    outputs = ("errors", "refreshes", "activations")
    ports += [f"output wire [31:0] {name}" for name in outputs]
    chip_pins += [f".{name}({name})" for name in outputs]
    parameters = {
        "ROW_BITS": chip.row_bits,
        "COLUMN_BITS": chip.column_bits,
        "PERIOD": round(1e6 / mhz),
        "POWER_UP": int(chip.power_up),
        "T_WR": int(chip.write),
    }
    settings = ", ".join(f".{name}({value})" for name, value in parameters.items())
    top = f"""
module bench (input wire clk, input wire rst, {", ".join(ports)});
  {" ".join(wires)}
  sdram_memory memory (.clk(clk), .rst(rst), {", ".join(pins)});
  sdram_pins #({settings}) chip (.clk(clk), {", ".join(chip_pins)});
endmodule
"""
    return Simulation(
        simulator=simulator,
        verilog=component_to_verilog(memory, name="sdram_memory") + top,
        sources=(RTL / "sdram_chip.sv", RTL / "sdram_pins.sv"),
        top="bench",
        quick=True,
    )


def run(simulation, testcase, **arguments):
    return simulation.run("bench_board_memory", testcase=testcase, timeout=300, seed=seed(), arguments=arguments)


def traffic(simulation, width, asks=1, takes=1):
    least = {"read": 200, "write": 100, "lite_read": 20, "lite_write": 20}
    sizes = {"size": SMALL.size, "beat": width // 8, "asks": asks, "takes": takes, "always_ready": True}
    return run(simulation, "random_traffic", least=least, **sizes)


@pytest.mark.parametrize("mhz, width, asks, takes", [(90, 128, 0.7, 0.5), *slow((100, 32, 1, 1), (133, 64, 0.3, 1))])
def test_random(mhz, width, asks, takes):
    """All data are right, and the chip sees no violation. Rows are refreshed and change."""
    found = traffic(simulation(SMALL, mhz, width), width, asks, takes)
    assert found["errors"] == 0
    assert found["refreshes"] >= 8 + found["cycles"] // SMALL.refresh_cycles(mhz) - 2
    assert found["activations"] > 20


@pytest.mark.parametrize("time", ["refresh", *slow("activate", "open", "precharge", "write", "refresh_interval", "power_up")])
def test_chip_notices(time):
    """A controller for a faster chip, or one that refreshes late, breaks a rule of this one."""
    late, chip = time == "refresh_interval", SMALL
    if time == "write":  # a random access rarely comes in the one cycle that is missing: the chip takes 15
        chip = replace(SMALL, write=112)
    other = replace(SMALL, **{time: getattr(SMALL, time) * (20 if late else 1 / 3)})
    found = traffic(simulation(chip, 20 if late else 133, 32, controller=other), 32)
    assert found["errors"] > 0


@pytest.mark.parametrize("width, beats", [(128, 16), *slow((32, 16), (64, 4))])
def test_reads_stream(width, beats):
    """Bursts in sequence take the time of their words, apart from refreshes: rows open beforehand."""
    bursts = 3072 // (beats * width // 8)
    found = run(simulation(SMALL, 90, width), "read_stream", beats=beats, bursts=bursts)
    words = bursts * beats * width // 16
    print(found)
    assert found["errors"] == 0 and found["latency"] < 20
    assert words <= found["cycles"] < 1.1 * words
