"""The first simulation of a package: a test bench, the contents of the memory, the script of the host, expected results."""

import numpy as np

from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import Opcode, Region, RingMode
from amaranth_tpu.hw.spec.registers import REGISTERS
from amaranth_tpu.sim.bundle.bundle import output_image
from amaranth_tpu.sim.golden.ring import exchange, words_sent
from amaranth_tpu.sim.host.host_image import HostImage
from amaranth_tpu.sim.host.host_script import HostScript
from amaranth_tpu.sim.rtl.memory_images import image_text

from ..publish.register_files import reset_of
from .design import AXI4, AXI4_LITE, AXI4_STREAM, INTERRUPT

__all__ = ["simulation_files"]

#: Cycles of the memory until the first beat of a response, as in predictions.
LATENCY = 32
#: Bytes between regions of the all-reduce: more than any of them has.
_PAGE = 4096


def simulation_files(design, program, bundle):
    """Returns the generated files of the simulation: a dict of names to bytes.

    Parameters
    ----------
    design : Design
    program : Program
        The compiled network. In a ring, each core runs it on its own, after an all-reduce.
    bundle : Bundle
        The files of the network, with its test vectors.
    """
    image = HostImage(program, [(bundle.files["model.bin"], [bundle.files["input.bin"]])])
    [batch] = image.batches
    expected = _expected(bundle, batch["regions"]["OUTPUT"][0])
    contents, size, ring = image.bytes, image.size, _AllReduce(design, image.size) if design.cores > 1 else None
    if ring:
        contents += bytes(size - len(contents)) + ring.contents
        expected, size = expected + ring.expected, ring.end
    scripts = [_script(design, batch["regions"], ring, rank) for rank in range(design.cores)]
    texts = {
        "memory.hex": image_text(contents, design.config.bus_bytes),
        "script.hex": "\n".join([*sum(scripts, []), ""]),
        "expected.hex": "\n".join([*expected, ""]),
    }
    files = {name: design.comment("//") + text for name, text in texts.items()}
    sizes = {"MEMORY_BYTES": size, "STEPS": sum(map(len, scripts)), "RESULTS": len(expected)}
    sizes["LIMIT"] = 10 * program.predicted_cycles + 100_000
    files["bench.sv"] = _bench(design, sizes, len(scripts[0]))
    return {name: text.encode() for name, text in files.items()}


def _script(design, regions, ring, rank):
    """Returns the lines of the script of one core's host. Hosts of a ring take the same steps at the same time."""
    script = HostScript()
    for register in REGISTERS:
        if register.access != "w1":
            script.check(register.name, reset_of(register, design.config))
    script.identify(design.config)
    if ring:
        script.join(rank, design.cores)
        script.start(ring.regions(rank))
        script.finish()
        for name in ("ring_sent", "ring_received"):
            script.check(name, ring.words)
    script.start(regions)
    script.finish()
    script.end()
    return script.lines


class _AllReduce:
    """A program that sums binary32 numbers over the cores of a ring, in a memory from address `base` on. Each core has its own
    numbers, in segments of one vector."""

    def __init__(self, design, base):
        cores, n, step = design.cores, design.config.n, design.config.instruction_bytes
        numbers = np.random.default_rng(cores).normal(size=(cores, cores, n // 2)).astype("<f4")
        self.base, self.bytes, self.words = base, 2 * n * cores, words_sent(RingMode.ALL_REDUCE, cores, 1, n)
        program = [
            encode(Opcode.LOAD, region=Region.INPUT, rows=cores),
            encode(Opcode.RING, mode=RingMode.ALL_REDUCE, segment=1, stride=1, rounds=1),
            encode(Opcode.STORE, region=Region.OUTPUT, rows=cores),
            encode(Opcode.HALT),
        ]
        pages = [b"".join(word.to_bytes(step, "little") for word in program), *(one.tobytes() for one in numbers)]
        self.program_bytes, self.output = step * len(program), base + len(pages) * _PAGE
        self.contents, self.end = b"".join(page.ljust(_PAGE, b"\0") for page in pages), self.output + _PAGE
        sums = exchange(RingMode.ALL_REDUCE, list(numbers.view("<u2")))[0].view("<u4").flat
        self.expected = [f"{self.output + 4 * index:08x}_ffffffff_{word:08x}" for index, word in enumerate(sums)]

    def regions(self, rank):
        own = {"INPUT": [self.base + (1 + rank) * _PAGE, self.bytes], "OUTPUT": [self.output, self.bytes]}
        return {"MODEL": [self.base, self.program_bytes], **own, "SCRATCH": [self.base, 0]}


def _expected(bundle, base):
    """Returns lines with an address, a mask, and a word, for each 32-bit word of region OUTPUT that has results."""
    ones = np.full(bundle.results.shape, 0xFFFF_FFFF, np.uint32).view(np.float32)
    contents = [
        np.frombuffer(data + bytes(-len(data) % 4), "<u4")
        for data in (output_image(bundle.model, ones), bundle.files["output.bin"])
    ]
    return [f"{base + 4 * index:08x}_{mask:08x}_{word:08x}" for index, (mask, word) in enumerate(zip(*contents)) if mask]


# --- The bench ----------------------------------------------------------------------------------------------------

_HEAD = """
// The first simulation: {text}.

module bench;
    reg aclk, aresetn;
    initial begin
        aclk = 0;
        forever #5 aclk = !aclk;
    end
    initial begin
        aresetn = 0;
        #95 aresetn = 1;
    end

    /* verilator lint_off UNUSEDSIGNAL */
"""

_TAIL = """
    always @(posedge aclk) begin
        if ({failed}) $fatal(1, "failed");
        if ({passed}) begin
            $display("passed");
            $finish;
        end
    end
endmodule
"""


def _bench(design, sizes, steps):
    """Returns the text of the bench: the design, and a `core_system` for each core. The script of a core has `steps` steps."""
    cores = [one.core for one in design.of_kind(INTERRUPT)]
    text = f"{design.cores} cores, each with its own memory and host" if design.cores > 1 else "a core, a memory and a host"
    parts = [design.comment("//"), _HEAD.format(text=text)]
    inside = [f"    wire {f'[{width - 1}:0] ' * (width > 1)}{name};\n" for name, _, width in design.ports[2:]]
    inside += [f"    wire {core}passed, {core}failed;\n" for core in cores]
    inside += [f"\n    {design.top} dut (.*);\n", *_link(design)]
    config = design.config
    parameters = {"BUS_WIDTH": config.bus_width, "ADDRESS_WIDTH": config.address_width, "ID_WIDTH": config.axi_id_width, **sizes}
    inside += [_system(design, core, {**parameters, "FIRST": steps * rank}) for rank, core in enumerate(cores)]
    tail = _TAIL.format(
        failed=" || ".join(f"{core}failed" for core in cores), passed=" && ".join(f"{core}passed" for core in cores)
    )
    return "".join([*parts, *inside, tail])


def _link(design):
    """Returns lines that connect the links of a single core to each other."""
    links = design.of_kind(AXI4_STREAM)
    if not links:
        return
    received, sent = sorted(links, key=lambda one: one.manager)
    yield "\n"
    for signal, port in sent.signals.items():
        ends = (port, received.signals[signal]) if signal == "TREADY" else (received.signals[signal], port)
        yield f"    assign {ends[0]} = {ends[1]};\n"


#: Signals of the manager with constant values that the memory does not read.
_UNUSED = ("LOCK", "CACHE", "PROT", "QOS")


def _system(design, core, parameters):
    sizes = ", ".join(f".{name}({value})" for name, value in parameters.items())
    names = [f".aclk(aclk), .aresetn(aresetn), .irq({core}irq), .passed({core}passed), .failed({core}failed)"]
    for bus in design.interfaces:
        if bus.core == core and bus.kind in (AXI4, AXI4_LITE):
            ports = [port for signal, port in bus.signals.items() if not signal.endswith(_UNUSED)]
            lines = [ports[first : first + 4] for first in range(0, len(ports), 4)]
            names += [", ".join(f".{port.removeprefix(core)}({port})" for port in line) for line in lines]
    joined = ",\n        ".join(names)
    return f"\n    core_system #(\n        {sizes}\n    ) {core}system (\n        {joined}\n    );\n"
