"""Export of a core, or of cores in a ring, to one file of Verilog-2005. Repeated modules are written once."""

import re

from amaranth.back import rtlil
from amaranth.hdl import ClockDomain, Fragment, Value
from amaranth.hdl._ir import PortDirection
from amaranth.lib.wiring import In

from ..lib.hierarchy import Hierarchy
from ..pod import Pod
from ..tools.process import ToolError
from ..tools.yosys import run_yosys
from ..tpu import Tpu
from .header import with_header
from .initial_values import with_initial_blocks
from .module_names import TOP, check_name, with_prefix
from .port_lists import with_port_lists
from .quick_netlists import quick_netlists
from .signal_names import names_from_source
from .widths import WIDTHS_MAP

__all__ = ["to_verilog", "pod_to_verilog", "component_to_verilog", "component_to_rtlil"]

#: All logic becomes `assign`; registers and memories become `always @(posedge ...)`. `always @*` is avoided: Icarus does not
#: run it while its inputs are constant. Memories have no initial contents, so constant tables stay logic.
_SCRIPT = """
read_rtlil design.il
hierarchy -check -top {top}
proc -norom
delete t:$meminit*
opt_clean
pmuxtree
techmap -map widths.v
opt_merge
opt_clean -purge
memory_collect
write_verilog -norename design.v
"""


def _ports(component, separator):
    ports = {}
    for path, member, value in component.signature.flatten(component):
        direction = PortDirection.Input if member.flow is In else PortDirection.Output
        ports[separator.join(map(str, path))] = (Value.cast(value), direction)
    return ports


def _convert(component, name, hierarchy, ports, clocked):
    fragment = Fragment.get(component, hierarchy)
    if clocked:
        domain = ClockDomain("sync")
        fragment.add_domains(domain)
        ports |= {"clk": (domain.clk, PortDirection.Input), "rst": (domain.rst, PortDirection.Input)}
    text, _ = rtlil.convert_fragment(fragment, ports, name, emit_src=False)
    # Amaranth names submodules with dots, which Verilog would have to escape.
    return re.sub(r"^(\s*(?:module|cell) \\)(\S+)", lambda match: match[1] + match[2].replace(".", "_"), text, flags=re.M)


def component_to_rtlil(component, *, name, ports=None, clocked=True):
    """Converts a component to RTLIL. Returns the text: the module `name`, followed by its shared modules.

    `ports` maps names to `(value, direction)`. Default: the component's members, with paths joined by `__`. If `clocked` is True,
    the module also has the ports `clk` and `rst` of the domain `sync`.
    """
    hierarchy = Hierarchy()
    with names_from_source(), quick_netlists():
        texts = [_convert(component, name, hierarchy, ports or _ports(component, "__"), clocked)]
        written = set()
        while waiting := [module for module in hierarchy.modules if module not in written]:
            for module in waiting:
                shared, has_clock = hierarchy.modules[module]
                texts.append(_convert(shared, module, hierarchy, _ports(shared, "__"), has_clock))
                written.add(module)
    return "\n".join(texts)


def _rtlil_to_verilog(text, top):
    files = {"design.il": text, "widths.v": WIDTHS_MAP}
    written = run_yosys(_SCRIPT.format(top=top), files, "design.v", timeout=600)
    # The first line names the build of Yosys. One attribute is for tools that read the Verilog; all others are removed.
    attributes = re.compile(r"^ *\(\* (?!no_rw_check)[^\n]*\*\)\n|\(\* (?!no_rw_check)[^\n]*?\*\) ?", re.MULTILINE)
    return with_initial_blocks(with_port_lists(attributes.sub("", written.partition("\n")[2]).lstrip()))


def component_to_verilog(component, *, name, clocked=True):
    """Converts a component to Verilog. Returns the text: the module `name` and its submodules. `clocked` : see
    :func:`component_to_rtlil`.

    Raises
    ------
    ToolError
        If Yosys fails, or an operand is always 0.
    """
    text = component_to_rtlil(component, name=name, clocked=clocked)
    try:
        return _rtlil_to_verilog(text, name)
    except ToolError as error:
        if "port to have width 0" not in str(error):  # Yosys removes the bits of such an operand before `widths.v`
            raise
        raise ToolError(f"{name}: an operand is always 0, such as a signal without a driver; leave its operator out") from None


def _core_to_rtlil(component, name):
    ports = {
        name.replace("m_axi_read_", "m_axi_").replace("m_axi_write_", "m_axi_"): port
        for name, port in _ports(component, "_").items()
    }
    return component_to_rtlil(component, name=name, ports=ports, clocked=False)


def to_verilog(config, *, source="", name=TOP):
    """Returns the Verilog text of the core that `config` describes: module `tpu`, with the ports of `hw/README.md`.

    `source` is the origin of the generator for the header; see :func:`hw.verilog.header.source`. If it is empty, the text
    depends only on the core and the versions of the packages, so that it can be the key of a cache. `name` replaces `tpu` in the
    names of all modules.

    Raises
    ------
    ConfigError
        If `name` cannot be the name of a module.
    ToolError
        If Yosys fails.
    """
    check_name(name)
    with names_from_source():
        tpu = Tpu(config)
    text = with_prefix(_core_to_rtlil(tpu, TOP), name)
    return with_header(_rtlil_to_verilog(text, name), config, source=source, name=name)


def pod_to_verilog(config, *, cores, link_latency=0, source="", name=TOP):
    """Returns the Verilog text of a :class:`hw.pod.Pod`: module `tpu_pod`, and the core `tpu` once.

    `source` and `name` have the same meaning as for :func:`to_verilog`.

    Raises
    ------
    ConfigError
        If a pod cannot be made from the configuration, or `name` cannot be the name of a module.
    ToolError
        If Yosys fails.
    """
    check_name(name)
    with names_from_source():
        pod = Pod(config, cores=cores, link_latency=link_latency)
    text = with_prefix(_core_to_rtlil(pod, f"{TOP}_pod") + "\n" + _core_to_rtlil(pod.core, TOP), name)
    verilog = _rtlil_to_verilog(text, f"{name}_pod")
    return with_header(verilog, config, source=source, cores=cores, link_latency=link_latency, name=name)
