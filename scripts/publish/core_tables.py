"""Tables of the datasheet derived from the Verilog of a core (its ports and its memories), and the table of the cycles of
instructions."""

import functools
import re
from collections import Counter

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.control.decoder import decode_cycles
from amaranth_tpu.hw.cycles import cycle_texts
from amaranth_tpu.hw.verilog.port_lists import ports_of
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of

from ..show.markdown import markdown_table

__all__ = ["ports", "memories", "instruction_cycles"]

_MODULE = re.compile(r"^module (\S+) \(\n(.*?)\n\);\n(.*?)^endmodule", re.MULTILINE | re.DOTALL)


@functools.cache
def _modules():
    """Returns {module name: (text of its ports, text of its body)} of the default core's Verilog."""
    return {name: (head, body) for name, head, body in _MODULE.findall(verilog_of(Config()))}


# --- Ports --------------------------------------------------------------------------------------------------------

_PORT_TEXTS = {
    "aclk": "The only clock, rising edge.",
    "aresetn": "Reset, active low, synchronous.",
    "s_axil_awaddr": "Bits 1:0 are ignored.",
    "s_axil_araddr": "Bits 1:0 are ignored.",
    "s_axil_wstrb": "Bytes whose strobe is 0 keep their value; `control` and `interrupt` act if bit 0 is 1.",
    "m_axi_awlen": "Beats - 1: 0 to 15.",
    "m_axi_arlen": "Beats - 1: 0 to 15.",
    "m_axi_awid": "Bit 0 changes with a reset, the others are 0.",
    "m_axi_arid": "Bit 0 changes with a reset, the others are 0.",
    "m_axi_bid": "The `awid` of the burst.",
    "m_axi_rid": "The `arid` of the burst.",
    "m_axi_wstrb": "All 1; all 0 in beats of a cancelled burst.",
    "m_axi_bresp": "Not 0: fault BUS_WRITE.",
    "m_axi_rresp": "Not 0: fault BUS_READ.",
    "m_axi_rlast": "Must be 1 in the last beat of a burst, and 0 in all others.",
    "irq": "Level: 1 while an enabled interrupt is pending.",
}

_CONSTANT_TEXTS = {
    "size": "log2(`bus_width` / 8): full width.",
    "burst": "INCR.",
    "cache": "`axi_cache`.",
    "prot": "`axi_prot`.",
    "lock": "Normal.",
    "resp": "OKAY.",
}


def _port_width(name, bits):
    config = Config()
    for pattern, value, text in (
        ("m_axi_a[rw]addr", config.address_width, "`address_width`"),
        ("m_axi_[rw]data", config.bus_width, "`bus_width`"),
        ("m_axi_wstrb", config.bus_bytes, "`bus_width` / 8"),
        ("m_axi_(aw|b|ar|r)id", config.axi_id_width, "`axi_id_width`"),
    ):
        if re.fullmatch(pattern, name):
            assert bits == value, f"{name} has {bits} bits"
            return text
    return bits


def ports():
    """Returns the Markdown table of all ports of the core. It has the value of ports that are constant."""
    _, body = _modules()["tpu"]
    rows = []
    for name, direction, width in ports_of(verilog_of(Config()), "tpu"):
        text = _PORT_TEXTS.get(name, "")
        if constant := re.search(rf"^  assign {name} = \d+'h(\w+);", body, re.MULTILINE):
            what = re.sub(r"(m_axi|s_axil)_(a?[rwb])", "", name)
            value = "" if what == "size" else f"{int(constant[1], 16)}"
            text = (
                f"Always {value}: {_CONSTANT_TEXTS[what]}"
                if what in _CONSTANT_TEXTS and value
                else f"Always {value or _CONSTANT_TEXTS[what]}" + ("." if value else "")
            )
        rows.append([f"`{name}`", direction[:-3], _port_width(name, width), text])
    return markdown_table(["port", "direction", "bits", "value, meaning"], rows)


# --- Memories -----------------------------------------------------------------------------------------------------

#: Contents of each memory, in the order of the table.
_MEMORY_TEXTS = {
    ("tpu_unified_buffer_lane", "memory"): "unified buffer, one lane: `unified_buffer_depth` words",
    ("tpu_weight_fifo_lane", "memory"): "weight FIFO, one lane: n `weight_fifo_depth` words",
    ("tpu_accumulator_column", "sums"): "accumulators, one column: `accumulator_depth` words",
    ("tpu_accumulator_column", "biases"): "biases, one column: `bias_depth` words",
    ("tpu_function_pair", "values"): "function table, two lanes: values",
    ("tpu_function_pair", "slopes"): "function table, two lanes: slopes",
    ("tpu_matmul_flight", "ring"): "accumulator rows of the passes in the array",
    ("tpu_matmul_slots", "storage"): "slots of the MATMULs in the array",
    ("tpu_store_vectors", "storage"): "vectors waiting for the bus",
    ("tpu_store_owners", "storage"): "write bursts in flight",
    ("tpu_load_expected", "storage"): "loads in flight",
    ("tpu_weights_expected", "storage"): "loads of weights in flight",
    ("tpu_reader_owners", "storage"): "read bursts in flight",
    ("tpu_fetch_beats", "storage"): "beats of fetched instructions",
    ("tpu_dispatcher", "footprints"): "rows accessed by the instructions in flight: `in_flight` words",
    ("tpu_dispatcher", "load_operations"): "operations of LOAD and LOAD_BIAS in flight: `in_flight` words",
    ("tpu_dispatcher", "weights_operations"): "operations of LOAD_WEIGHTS in flight: `in_flight` words",
    ("tpu_dispatcher", "store_operations"): "operations of STORE in flight: `in_flight` words",
    ("tpu_dispatcher", "matmul_operations"): "operations of MATMUL in flight: `in_flight` words",
    ("tpu_dispatcher", "activate_operations"): "operations of the activation unit in flight: `in_flight` words",
    ("tpu_transposer_column", "memory"): "transposer of weights, one column: n words",
    ("tpu_run_counters", "storage"): "counters of busy and stalled cycles",
    ("tpu_fault_latch", "offsets"): "offsets of the instructions in flight: `in_flight` words",
    ("tpu_transaction_id", "kept"): "the ID of the last reset",
}


def _instances():
    """Returns {module name: number of instances} of the default core."""
    children = {name: re.findall(r"^  (tpu_\w+) \S+ +\($", body, re.MULTILINE) for name, (_, body) in _modules().items()}

    def count(name, times, counts):
        counts[name] += times
        for child, each in Counter(children[name]).items():
            count(child, times * each, counts)
        return counts

    return count("tpu", 1, Counter())


def _memory_ports(body, name):
    """Returns `(ports, clocked, collision)` of the memory `name` in the text of a module.

    `ports` describes the read and write ports. `clocked` is True if reads are synchronous. `collision` is True if a read must
    return a defined value when the same row is written at the same time.
    """
    place = rf"(?<![\w$]){re.escape(name)} ?\[([^]]*)\]"
    writes = re.findall(rf"^ +{place} <= ", body, re.MULTILINE)
    clocked = re.findall(rf"^ +\S+ ?<= {place};", body, re.MULTILINE)
    others = re.findall(rf"^  assign .* = {place};", body, re.MULTILINE)
    assert writes and bool(clocked) != bool(others), f"{name}: not understood"
    reads = [*clocked, *others]
    both = [address for address in writes if address in reads]
    kinds = ["RW"] * len(both) + ["W"] * (len(writes) - len(both)) + ["R"] * (len(reads) - len(both))
    free = re.search(rf"no_rw_check[^\n]*\n  reg (\[\d+:0\] )?{re.escape(name)} ", body)
    return ", ".join(kinds), bool(clocked), not free


def memories():
    """Returns the Markdown table of all memories of the default core."""
    counts, found = _instances(), {}
    for module, (_, body) in _modules().items():
        for width, name, last in re.findall(r"^  reg (?:\[(\d+):0\] )?(\w+) \[(\d+):0\];$", body, re.MULTILINE):
            kinds, clocked, matters = _memory_ports(body, name)
            found[module, name] = [
                f"`{module}.{name}`",
                counts[module],
                f"{int(last) + 1:,} x {int(width or 0) + 1}",
                kinds,
                "synchronous" if clocked else "asynchronous",
                "old word" if matters else "undefined",
                _MEMORY_TEXTS[module, name],
            ]
    rows = [found[key] for key in _MEMORY_TEXTS if key in found]
    return markdown_table(["memory", "instances", "words x bits", "ports", "read", "read during write", "contents"], rows)


# --- Cycles -------------------------------------------------------------------------------------------------------


def instruction_cycles():
    """Returns the Markdown table of the cycles of each instruction."""
    options = Config(training=True, ring=True, softmax_lanes=2, normalize=True, update_lanes=4)
    texts, plain, training = cycle_texts(Config()), decode_cycles(Config()), decode_cycles(options)
    return markdown_table(
        ["instruction", "decoded in", "occupies its unit for", "results available"],
        [
            [
                opcode.name,
                f"{plain[opcode]}; {cycles} with `training`" if plain.get(opcode, cycles) != cycles else cycles,
                *texts[opcode],
            ]
            for opcode, cycles in training.items()
        ],
    )
