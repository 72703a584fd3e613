"""Settings of the ECP5's PLL, `EHXPLLL`. The ranges come from Lattice's data sheet of the family, FPGA-DS-02012."""

from dataclasses import dataclass

from ..config import ConfigError

__all__ = ["PllSettings", "pll_settings", "pll_instance"]

_OSCILLATOR_MHZ = (400, 800)
_DETECTOR_MHZ = 10
_DIVIDERS = range(1, 129)


@dataclass(frozen=True)
class PllSettings:
    """Settings of a PLL. The internal oscillator runs at `input_mhz / input_divider * multiplier`, and `output_divider` divides
    its frequency for the output."""

    input_mhz: float
    input_divider: int
    multiplier: int
    output_divider: int

    @property
    def oscillator_mhz(self):
        """Returns the frequency of the internal oscillator, in MHz."""
        return self.input_mhz / self.input_divider * self.multiplier

    @property
    def output_mhz(self):
        """Returns the frequency of the output, in MHz."""
        return self.oscillator_mhz / self.output_divider


def pll_settings(input_mhz, output_mhz):
    """Returns the settings whose output is closest to `output_mhz`. Their error is at most 0.5 %.

    Raises
    ------
    ConfigError
        If no settings come within 0.5 %.
    """
    low, high = _OSCILLATOR_MHZ
    settings = [
        PllSettings(input_mhz, divider, multiplier, output_divider)
        for divider in _DIVIDERS
        if input_mhz / divider >= _DETECTOR_MHZ
        for multiplier in _DIVIDERS
        if low <= input_mhz / divider * multiplier <= high
        for output_divider in _DIVIDERS
    ]
    best = min(settings, key=lambda one: abs(one.output_mhz - output_mhz), default=None)
    if best is None or abs(best.output_mhz / output_mhz - 1) > 0.005:
        raise ConfigError(
            f"the PLL makes no {output_mhz} MHz from {input_mhz:g} MHz: only {low} to {high} MHz, in steps of at "
            f"least {_DETECTOR_MHZ} MHz, over a whole number up to {_DIVIDERS[-1]}"
        )
    return best


def pll_instance(settings, *, clock_in, clock_out, locked, late=None):
    """Returns the Verilog text of a PLL instance that is connected to nets with the given names, and to a net `feedback`.

    `late` is a net for a second output, three quarters of a cycle after `clock_out`.
    """
    divider = settings.output_divider
    second = (
        ""
        if not late
        else f"""
    .CLKOS2_ENABLE("ENABLED"), .CLKOS2_DIV({divider}), .CLKOS2_CPHASE({divider - 1 + 3 * divider // 4}),
    .CLKOS2_FPHASE({6 * divider % 8}),"""
    )
    return f"""\
  (* FREQUENCY_PIN_CLKI = "{settings.input_mhz:g}", FREQUENCY_PIN_CLKOS = "{settings.output_mhz:g}",
     ICP_CURRENT = "12", LPF_RESISTOR = "8", MFG_ENABLE_FILTEROPAMP = "1", MFG_GMCREF_SEL = "2" *)
  EHXPLLL #(
    .CLKI_DIV({settings.input_divider}), .CLKFB_DIV(1), .FEEDBK_PATH("CLKOP"),
    .CLKOP_ENABLE("ENABLED"), .CLKOP_DIV({settings.multiplier}), .CLKOP_CPHASE({settings.multiplier - 1}), .CLKOP_FPHASE(0),
    .CLKOS_ENABLE("ENABLED"), .CLKOS_DIV({settings.output_divider}), .CLKOS_CPHASE({settings.output_divider - 1}),
    .CLKOS_FPHASE(0),{second}
    .OUTDIVIDER_MUXA("DIVA"), .OUTDIVIDER_MUXB("DIVB"), .OUTDIVIDER_MUXC("DIVC"), .OUTDIVIDER_MUXD("DIVD"),
    .PLLRST_ENA("DISABLED"), .INTFB_WAKE("DISABLED"), .STDBY_ENABLE("DISABLED"), .DPHASE_SOURCE("DISABLED")
  ) pll (
    .CLKI({clock_in}), .CLKFB(feedback), .CLKOP(feedback), .CLKOS({clock_out}), .CLKOS2({late or ""}),
    .LOCK({locked}),
    .RST(1'b0), .STDBY(1'b0), .PHASESEL0(1'b0), .PHASESEL1(1'b0), .PHASEDIR(1'b1), .PHASESTEP(1'b1), .PHASELOADREG(1'b1),
    .PLLWAKESYNC(1'b0), .ENCLKOP(1'b0), .ENCLKOS(1'b0)
  );"""
