"""Readable waveforms: opcodes, states and stall reasons as text, and a default selection of signals for waveform viewers."""

import os
import re
import shutil
from pathlib import Path

from amaranth_tpu.hw.control.dispatcher import units_of
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.hw.spec.registers import stalls_of

from ..data.whole_files import write_file
from .core_probes import slot_net
from .enumerations import enumerations
from .probes import Net
from .verilog_names import VerilogNames

__all__ = ["WaveView", "gtkwave_save", "move_waves", "surfer_commands"]

_ANONYMOUS = re.compile(r"  (?:wire|reg) +(?:\[\d+:0\] +)?\\\$")

_OPCODES = {opcode.value: opcode.name for opcode in Opcode}
_HEX, _BINARY, _TEXT = "@22", "@28", "@820"
#: Signals of a cell: operand, next weight, weight in use, incoming and outgoing partial sum.
_CELL = ("x_i", "shadow", "active", "sum_i", "sum_o")
_MODULE = """`define TPU_TEXTS
module texts (input wire clk);
{body}endmodule
"""
#: Registers with the opcode of an instruction: in the dispatcher, in each slot for instructions in flight, and in each unit for
#: its last operation.
_FOLLOW = """    reg [7:0] offered = 0;
    reg [7:0] in_flight [0:{last}];
    integer i;
    initial for (i = 0; i <= {last}; i = i + 1) in_flight[i] = 0;
    always @(posedge clk) begin
        if (!{valid}) offered <= {word};
        if ({accept}) in_flight[{slot}] <= offered;
    end
"""
_UNIT = """    reg [7:0] {unit}_opcode = 0, {unit}_there = 0;
    always @(posedge clk) begin
        if ({valid} && {ready}) {unit}_opcode <= in_flight[{slot}];
        {unit}_there <= {active} ? {unit}_there + 8'({valid} && {ready}) - 8'({done}) : 8'd0;
    end
"""


def _choose(conditions, width):
    """Returns a Verilog expression for the text whose condition is the first true one. It is the empty text if no condition is
    true."""
    text = f"{width}'h0"
    for condition, name in reversed(conditions):
        text = f"{condition} ? {width}'h{name.encode().hex()} : {text}"
    return text


class WaveView:
    """Additional text signals for the waveforms of a core, and the selection of signals to show.

    Parameters
    ----------
    verilog : str
        Verilog of the core, from :mod:`hw.verilog.export`.
    config : Config

    Attributes
    ----------
    module : str
        SystemVerilog of the module `texts`. `testbench.sv` instantiates it if the module's text precedes it.
    """

    def __init__(self, verilog, config):
        self._verilog, self._config = verilog, config
        self._names = names = VerilogNames(verilog)
        names_of = enumerations(config)
        #: {name of a text signal: number of letters}
        self.letters = {}
        body = self._opcodes() + self._array()
        for path, module in sorted(names.walk()):
            for signal in sorted(names.signals.get(module, {})):
                values = names_of.get((module, signal))
                if values and len(values) > 1:
                    text, width = names.expression(Net(".".join([*path, signal])))
                    cases = [(f"({text} == {width}'d{value})", name) for value, name in values.items()]
                    body += self._text("_".join([*path, signal.replace(".", "_")]), cases)
        self.module = _MODULE.format(body=body)

    def _net(self, path, first=0, width=None):
        return self._names.expression(Net(path, first, width))[0]

    def _text(self, name, cases):
        self.letters[name] = letters = max(len(text) for _, text in cases)
        return f"    wire [{8 * letters - 1}:0] {name} = {_choose(cases, 8 * letters)};\n"

    def _opcodes(self):
        valid, word = self._net("decoder.o__valid"), self._net("decoder.word", 0, 8)
        place = {"accept": self._net("dispatcher.accept"), "slot": self._net("dispatcher.slot")}
        text = _FOLLOW.format(last=self._config.in_flight - 1, valid=valid, word=word, **place)

        def opcode(name, value, there="1'b1"):
            return self._text(name, [(f"({there} && {value} == 8'd{code})", of) for code, of in _OPCODES.items()])

        text += opcode("dispatch", "offered", valid)
        for unit in units_of(self._config):
            port = f"dispatcher.{unit}__op__"
            signals = {name: self._net(port + name) for name in ("valid", "ready")}
            signals |= {"done": self._net(f"dispatcher.{unit}__done"), "active": self._net("run.registers__active")}
            text += _UNIT.format(unit=unit, slot=self._names.expression(slot_net(unit, self._config))[0], **signals)
            text += opcode(unit, f"{unit}_opcode", f"{unit}_there != 0")
        return text

    def _array(self):
        busy, counting = self._net("run.busy"), self._net("run.counting")
        cases = [(f"({counting} && {busy})", "busy")]
        cases += [(f"({counting} && {self._net('run.stall', bit, 1)})", name) for bit, name in enumerate(stalls_of(self._config))]
        return self._text("array", cases)

    @property
    def hidden_lines(self):
        """Returns the lines of the core's Verilog that declare signals without a name in the source: ranges `(first, last)`,
        counted from 1."""
        found = []
        for number, line in enumerate(self._verilog.split("\n"), 1):
            if _ANONYMOUS.match(line):
                first = found.pop()[0] if found and found[-1][1] == number - 1 else number
                found.append((first, number))
        return found

    @property
    def shown(self):
        """Returns all signals of the core that have a name in the source, as hierarchical references."""
        names = self._names
        return [
            names.expression(Net(".".join([*path, signal])))[0]
            for path, module in sorted(names.walk())
            for signal in names.signals[module]
            if not signal.startswith("$")
        ]

    @property
    def groups(self):
        """Returns the signal groups at the top of the viewer: `{title: [(format, signal)]}`."""
        states = [name for name in self.letters if name.endswith("_state") and name != "run_state"]
        last = self._config.n - 1
        core = "testbench.core"
        channels = [f"{core}.m_axi_{name}{part}" for name in ("ar", "r", "aw", "w", "b") for part in ("valid", "ready")]

        def shown(path):
            _, width = self._names.expression(Net(path))
            return (_BINARY, f"{core}.{path}") if width == 1 else (_HEX, f"{core}.{path}[{width - 1}:0]")

        def text(name):
            return _TEXT, f"testbench.texts.{name}[{8 * self.letters[name] - 1}:0]"

        return {
            "run": [(_BINARY, "testbench.clk"), text("run_state"), shown("run.registers__cycles"), shown("run.busy")],
            "array": [text("array"), shown("matmul.issuer.active"), shown("accumulators.passes__write")],
            "first cell": [shown(f"array.row_0.cell_0.{name}") for name in _CELL],
            "last cell": [shown(f"array.row_{last}.cell_{last}.{name}") for name in _CELL],
            "instructions": [shown("decoder.fault__pc"), text("dispatch"), *map(text, units_of(self._config))],
            "states": list(map(text, states)),
            "bus": [*((_BINARY, name) for name in channels), shown("reader.bus__araddr"), shown("writer.bus__awaddr")],
        }


def gtkwave_save(groups, trace):
    """Returns the text of a GTKWave save file that opens `trace`, with the `groups` of a :class:`WaveView`."""
    lines = [f'[dumpfile] "{trace}"', "[timestart] 0", "[sst_expanded] 1"]
    for title, signals in groups.items():
        lines += ["@800200", f"-{title}"]
        for kind, name in signals:
            lines += [kind, name]
        lines += ["@1000200", f"-{title}"]
    return "\n".join(lines) + "\n"


_FORMATS = {_HEX: "Hexadecimal", _BINARY: "Bits", _TEXT: "ASCII"}


def surfer_commands(groups):
    """Returns the text of a Surfer command file that shows `groups`. Surfer takes the trace as a separate argument.

    Command files work with every version of Surfer; its state files work with one version only.
    """
    lines = []
    for title, signals in groups.items():
        lines.append(f"divider_add {title}")
        for kind, name in signals:
            lines += [f"variable_add {name.partition('[')[0]}", f"item_set_format {_FORMATS[kind]}"]
    return "\n".join([*lines, "zoom_fit"]) + "\n"


def move_waves(trace, path):
    """Moves the trace of a simulation to `path`, writes the viewers' files next to it, and deletes the folder of the
    simulation."""
    trace, path = Path(trace), Path(os.path.realpath(path))
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        shutil.move(trace, partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    save = trace.with_suffix(".gtkw").read_text().replace(f'"{trace}"', f'"{path}"', 1)
    write_file(path.with_suffix(".gtkw"), save.encode())
    write_file(path.with_suffix(".sucl"), trace.with_suffix(".sucl").read_bytes())
    shutil.rmtree(trace.parent, ignore_errors=True)
