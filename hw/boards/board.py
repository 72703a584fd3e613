"""Boards: the core on a serial line, connected to the pins of an ECP5 that the package amaranth-boards describes."""

from collections import Counter
from dataclasses import dataclass

from ..config import ConfigError
from ..verilog.export import component_to_verilog
from .board_pins import request_pins
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
#: nextpnr's names of the packages.
_PACKAGES = {"BG256": "CABGA256", "MG285": "CSFBGA285", "BG381": "CABGA381", "BG554": "CABGA554", "BG756": "CABGA756"}
#: nextpnr's options for the series of the ECP5, before the size in thousands of LUTs.
_SERIES = {"LFE5U": "--", "LFE5UM": "--um-", "LFE5UM5G": "--um5g-"}
_OUTPUTS = ("uart_tx", "led_", "sdram_")

_TOP = """
// The board: clock, reset and pins.
module top (
{ports}
);
  wire clk, {late}feedback, locked;
{pll}

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
    """A board with an ECP5: its resources, and the top-level module around the core.

    Resources are named by the platform's name and number, such as `led#0`. If a resource has several signals, the signal follows,
    such as `rgb_led#0.r`. Active-low pins are inverted in the top-level module. The clock is the platform's default clock.

    Parameters
    ----------
    name : str
        Name for ``tpu synth --target``.
    platform : type
        Class in the package amaranth-boards with pins, part, package and speed grade.
    preset : str
        Key of :data:`hw.config.PRESETS`: the default configuration of the board.
    clock_mhz : float
        Clock of the core, made by a PLL.
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
        return f"ecp5-{self._device()[1]}"

    @property
    def place_and_route_options(self):
        """Returns nextpnr's command-line options for part, package and speed grade."""
        series, size = self._device()
        package, speed = _PACKAGES[self.platform.package], str(self.platform.speed)
        return f"{_SERIES[series]}{size}k", "--package", package, "--speed", speed

    def _device(self):
        series, size = self.platform.device.split("-")
        return series, size.removesuffix("F")

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
        settings, pins = pll_settings(self._input_mhz, self.clock_mhz), self.pins()
        clock = round(settings.output_mhz * 1e6)
        try:
            step = bit_step(clock, self.baud)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        system = SerialSystem(config, memory=self.memory, clock=clock, step=step, silence=round(self.silence * clock))
        late = "clk_late" if self._has_sdram else None
        pll = pll_instance(settings, clock_in=self._clock, clock_out="clk", locked="locked", late=late)
        return component_to_verilog(system, name="serial_system") + self._top(pins, pll)

    def _top(self, pins, pll):
        """Returns the Verilog text of the module `top`, whose ports are the pins. `pll` has the settings of the PLL."""
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
            pll=pll,
            reset=f"Reset for as long as the clock is not right{pressed}, and 15 cycles more.",
            released=released,
            assigned="".join(assigned),
            rx=pins["uart_rx"].read(),
            late="clk_late, " if self._has_sdram else "",
            sdram=sdram_cells(pins) if self._has_sdram else "",
            connections=f",\n    {CONNECTIONS}" if self._has_sdram else "",
            **nets,
        )

    def constraints(self):
        """Returns Lattice's preferences (LPF) for `top`: sites and I/O standards of its pins, and the frequency of its clock."""
        lines = []
        for pin in self.pins().values():
            lines.append(f'LOCATE COMP "{pin.port}" SITE "{pin.site}";')
            if pin.attributes:
                attributes = " ".join(f"{key}={value}" for key, value in pin.attributes.items())
                lines.append(f'IOBUF PORT "{pin.port}" {attributes};')
        lines.append(f'FREQUENCY PORT "{self._clock}" {self._input_mhz:g} MHZ;')
        return "\n".join(lines) + "\n"
