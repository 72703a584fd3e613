"""Boards: the core on a serial line, connected to the pins of an FPGA, as a platform of Amaranth describes them."""

from collections import Counter
from dataclasses import dataclass

from ..config import ConfigError
from ..verilog.export import component_to_verilog
from .board_pins import request_pins
from .device import device_of
from .ecp5_pll import pll_instance, pll_settings
from .sdram_cells import CONNECTIONS, sdram_cells, sdram_resources
from .sdram_chip import SdramChip
from .serial_system import SerialSystem
from .uart import bit_step

__all__ = ["LEDS", "Board"]

#: The signals on the LEDs, in the order of a board's LEDs, and their meanings.
LEDS = {
    "ready": "the clock runs",
    "busy": "a request is being received, executed or answered",
    "failed": "the last request was answered with an error",
    "irq": "a run has ended: the core's interrupt",
}
_OUTPUTS = ("uart_tx", "led_", "sdram_")

_TOP = """
// The board: clock, reset and pins.
module top (
{ports}
);
{clock}

  // {reset}
  reg [1:0] ready = 0;
  reg [3:0] count = 0;
  reg rst = 1;
  always @(posedge clk) begin
    ready <= {{ready[0], {released}}};
    count <= !ready[1] ? 4'd0 : &count ? count : count + 4'd1;
    rst <= ~&count;
  end
{assigned}{sdram}
  serial_system system (
    .clk(clk), .rst(rst), .rx({rx}), .tx({tx}), .busy({busy}), .failed({failed}), .irq({irq}){connections}
  );
endmodule
"""


@dataclass(frozen=True)
class Board:
    """A board: its resources, and the top-level module around the core.

    Resources are named by the platform's name and number, such as `led#0`. If a resource has several signals, the signal follows,
    such as `rgb_led#0.r`. Active-low pins are inverted in the top-level module. The clock is the platform's default clock.

    Parameters
    ----------
    name : str
        Name for ``tpu synth --target``.
    platform : type
        Class with pins, part, package and speed grade, such as those of the package amaranth-boards.
    preset : str
        Key of :data:`hw.config.PRESETS`: the default configuration of the board.
    clock_mhz : float
        Clock of the core, made by a PLL of an ECP5. Boards of other families need the clock of the board.
    memory : int or SdramChip
        The host's memory: bytes of block RAM, a power of two; or the chip at the platform's resource `sdram#0`.
    button : str or None
        Resource that resets the core. None: only the PLL resets it.
    leds : tuple of str
        At most four resources, in the order of :data:`LEDS`.
    uart : str
        Resource with the signals `rx` and `tx`.
    resources : tuple of amaranth.build.Resource
        Resources to add to the platform, such as a serial line on the pins of a connector.
    baud : int
        Bits per second on the serial line.
    silence : float
        Seconds without a byte after which the board discards an incomplete frame.
    """

    name: str
    platform: type
    preset: str
    clock_mhz: float
    memory: int | SdramChip
    button: str | None = None
    leds: tuple = ()
    uart: str = "uart#0"
    resources: tuple = ()
    baud: int = 3_000_000
    silence: float = 0.02

    @property
    def part(self):
        """Returns the key of :data:`hw.fpga.targets.PARTS` for the board's FPGA."""
        return device_of(self.platform).part

    @property
    def place_and_route_options(self):
        """Returns nextpnr's command-line options for part, package and speed grade."""
        return device_of(self.platform).options

    def pins(self):
        """Returns {port of `top`: Pin}.

        Raises
        ------
        ConfigError
            If the platform does not have a resource.
        """
        platform = self.platform()
        platform.add_resources(self.resources)
        wanted = {
            self._clock: f"{platform.default_clk}#0",
            **({"button": self.button} if self.button else {}),
            "uart_rx": f"{self.uart}.rx",
            "uart_tx": f"{self.uart}.tx",
            **{f"led_{index}": led for index, (_, led) in enumerate(zip(LEDS, self.leds))},
            **(sdram_resources() if self._has_sdram else {}),
        }
        try:
            return request_pins(platform, wanted)
        except ConfigError as error:
            raise ConfigError(f"board {self.name}: {error}") from None

    @property
    def _has_sdram(self):
        return isinstance(self.memory, SdramChip)

    @property
    def memory_bytes(self):
        """Returns the size of the host's memory."""
        return self.memory.size if self._has_sdram else self.memory

    @property
    def memory_kind(self):
        """Returns the kind of the host's memory, as text."""
        return "SDRAM" if self._has_sdram else "block RAM"

    @property
    def _input_mhz(self):
        return self.platform().default_clk_frequency / 1e6

    @property
    def _clock(self):
        return f"clk{round(self._input_mhz)}"

    def to_verilog(self, config):
        """Returns the Verilog of the board: module `top`, whose ports are pins, and all its submodules.

        Raises
        ------
        ConfigError
            If the PLL cannot make the clock, the serial line is too fast for the clock, or a resource does not exist.
        """
        text, clock = self._clock_text()
        pins = self.pins()
        try:
            step = bit_step(clock, self.baud)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        system = SerialSystem(config, memory=self.memory, clock=clock, step=step, silence=round(self.silence * clock))
        return component_to_verilog(system, name="serial_system") + self._top(pins, text)

    def _clock_text(self):
        """Returns `(Verilog text of the nets clk and locked, frequency of clk in Hz)`."""
        if not device_of(self.platform).has_pll:
            if self.clock_mhz != self._input_mhz:
                raise ConfigError(
                    f"board {self.name}: only an ECP5 has a PLL; clock_mhz must be {self._input_mhz:g}, the board's clock"
                )
            return f"  wire clk = {self._clock}, locked = 1'b1;", round(self._input_mhz * 1e6)
        settings, late = pll_settings(self._input_mhz, self.clock_mhz), "clk_late" if self._has_sdram else None
        pll = pll_instance(settings, clock_in=self._clock, clock_out="clk", locked="locked", late=late)
        return f"  wire clk, {f'{late}, ' if late else ''}feedback, locked;\n{pll}", round(settings.output_mhz * 1e6)

    def _top(self, pins, clock):
        """Returns the Verilog text of the module `top`, whose ports are the pins. `clock` is the text of its clock."""
        comments = {"button": "reset"} | {f"led_{index}": text for index, text in enumerate(LEDS.values())}
        sizes = Counter(pin.partition("[")[0] for pin in pins)
        ports = []
        for port, size in sizes.items():
            direction = "inout " if port == "sdram_dq" else "output" if port.startswith(_OUTPUTS) else "input "
            comma, bits = "," if port != [*sizes][-1] else "", f"[{size - 1}:0] " if size > 1 else ""
            comment = f"// {comments[port]}" if port in comments else ""
            ports.append(f"  {direction} wire {bits}{port}{comma}".ljust(25) + comment)

        outputs = dict(zip(("tx", *LEDS), ("uart_tx", *(f"led_{index}" for index in range(len(LEDS))))))
        nets, assigned = {}, []
        for signal, port in outputs.items():
            pin = pins.get(port)
            if signal == "ready":
                assigned += [f"  assign {port} = {'' if pin.inverted else '~'}rst;\n"] if pin else []
            elif pin and pin.inverted:
                nets[signal] = signal
                assigned += [f"  wire {signal};\n  assign {port} = ~{signal};\n"]
            else:
                nets[signal] = port if pin else ""
        button = pins.get("button")
        released = f"locked & {button.port if button.inverted else f'~{button.port}'}" if button else "locked"
        pressed = " or the button is pressed" if button else ""
        return _TOP.format(
            ports="\n".join(line.rstrip() for line in ports),
            clock=clock,
            reset=f"Reset for as long as the clock is not right{pressed}, and 15 cycles more.",
            released=released,
            assigned="".join(assigned),
            rx=pins["uart_rx"].read(),
            sdram=sdram_cells(pins) if self._has_sdram else "",
            connections=f",\n    {CONNECTIONS}" if self._has_sdram else "",
            **nets,
        )

    def constraints(self):
        """Returns the file of constraints for `top`: sites and I/O standards of its pins, and the frequency of its clock."""
        return device_of(self.platform).constraints(self.pins().values(), self._clock, self._input_mhz)
