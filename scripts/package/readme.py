"""The README and the Makefile of a package."""

from dataclasses import fields
from pathlib import Path

from amaranth_tpu.hw.bus.axi_reader import OUTSTANDING_READS
from amaranth_tpu.hw.bus.burst_splitter import MAX_BURST
from amaranth_tpu.hw.tpu import OUTSTANDING_WRITES

from ..show.markdown import markdown_table
from .design import AXI4, AXI4_LITE, AXI4_STREAM, INTERRUPT
from .device_tree import COMPATIBLE
from .fusesoc_core import core_name
from .ip_xact import VENDOR
from .simulation import LATENCY

__all__ = ["makefile", "readme"]

_RING = """\
**Ring**: the links are inside the module, from core i to core i + 1, and from core {last} to core 0. The cores may share a memory
and region MODEL; all other regions are their own. `tpu_flush_ring` in [`tpu.h`](driver/tpu.h) makes the ring before the first run
and after a fault. The network in `model/` runs on each core without the ring. The first simulation begins with a program of LOAD,
RING, STORE, HALT: see [`sim/script.hex`](sim/script.hex), and the [datasheet](datasheet.md#ring) for RING.

"""


def makefile(design, verilog):
    """Returns the Makefile, which needs only the programs that its targets name."""
    return _text("makefile.txt").format(top=design.top, verilog=verilog, latency=LATENCY, comment=design.comment("#"))


def readme(design, bundle):
    """Returns the README: the first simulation, the files, and the use of the core in hardware and software."""
    config, model, several = design.config, bundle.model, design.cores > 1
    samples = "1 sample" if model.batch == 1 else f"{model.batch} samples"
    parameters = [[f"`{one.name}`", f"{getattr(config, one.name):d}", one.metadata["help"]] for one in fields(config)]
    return _text("readme.txt").format(
        design=design,
        top=design.top,
        model=model,
        what=f"{design.cores} bfloat16 tensor processing units in a ring" if several else "A bfloat16 tensor processing unit",
        each=f"Each of the {design.cores} cores" if several else "The core",
        programs=("an all-reduce over the ring, then " if several else "") + f"the network `{model.name}` on {samples}",
        ring=_RING.format(last=design.cores - 1) if several else "",
        core_name=core_name(design),
        vendor=VENDOR,
        compatible=COMPATIBLE,
        files=_files(design),
        connections=_connections(design),
        compile=_compile_command(design),
        parameters=markdown_table(["parameter", "value", "meaning"], parameters),
    )


def _text(name):
    return (Path(__file__).parent / name).read_text()


def _files(design):
    top = design.top
    rows = {
        f"`rtl/{top}.v`": "the Verilog",
        f"`{top}.xml`": "IP-XACT, IEEE 1685-2014: interfaces, parameters, registers",
        "`component.xml`": "the same for Vivado, IEEE 1685-2009",
        f"`{top}.core`": "FuseSoC core file",
        "`constraints/`": f"XDC for synthesis on its own, SDC for `{top}` as top, and a configuration for LibreLane",
        "`driver/`": "C driver, C model of the core in `core/`, registers as header and SVD",
        "`model/`": "the compiled network: image, C header, layout, test vectors",
        "`linux/`": "device-tree nodes and their binding",
        "`sim/`": "the first simulation",
        "[`datasheet.md`](datasheet.md)": "ports, numerics, registers, instructions, faults",
    }
    return markdown_table(["file", "contents"], [*rows.items()])


def _connections(design):
    kinds = AXI4, AXI4_LITE, AXI4_STREAM, INTERRUPT
    names = {kind: ", ".join(f"`{one.name}`" for one in design.of_kind(kind)) for kind in kinds}
    config = design.config
    memory = (
        f"AXI4 manager: {config.bus_width} bits, addresses of {config.address_width} bits, IDs of {config.axi_id_width} "
        f"bit{'s' * (config.axi_id_width > 1)}, INCR bursts of 1 to {MAX_BURST} whole beats within 4 KiB, "
        f"{OUTSTANDING_READS} reads and {OUTSTANDING_WRITES} writes in flight; responses in the order of requests, with the "
        "request's ID"
    )
    rows = [
        ["`aclk`", "the only clock"],
        ["`aresetn`", "active low, synchronous to `aclk`, at least two cycles"],
        [names[AXI4_LITE], "AXI4-Lite subordinate without AxPROT: 512 bytes of registers, on a multiple of 512 bytes, uncached"],
        [names[AXI4], memory],
        [names[INTERRUPT], "level, active high, until a 1 is written to bit 1 of the register `interrupt`"],
    ]
    if names[AXI4_STREAM]:
        rows.append([names[AXI4_STREAM], "the ring: each `m_axis_ring` drives `s_axis_ring` of the next core"])
    note = (
        "The core's manager is not coherent with caches: write back samples before a run, and invalidate results after it. The "
        "regions of a network start on multiples of the bus beat and must not overlap."
    )
    return markdown_table(["interface", "connect"], rows) + f"\n\n{note}"


def _compile_command(design):
    from amaranth_tpu.hw.verilog.header import command

    return f"tpu compile {command(design.config).removeprefix('tpu generate ')} --model M.onnx -o model"
