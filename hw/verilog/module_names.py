"""Names of modules. The name of the top module is the prefix of all other names, so that one design can contain two different
cores."""

import re

from ..config import ConfigError

__all__ = ["TOP", "check_name", "with_prefix"]

#: Default name of a core, and prefix of all its modules.
TOP = "tpu"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{,39}")
#: Reserved words of SystemVerilog 2017, which include Verilog's.
_WORDS = frozenset(
    """
    accept_on alias always always_comb always_ff always_latch and assert assign assume automatic before begin bind
    bins binsof bit break buf bufif0 bufif1 byte case casex casez cell chandle checker class clocking cmos config
    const constraint context continue cover covergroup coverpoint cross deassign default defparam design disable dist
    do edge else end endcase endchecker endclass endclocking endconfig endfunction endgenerate endgroup endinterface
    endmodule endpackage endprimitive endprogram endproperty endspecify endsequence endtable endtask enum event
    eventually expect export extends extern final first_match for force foreach forever fork forkjoin function
    generate genvar global highz0 highz1 if iff ifnone ignore_bins illegal_bins implements implies import incdir
    include initial inout input inside instance int integer interconnect interface intersect join join_any join_none
    large let liblist library local localparam logic longint macromodule matches medium modport module nand negedge
    nettype new nexttime nmos nor noshowcancelled not notif0 notif1 null or output package packed parameter pmos
    posedge primitive priority program property protected pull0 pull1 pulldown pullup pulsestyle_ondetect
    pulsestyle_onevent pure rand randc randcase randsequence rcmos real realtime ref reg reject_on release repeat
    restrict return rnmos rpmos rtran rtranif0 rtranif1 s_always s_eventually s_nexttime s_until s_until_with scalared
    sequence shortint shortreal showcancelled signed small soft solve specify specparam static string strong strong0
    strong1 struct super supply0 supply1 sync_accept_on sync_reject_on table tagged task this throughout time
    timeprecision timeunit tran tranif0 tranif1 tri tri0 tri1 triand trior trireg type typedef union unique unique0
    unsigned until until_with untyped use uwire var vectored virtual void wait wait_order wand weak weak0 weak1 while
    wildcard wire with within wor xnor xor
    """.split()
)


def check_name(name):
    """Raises ConfigError if `name` cannot be the name of a module and the prefix of module names."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"name must be up to 40 letters, digits and _, a letter first, not {name!r}")
    if name in _WORDS:
        raise ConfigError(f"name {name}: is a reserved word of SystemVerilog; choose another name, such as {name}_core")


def with_prefix(text, name):
    """Returns the RTLIL text in which the prefix `tpu` of all module names is replaced by `name`."""
    if name == TOP:
        return text
    return re.sub(rf"^(\s*(?:module|cell) \\){TOP}(?=[_\s])", rf"\g<1>{name}", text, flags=re.M)
