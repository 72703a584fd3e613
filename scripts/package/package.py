"""The files of a package, from the record of the design and a compiled network."""

import os
import re
from pathlib import Path

import amaranth_tpu.hw
import amaranth_tpu.sim

from ..publish.register_files import c_header, svd
from .constraints import librelane, sdc, xdc
from .device_tree import COMPATIBLE, binding, dtsi
from .fusesoc_core import fusesoc_core
from .ip_xact import IEEE_2014, VIVADO, ip_xact
from .readme import makefile, readme
from .simulation import LATENCY, simulation_files

__all__ = ["package_files", "top_level"]

_HARDWARE, _SOFTWARE = (Path(package.__path__[0]) for package in (amaranth_tpu.hw, amaranth_tpu.sim))
_DATASHEET, _DRIVER = _HARDWARE / "README.md", _HARDWARE / "driver"
_FOLDERS = ("constraints", "driver", "linux", "model", "rtl", "sim")
#: Files of the simulation that are the same for all designs.
_BENCH = (_SOFTWARE / "rtl/core_system.sv", _HARDWARE / "examples/soc/host.sv", _SOFTWARE / "rtl/axi_memory.sv")
#: Begin and end of a comment in files that are copied.
_COMMENTS = {".c": ("/* ", " */"), ".h": ("/* ", " */"), ".S": ("/* ", " */"), ".sv": ("// ", ""), ".md": ("[//]: # (", ")")}


def top_level(top):
    """Returns the names of the files and folders in a package. `build` is made by its Makefile."""
    return (*_FOLDERS, "build", "README.md", "datasheet.md", "Makefile", "component.xml", f"{top}.xml", f"{top}.core")


def package_files(design, program, bundle):
    """Returns all files of the package as a dict of paths to bytes.

    Parameters
    ----------
    design : Design
    program : Program
        The compiled network of the first simulation.
    bundle : Bundle
        Its files.
    """
    top = design.top
    verilog, constraints, bench = f"rtl/{top}.v", f"constraints/{top}", {}
    for path in _BENCH:
        bench[f"sim/{path.name}"] = _stamped(design, path)
    bench |= {f"sim/{name}": data for name, data in simulation_files(design, program, bundle).items()}
    driver = _driver(design)
    types = {f"{constraints}.xdc": "xdc", f"{constraints}.sdc": "SDC"}
    texts = {
        "README.md": readme(design, bundle),
        "Makefile": makefile(design, verilog),
        f"{top}.core": fusesoc_core(design, [verilog], types, [*bench], _plusargs()),
        "component.xml": ip_xact(design, VIVADO, *_vivado_files(verilog, f"{constraints}.xdc")),
        f"{top}.xml": ip_xact(design, IEEE_2014, *_ip_xact_files(verilog, types, driver)),
        verilog: design.verilog,
        f"{constraints}.xdc": xdc(design),
        f"{constraints}.sdc": sdc(design),
        "constraints/librelane.yaml": librelane(design),
        f"linux/{top}.dtsi": dtsi(design),
        f"linux/{COMPATIBLE}.yaml": binding(design),
    }
    model = {f"model/{name}": data for name, data in bundle.files.items()}
    datasheet = {"datasheet.md": _stamped(design, _DATASHEET)}
    return {name: text.encode() for name, text in texts.items()} | datasheet | model | bench | driver


def _plusargs():
    files = {name: f"{name}.hex" for name in ("memory", "script", "expected")}
    return {**files, "latency": LATENCY, "pause_percent": 0, "pause_seed": 1}


def _vivado_files(verilog, constraints):
    """Returns the views and file sets of Vivado's component.xml."""
    views = {
        "xilinx_verilogsynthesis": ("verilogSource:vivado.xilinx.com:synthesis", ["synthesis"]),
        "xilinx_verilogbehavioralsimulation": ("verilogSource:vivado.xilinx.com:simulation", ["simulation"]),
    }
    source = (verilog, "verilogSource")
    return views, {"synthesis": [source, (constraints, "xdc USED_IN_out_of_context")], "simulation": [source]}


def _ip_xact_files(verilog, constraints, driver):
    """Returns the views and file sets of the IP-XACT file."""
    sources = [(path, "cSource") for path in driver if path.endswith((".c", ".h"))]
    return {"rtl": (":*Synthesis:", ["rtl", "constraints"])}, {
        "rtl": [(verilog, "verilogSource")],
        "constraints": [*constraints.items()],
        "driver": sources,
    }


# --- Copied files -------------------------------------------------------------------------------------------------


def _driver(design):
    """Returns the C driver and the C model of the core."""
    made_by = "\n   ".join(design.lines)
    files = {
        "driver/tpu_regs.h": c_header(made_by).encode(),
        "driver/tpu.svd": svd(" ".join(design.lines), design.config).encode(),
    }
    for path in sorted(_DRIVER.rglob("*")):
        name = f"driver/{path.relative_to(_DRIVER).as_posix()}"
        if path.suffix in _COMMENTS and name not in files:
            files[name] = _stamped(design, path)
    return files


def _stamped(design, path):
    """Returns the contents of a file of this project below a comment with the origin of the package."""
    begin, end = _COMMENTS[path.suffix]
    head = "".join(f"{begin}{line}{end}\n" for line in design.lines)
    text = path.read_text()
    if path.suffix == ".md":
        text = "\n" + _linked(path, text).replace("hw/driver", "driver")
    return (head + text).encode()


def _linked(path, text):
    """Returns a page without comments, and without links to files that are not in the package."""

    def link(found):
        name, target = found.groups()
        place = Path(os.path.normpath(path.parent / target.partition("#")[0]))
        packaged = target[0] == "#" or "://" in target or place == _DATASHEET or place.is_relative_to(_DRIVER)
        return found[0].replace("](../README.md", "](../datasheet.md") if packaged else name

    return re.sub(r"<!--.*?-->", "", re.sub(r"\[([^]]*)\]\(([^)]+)\)", link, text))
