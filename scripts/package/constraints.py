"""Timing constraints of a packaged design, for Vivado (XDC) and for others (SDC)."""

__all__ = ["sdc", "xdc"]


def xdc(design):
    """Returns constraints for the synthesis of the design on its own. In a system, the clock's own constraint applies."""
    return f"{design.comment('#')}\n{_clock(design)}"


def sdc(design):
    """Returns constraints for the design as the top of a flow. Ports have 40 % of the period outside on either side."""
    outside = f"{0.4 * 1000 / design.mhz:.3f}"
    inputs = "[remove_from_collection [all_inputs] [get_ports aclk]]"
    return (
        f"{design.comment('#')}\n{_clock(design)}set_input_delay {outside} -clock aclk {inputs}\n"
        f"set_output_delay {outside} -clock aclk [all_outputs]\n"
    )


def _clock(design):
    return (
        f"# {design.mhz:g} MHz. All ports are synchronous to aclk, aresetn too.\n"
        f"create_clock -name aclk -period {1000 / design.mhz:.3f} [get_ports aclk]\n"
    )
