"""The ULX3S, an ECP5 with an FTDI FT231X behind its USB socket: a core on the serial line."""

from amaranth_boards import ulx3s

from ..config import ConfigError
from ..verilog.export import component_to_verilog
from .ecp5_pll import pll_instance, pll_settings
from .serial_system import SerialSystem
from .uart import bit_step

__all__ = ["PINS", "PLATFORMS", "verilog", "constraints"]

PLATFORMS = {
    "ulx3s-12f": ulx3s.ULX3S_12F_Platform,
    "ulx3s-25f": ulx3s.ULX3S_25F_Platform,
    "ulx3s-45f": ulx3s.ULX3S_45F_Platform,
    "ulx3s-85f": ulx3s.ULX3S_85F_Platform,
}

#: Port of `top` -> resource of the platform: its name, number and signal.
PINS = {
    "clk25": ("clk25", 0, None),
    "button": ("button_fire", 0, None),
    "uart_rx": ("uart", 0, "rx"),
    "uart_tx": ("uart", 0, "tx"),
    **{f"led_{index}": ("led", index, None) for index in range(4)},
}

_TOP = """
// The board: clock, reset and pins.
module top (
  input  wire clk25,
  input  wire button,    // reset
  input  wire uart_rx,
  output wire uart_tx,
  output wire led_0,     // the clock runs
  output wire led_1,     // a request is being received, executed or answered
  output wire led_2,     // the last request was answered with an error
  output wire led_3      // a run has ended: the core's interrupt
);
  wire clk, feedback, locked;
{pll}

  // Reset for as long as the clock is not right or the button is pressed, and 15 cycles more.
  reg [1:0] ready = 0;
  reg [3:0] count = 0;
  reg rst = 1;
  always @(posedge clk) begin
    ready <= {{ready[0], locked & ~button}};
    count <= !ready[1] ? 4'd0 : &count ? count : count + 4'd1;
    rst <= ~&count;
  end
  assign led_0 = ~rst;

  serial_system system (
    .clk(clk), .rst(rst), .rx(uart_rx), .tx(uart_tx), .busy(led_1), .failed(led_2), .irq(led_3)
  );
endmodule
"""


def verilog(config, platform, *, clock_mhz, memory, baud, silence):
    """Verilog of the board's top, module `top`, and of all below it.

    Raises
    ------
    ConfigError
        For a clock that the PLL can't make, and a line that is too fast for it.
    """
    settings = pll_settings(platform.default_clk_frequency / 1e6, clock_mhz)
    pll = pll_instance(settings, clock_in="clk25", clock_out="clk", locked="locked")
    clock = round(settings.output_mhz * 1e6)
    try:
        step = bit_step(clock, baud)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    system = SerialSystem(config, memory=memory, clock=clock, step=step, silence=round(silence * clock))
    return component_to_verilog(system, name="serial_system") + _TOP.format(pll=pll)


def _port(group, signal):
    return getattr(group, signal) if signal else group


def constraints(platform):
    """Lattice's preferences (LPF) for `top`: places and electrical standards of its pins, and the oscillator's frequency."""
    lines, groups = [], {}
    for name, (resource, number, signal) in PINS.items():
        if (resource, number) not in groups:
            groups[resource, number] = platform.request(resource, number, dir="-")
        port = _port(groups[resource, number], signal)
        (pin,) = port.io.metadata
        assert not any(port.invert), f"{name} is active low"
        lines.append(f'LOCATE COMP "{name}" SITE "{pin.name}";')
        lines.append(f'IOBUF PORT "{name}" ' + " ".join(f"{key}={value}" for key, value in pin.attrs.items()) + ";")
    lines.append(f'FREQUENCY PORT "clk25" {platform.default_clk_frequency / 1e6:g} MHZ;')
    return "\n".join(lines) + "\n"
