"""The README and the Makefile of a package."""

from dataclasses import fields

from ..show.markdown import markdown_table
from .design import AXI4, AXI4_LITE, AXI4_STREAM
from .device_tree import COMPATIBLE
from .fusesoc_core import core_name
from .ip_xact import VENDOR
from .simulation import LATENCY

__all__ = ["makefile", "readme"]


def makefile(design, verilog):
    """Returns the Makefile, which needs only the programs that its targets name."""
    return f"""{design.comment("#")}
# make sim                  simulate with Icarus Verilog
# make sim SIM=verilator    ... with Verilator 5
# make pc                   the driver and the network on a PC, on the C model of the core
# make lint                 Icarus, Verilator and Yosys read the Verilog; none may warn

TOP := {design.top}
RTL := {verilog}
BENCH := sim/bench.sv sim/core_system.sv sim/host.sv sim/axi_memory.sv
SIM := icarus
LATENCY := {LATENCY}
PAUSES := 0
ARGUMENTS := +memory=sim/memory.hex +script=sim/script.hex +expected=sim/expected.hex +latency=$(LATENCY) \\
    +pause_percent=$(PAUSES)

.PHONY: sim pc lint clean
sim: build/$(SIM)/bench
\tbuild/$(SIM)/bench $(ARGUMENTS)

build/icarus/bench: $(RTL) $(BENCH)
\tmkdir -p build/icarus
\tiverilog -g2012 -Wall -Wno-timescale -s bench -o $@ $^

build/verilator/bench: $(RTL) $(BENCH)
\tverilator --binary --timing --timescale 1ns/1ps --top-module bench --Mdir build/verilator -o bench $^

DRIVER := driver/tpu.c driver/tpu_data.c driver/example_pc.c $(wildcard driver/core/*.c)
pc: build/pc
\tbuild/pc model
build/pc: $(DRIVER) $(wildcard driver/*.h driver/core/*.h model/*)
\tmkdir -p build
\t$(CC) -std=c99 -O2 -Idriver -Idriver/core -Imodel $(DRIVER) -o $@

lint:
\tiverilog -g2005 -Wall -Wno-timescale -s $(TOP) -o /dev/null $(RTL)
\tverilator --lint-only -Wall --top-module $(TOP) $(RTL)
\tyosys -q -p "read_verilog $(RTL); hierarchy -check -top $(TOP); proc; check -assert"

clean:
\trm -rf build
"""


def readme(design, bundle):
    """Returns the README: the first simulation, the files, and the use of the core in hardware and software."""
    top, config, model = design.top, design.config, bundle.model
    each = f"Each of the {design.cores} cores" if design.cores > 1 else "The core"
    parameters = [[f"`{one.name}`", f"{getattr(config, one.name):d}", one.metadata["help"]] for one in fields(config)]
    return f"""# {top}

{"A bfloat16 tensor processing unit" if design.cores == 1 else f"{design.cores} bfloat16 tensor processing units in a ring"}: \
module `{top}`, Verilog-2005 without parameters and vendor primitives.

* By {design.origin}.
* Made again by: `{design.command}`
* Licence: Apache-2.0

## First simulation

With Icarus Verilog (Debian: `apt-get install iverilog make`):

```
make sim
```

{each} gets a memory and a host. The host sets the registers as a driver does, and starts the network `{model.name}` on \
{model.batch} {"sample" if model.batch == 1 else "samples"}. All results must equal the golden model's bit for bit. \
The simulation ends with `passed`, or with an error and a non-zero status.

| command | result |
| --- | --- |
| `make sim SIM=verilator` | the same with Verilator 5 |
| `make sim LATENCY=100 PAUSES=30` | a slower memory, which pauses each channel in 30 % of cycles |
| `make pc` | the C driver with the C model of the core, on the same network; needs a C compiler |
| `make lint` | Icarus, Verilator and Yosys read the Verilog without a warning |
| `fusesoc --cores-root . run --target sim {core_name(design)}` | the simulation by FuseSoC |

Read [`sim/bench.sv`](sim/bench.sv) for the connections, and [`sim/script.hex`](sim/script.hex) for each access of the host.

## Files

{_files(design)}

## In a block design

**Vivado**: add this folder to the project's IP repositories, then `{top}` from the catalog:

```
set_property ip_repo_paths . [current_project]
update_ip_catalog
create_bd_cell -type ip -vlnv {VENDOR}:ip:{top} {top}_0
```

Other tools read [`{top}.xml`]({top}.xml), which has the bus definitions of AMBA.

{_connections(design)}

The timing constraints are for {design.mhz:g} MHz. In a system, the constraint of the clock's source applies, and none from here.

## Software

The [driver](driver/README.md) is freestanding C99: compile `driver/tpu.c` and `driver/tpu_data.c` with `-Idriver -Imodel`. \
[`driver/example.c`](driver/example.c) runs the network in `model/`. The same driver runs on a PC with the C model of the core. \
Debuggers read `driver/tpu.svd`.

Another network: `{_compile_command(design)}`.

**Linux**: include [`linux/{top}.dtsi`](linux/{top}.dtsi) at the end of the board's tree, and set its addresses and interrupts. \
The [binding](linux/{COMPATIBLE}.yaml) describes the properties. With `generic-uio`, a program maps the registers from `/dev/uioN`.

## Parameters

{markdown_table(["parameter", "value", "meaning"], parameters)}
"""


def _files(design):
    top = design.top
    rows = {
        f"`rtl/{top}.v`": "the Verilog",
        f"`{top}.xml`": "IP-XACT, IEEE 1685-2014: interfaces, parameters, registers",
        "`component.xml`": "the same for Vivado, IEEE 1685-2009",
        f"`{top}.core`": "FuseSoC core file",
        "`constraints/`": f"XDC for synthesis on its own, SDC for `{top}` as top",
        "`driver/`": "C driver, C model of the core in `core/`, registers as header and SVD",
        "`model/`": "the compiled network: image, C header, layout, test vectors",
        "`linux/`": "device-tree nodes and their binding",
        "`sim/`": "the first simulation",
    }
    return markdown_table(["file", "contents"], [*rows.items()])


def _connections(design):
    names = {kind: ", ".join(f"`{one.name}`" for one in design.of_kind(kind)) for kind in (AXI4, AXI4_LITE, AXI4_STREAM)}
    config = design.config
    memory = (
        f"AXI4 manager: {config.bus_width} bits, addresses of {config.address_width} bits, INCR bursts of 1 to 16 beats, 32 reads and "
        "16 writes in flight; responses in order, with the ID of their request"
    )
    core = "core0_" if design.cores > 1 else ""
    rows = [
        ["`aclk`", "the only clock"],
        ["`aresetn`", "active low, synchronous to `aclk`, at least two cycles"],
        [names[AXI4_LITE], "AXI4-Lite subordinate: 512 bytes of registers, on a multiple of 512 bytes, uncached"],
        [names[AXI4], memory],
        [
            f"`{core}irq`" + (" ..." if core else ""),
            "level, active high, until a 1 is written to bit 1 of the register `interrupt`",
        ],
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
