"""Timing constraints of a packaged design, for Vivado (XDC) and for others (SDC), and its configuration for LibreLane."""

__all__ = ["librelane", "sdc", "xdc"]


def xdc(design):
    """Returns constraints for the synthesis of the design on its own. In a system, the clock's own constraint applies."""
    return f"{design.comment('#')}\n{_clock(design)}"


def sdc(design):
    """Returns constraints for the design as the top of a flow. Ports have 40 % of the period outside on either side."""
    outside = f"{0.4 * 1000 / design.mhz:.3f}"
    ports = " ".join(
        name if width == 1 else f"{name}[*]" for name, direction, width in design.ports if direction == "input" and name != "aclk"
    )
    inputs = f"[get_ports {{{ports}}}]"  # each by name, as tools differ in commands for sets of ports
    return (
        f"{design.comment('#')}\n{_clock(design)}set_input_delay {outside} -clock aclk {inputs}\n"
        f"set_output_delay {outside} -clock aclk [all_outputs]\n"
    )


def librelane(design):
    """Returns the configuration for LibreLane, which makes a chip's layout with OpenROAD. Its files are in this folder."""
    return (
        f"{design.comment('#')}\n"
        "# librelane constraints/librelane.yaml. Memories become flip-flops, unless macros replace them.\n"
        f"DESIGN_NAME: {design.top}\nVERILOG_FILES: [dir::../rtl/{design.top}.v]\n"
        f"CLOCK_PORT: aclk\nCLOCK_PERIOD: {1000 / design.mhz:.3f}\nSYNTH_STRATEGY: DELAY 1\n"
        f"PNR_SDC_FILE: dir::{design.top}.sdc\nSIGNOFF_SDC_FILE: dir::{design.top}.sdc\n"
    )


def _clock(design):
    return (
        f"# {design.mhz:g} MHz. All ports are synchronous to aclk, aresetn too.\n"
        f"create_clock -name aclk -period {1000 / design.mhz:.3f} [get_ports aclk]\n"
    )
