"""Probes: what signals inside the core show, cycle by cycle, written to a file by the simulator; the core stays as it is.

>>> probe = Probe("beats", {"client": Net("reader.r_data")}, when=(Net("reader.beat"),))
"""

from dataclasses import dataclass, field

from .verilog_names import Net

__all__ = ["Net", "Probe", "probe_module", "read_probes"]

_MODULE = """`define TPU_PROBES
module probes (input wire clk, input wire [63:0] cycle);
    string path;
    integer file;
    initial begin
        file = 0;
        if ($value$plusargs("probes=%s", path)) file = $fopen(path, "w");
    end
    final if (file != 0) $fclose(file);
{probes}endmodule
"""

_UNKNOWN = str.maketrans("xXzZ", "0000")


@dataclass(frozen=True)
class Probe:
    """What is written down in one line.

    Parameters
    ----------
    name : str
    fields : dict of Net
        Values, by name.
    when : tuple of Net
        A line is written in each cycle in which all of these bits are 1; without any, in each in which a field is not what it was
        in the cycle before.
    """

    name: str
    fields: dict = field(default_factory=dict)
    when: tuple = ()


def probe_module(probes, names):
    """SystemVerilog of the module `probes`, which `testbench.sv` has an instance of wherever this text comes before it. Plusarg
    `probes` is the file that it writes.

    Parameters
    ----------
    probes : sequence of Probe
    names : sim.rtl.verilog_names.VerilogNames
        Of the core.

    Raises
    ------
    ToolError
        If the core has no such signal.
    """
    texts = []
    for number, probe in enumerate(probes):
        values = [names.expression(net) for net in probe.fields.values()]
        parts = "".join(f", {text}" for text, _ in values)
        write = f'$fwrite(file, "{number} %0d{" %h" * len(values)}\\n", cycle{parts});'
        if probe.when:
            condition = " && ".join(f"{names.expression(net)[0]}" for net in probe.when)
            texts.append(f"    always @(posedge clk) if (file != 0 && {condition}) {write}\n")
        else:
            width, now = sum(width for _, width in values), "{" + ", ".join(text for text, _ in values) + "}"
            texts.append(
                f"    reg [{width - 1}:0] last_{number};\n"
                f"    always @(posedge clk) if (file != 0 && {now} !== last_{number}) begin\n"
                f"        last_{number} <= {now};\n        {write}\n    end\n"
            )
    return _MODULE.format(probes="".join(texts))


def read_probes(path, probes):
    """What the simulator wrote: for each probe's name a list of dicts, in the order of time, with `cycle` and the fields; digits
    with unknown bits are 0."""
    found = {probe.name: [] for probe in probes}
    rows = [(found[probe.name], ("cycle", *probe.fields)) for probe in probes]
    with open(path) as lines:
        for line in lines:
            number, cycle, *values = line.split()
            into, names = rows[int(number)]
            numbers = (int(value.translate(_UNKNOWN), 16) for value in values)
            into.append(dict(zip(names, (int(cycle), *numbers))))
    return found
