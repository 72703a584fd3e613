# amaranth: UnusedElaboratable=no
"""Tests of a board on every ECP5 platform of amaranth-boards, covering pins, polarity, clock, and options for place and route."""

import importlib
import pkgutil
import re
from dataclasses import replace
from pathlib import Path

import amaranth_boards
import pytest
from amaranth import ClockDomain, Module
from amaranth.build import Attrs, Pins, Resource, Subsignal
from amaranth.hdl import Elaboratable
from amaranth.lib import io
from amaranth.vendor import LatticePlatform

import amaranth_tpu.sim as sim
from amaranth_tpu.hw.boards import BOARDS, Board, board
from amaranth_tpu.hw.boards.board import LEDS
from amaranth_tpu.hw.boards.board_pins import request_pins
from amaranth_tpu.hw.config import ConfigError
from amaranth_tpu.hw.fpga.place_and_route import place_and_route
from amaranth_tpu.hw.fpga.synthesis import synthesize
from amaranth_tpu.hw.fpga.targets import PARTS, Target, find_target
from command import captured

#: A stand-in for the system, whose outputs show how each resource is connected.
SYSTEM = """
module serial_system (input wire clk, input wire rst, input wire rx,
                      output wire tx, output wire busy, output wire failed, output wire irq);
  tpu core (.clk(clk), .rst(rst), .count({irq, failed, busy}));
  assign tx = rx & ~rst;
endmodule
module tpu (
  input  wire clk,
  input  wire rst,
  output reg [2:0] count
);
  always @(posedge clk) count <= rst ? 3'd0 : count + 3'd1;
endmodule
"""


def platforms():
    """Returns `{name: class}` of every platform of amaranth-boards with an ECP5."""
    found = {}
    for module in pkgutil.iter_modules(amaranth_boards.__path__):
        if module.name not in ("extensions", "resources", "test"):
            for name, value in vars(importlib.import_module(f"amaranth_boards.{module.name}")).items():
                if isinstance(value, type) and issubclass(value, LatticePlatform) and str(value.device).startswith("LFE5"):
                    found[name] = value
    return found


#: The Supercon badge is left out, because its 8 MHz clock is below the PLL's range.
PLATFORMS = {name: platform for name, platform in platforms().items() if name != "Supercon19BadgePlatform"}


def connector_uart(platform):
    (name, number), connector = next(iter(platform.connectors.items()))
    rx, tx = [*connector.mapping][:2]
    signals = Subsignal("rx", Pins(rx, dir="i", conn=(name, number))), Subsignal("tx", Pins(tx, dir="o", conn=(name, number)))
    return (Resource("uart", 0, *signals, Attrs(IO_TYPE="LVCMOS33")),)


def board_of(name):
    platform = PLATFORMS[name]()
    leds = [
        f"{led}#{number}{'.r' if led == 'rgb_led' else ''}" for led, number in platform.resources if led in ("led", "rgb_led")
    ]
    button = next((f"{one}#0" for one in ("rst", "button") if (one, 0) in platform.resources), None)
    if name == "Colorlight_5A75B_R70Platform":  # this platform's LED and button share the pins of the serial line
        leds, button = [], None
    extra = () if ("uart", 0) in platform.resources else connector_uart(platform)
    made = {"clock_mhz": 50, "memory": 1 << 12, "baud": 1_000_000}
    return Board(name, PLATFORMS[name], "plain", leds=tuple(leds), button=button, resources=extra, **made)


class Asked(Elaboratable):
    """A design that requests the resources of a board through Amaranth's own platform."""

    def __init__(self, made):
        self.made, self.requested = made, {}

    def elaborate(self, platform):
        m = Module()

        def buffer(direction, resource, signal=""):
            name, number = resource.split("#")
            if resource not in self.requested:
                self.requested[resource] = platform.request(name, int(number), dir="-")
            port = self.requested[resource]
            m.submodules += (found := io.Buffer(direction, getattr(port, signal) if signal else port))
            return found

        m.domains.sync = sync = ClockDomain(reset_less=True)
        m.d.comb += sync.clk.eq(buffer("i", f"{platform.default_clk}#0").i)
        m.d.comb += buffer("o", "uart#0", "tx").o.eq(buffer("i", "uart#0", "rx").i)
        if self.made.button:
            buffer("i", self.made.button)
        for led in self.made.leds[: len(LEDS)]:
            m.d.comb += buffer("o", *led.split(".")).o.eq(1)
        return m


def preferences(text):
    """Returns `({site: attributes}, {frequency in Hz})` of the constraint file (LPF) `text`."""
    sites = dict(re.findall(r'^LOCATE COMP "(.*)" SITE "(.*)";', text, re.MULTILINE))
    attributes = dict(re.findall(r'^IOBUF PORT "(.*?)" (.*);', text, re.MULTILINE))
    clocks = re.findall(r'^FREQUENCY PORT ".*" ([\d.]+) (M?)HZ;', text, re.MULTILINE)
    return {site: attributes.get(port, "") for port, site in sites.items()}, {float(f) * (1e6 if m else 1) for f, m in clocks}


def test_platforms_are_found():
    assert len(PLATFORMS) > 18 and {"VersaECP5Platform", "OrangeCrabR0_2_85FPlatform", "ECPIX585Platform"} <= set(PLATFORMS)


@pytest.mark.parametrize("name", PLATFORMS)
def test_constraints_are_those_of_amaranth(name):
    """The board's constraints and nextpnr options equal those that Amaranth generates for the same resources: pins, I/O standards
    and clock."""
    made = board_of(name)
    platform = made.platform()
    platform.add_resources(made.resources)
    plan = platform.build(Asked(made), do_build=False)
    ours, clocks = preferences(made.constraints())
    theirs, their_clocks = preferences(plan.files["top.lpf"])
    assert len(ours) == 3 + bool(made.button) + len(made.leds[: len(LEDS)]) and clocks == their_clocks
    assert ours.items() <= theirs.items()
    assert " ".join(made.place_and_route_options) in plan.files["build_top.sh"] and made.part in PARTS


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(board, "SerialSystem", lambda config, **parameters: None)
    monkeypatch.setattr(board, "component_to_verilog", lambda system, name: SYSTEM)


@pytest.mark.parametrize("name", PLATFORMS)
def test_polarity_of_pins(name, stub, tmp_path):
    """In Icarus Verilog, with each pin's polarity as on the board, the system leaves reset and high outputs light the LEDs."""
    made = board_of(name)
    resources = made.platform().resources

    def active_low(resource):
        label, number, signal = re.fullmatch(r"(\w+)#(\d+)\.?(\w*)", resource).groups()
        ios = resources[label, int(number)].ios
        [pins] = [getattr(one, "ios", [one])[0] for one in ios if not signal or one.name == signal]
        return pins.invert

    clock = next(port for port in made.pins() if port.startswith("clk"))
    button = made.button and active_low(made.button)
    leds = [active_low(led) for led in made.leds[: len(LEDS)]]
    connections = "".join(f", .led_{index}(led[{index}])" for index in range(len(leds)))
    connections += ", .button(button)" if made.button else ""
    shown = "~dut.rst", "dut.system.busy", "dut.system.failed", "dut.system.irq"
    checks = "".join(
        f'    if (led[{index}] !== {"~" * inverted}({shown[index]})) $display("led {index}");\n'
        for index, inverted in enumerate(leds)
    )
    (tmp_path / "bench.v").write_text(
        f"""module bench;
  reg clk = 0, button = {int(not button)}, rx = 0;
  wire [3:0] led;
  wire tx;
  top dut (.{clock}(clk), .uart_rx(rx), .uart_tx(tx){connections});
  always #5 clk = ~clk;
  always @(negedge clk) begin
{checks}    if (tx !== (rx & ~dut.rst)) $display("tx");
    rx = ~rx;
  end
  initial begin
    #1000 if (dut.rst !== {int(bool(made.button))}) $display("reset with the button held");
    button = {int(bool(button))};
    #1000 if (dut.rst !== 0) $display("reset after the button");
    $display("done");
    $finish;
  end
endmodule
"""
    )
    (tmp_path / "top.v").write_text(made.to_verilog(None))
    pll = Path(sim.__file__).parent / "rtl" / "ehxplll.v"
    command = ["iverilog", "-g2012", "-Wall", "-Wno-timescale", "-s", "bench", "-o", "bench.vvp", "bench.v", "top.v", str(pll)]
    built = captured(command, cwd=tmp_path)
    assert built.returncode == 0 and not built.stderr, built.stderr
    done = captured(["vvp", "-n", "bench.vvp"], cwd=tmp_path)
    assert done.stdout == "done\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", PLATFORMS)
def test_bitstream(name, stub, tmp_path):
    """Yosys, nextpnr and ecppack make a bitstream from the top level with its pins and options, and with a counter in place of
    the system."""
    made = board_of(name)
    target = Target(name, PARTS[made.part], made)
    synthesize(made.to_verilog(None), target, tmp_path, top="top", flat=True)
    report, bitstream = place_and_route(target, tmp_path, constraints=made.constraints())
    assert bitstream.stat().st_size > 10_000 and report["utilization"]["EHXPLLL"]["used"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tang-primer-20k", "crosslink-nx"])
def test_bitstream_of_other_families(name, stub, tmp_path):
    """The same for Gowin and Nexus, whose clock comes from the pin."""
    made = BOARDS[name]
    synthesize(made.to_verilog(None), find_target(name), tmp_path, top="top", flat=True)
    report, bitstream = place_and_route(find_target(name), tmp_path, constraints=made.constraints())
    assert bitstream.stat().st_size > 10_000
    assert min(clock["achieved"] for clock in report["fmax"].values()) > made.clock_mhz


def test_refusals(rng):
    made = board_of("IcepiZero1_3Platform")
    for change, said in (
        ({"button": "fire#0"}, "button: IcepiZero1_3Platform has no fire#0; it has .*button#1.*led#0"),
        ({"leds": ("led",)}, "led_0: 'led' is not the name of a resource; write it as led#0 or uart#0.rx"),
        ({"leds": ("uart#0",)}, "led_0: 'uart#0' is not a pin; uart#0 has rx, tx"),
        ({"leds": ("led#0.r",)}, "led_0: 'led#0.r' is not a pin; led#0 has no signals"),
        ({"button": "uart#1"}, "button: .* has no uart#1"),
    ):
        with pytest.raises(ConfigError, match=f"^board IcepiZero1_3Platform: {said}"):
            replace(made, **change).to_verilog(None)
    shared = replace(board_of("Colorlight_5A75B_R70Platform"), leds=("led#0",))
    with pytest.raises(ConfigError, match="led_0: .*physical pin P11"):
        shared.pins()
    with pytest.raises(ConfigError, match="several: 'eth_rgmii#0.tx_data' has 4 pins; name a resource of one pin"):
        request_pins(shared.platform(), {"several": "eth_rgmii#0.tx_data"})
    badge = Board("badge", platforms()["Supercon19BadgePlatform"], "plain", clock_mhz=50, memory=1 << 12)
    with pytest.raises(ConfigError, match="the PLL makes no 50 MHz from 8 MHz"):
        badge.to_verilog(None)
