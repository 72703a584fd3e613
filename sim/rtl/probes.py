"""Probes: the simulator writes internal signals of the core to a file in each cycle, without modification of the core.

>>> probe = Probe("beats", {"client": Net("reader.r_data")}, when=(Net("reader.control__beat"),))
"""

from dataclasses import dataclass, field

from amaranth_tpu.hw.tools.process import ToolError

from .verilog_names import Net

__all__ = ["Net", "Probe", "probe_module", "read_probes"]

_MODULE = """`define TPU_PROBES
module probes (input wire clk, input wire [63:0] cycle);
    string path;
    integer file;
{counts}    initial begin
        file = 0;
{zeros}        if ($value$plusargs("probes=%s", path)) file = $fopen(path, "w");
    end
{probes}    final if (file != 0) begin
        $fwrite(file, "end %0d\\n", {count});
        $fclose(file);
    end
endmodule
"""

_UNKNOWN = str.maketrans("xXzZ", "0000")


@dataclass(frozen=True)
class Probe:
    """A record that the simulator writes to the file: its fields, and the condition for writing it."""

    name: str
    fields: dict = field(default_factory=dict)  # Dict of Net. The signals in the record, by field name.
    #: Tuple of Net. A record is written in each cycle in which all of these bits are 1. If empty: in each cycle in which a field
    #: changes.
    when: tuple = ()


def probe_module(probes, names):
    """Returns the SystemVerilog module `probes`. It writes the records to the file named by the plusarg `probes`. Raises
    ToolError if the core lacks a signal that a probe reads.

    `testbench.sv` instantiates the module if the module's text precedes it.

    Parameters
    ----------
    probes : sequence of Probe
    names : sim.rtl.verilog_names.VerilogNames
        Signal names of the core.
    """
    texts = []
    for number, probe in enumerate(probes):
        values = [names.expression(net) for net in probe.fields.values()]
        parts = "".join(f", {text}" for text, _ in values)
        write = f'$fwrite(file, "{number} %0d{" %h" * len(values)}\\n", cycle{parts});'
        count = f"lines_{number} = lines_{number} + 1;"  # count before the write: the simulator may end after it
        if probe.when:
            condition = " && ".join(f"{names.expression(net)[0]}" for net in probe.when)
            texts.append(
                f"    always @(posedge clk) if (file != 0 && {condition}) begin\n        {count}\n        {write}\n    end\n"
            )
        else:
            width, now = sum(width for _, width in values), "{" + ", ".join(text for text, _ in values) + "}"
            texts.append(
                f"    reg [{width - 1}:0] last_{number};\n"
                f"    always @(posedge clk) if (file != 0 && {now} !== last_{number}) begin\n"
                f"        last_{number} <= {now};\n        {count}\n        {write}\n    end\n"
            )
    names = [f"lines_{number}" for number in range(len(probes))]
    return _MODULE.format(
        counts="".join(f"    reg [63:0] {name};\n" for name in names),
        zeros="".join(f"        {name} = 0;\n" for name in names),
        probes="".join(texts),
        count=" + ".join(names),
    )


def read_probes(path, probes):
    """Reads the file of records that the simulator wrote. Raises ToolError if a line of the file is missing or truncated.

    The last line of the file has the number of lines before it, because simulators do not report a full disk.

    Returns
    -------
    dict of str to list of dict
        For each probe's name, its records in the order of time: `cycle` and the fields. Digits with unknown bits are 0.
    """
    found = {probe.name: [] for probe in probes}
    rows = [(found[probe.name], ("cycle", *probe.fields)) for probe in probes]
    count, whole = 0, False
    with open(path) as lines:
        try:
            for line in lines:
                number, cycle, *values = line.split()
                if number == "end":
                    whole = int(cycle) == count
                    break
                into, names = rows[int(number)]
                numbers = (int(value.translate(_UNKNOWN), 16) for value in values)
                into.append(dict(zip(names, (int(cycle), *numbers), strict=True)))
                count += 1
        except (ValueError, IndexError):
            whole = False
    if not whole:
        raise ToolError(f"{path}: the simulator's record is cut behind line {count}; free space on that disk, or set TPU_BUILD")
    return found
