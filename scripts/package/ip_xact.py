"""IP-XACT of a packaged design in two dialects: IEEE 1685-2014, and IEEE 1685-2009 with the interfaces of Vivado.

Both have the same interfaces, parameters and registers. The dialects differ in the names of the bus definitions and in the
elements around views, port maps and resets.
"""

from dataclasses import dataclass, fields
from xml.etree import ElementTree

from amaranth_tpu.hw.bus.axi_reader import OUTSTANDING_READS
from amaranth_tpu.hw.bus.burst_splitter import MAX_BURST
from amaranth_tpu.hw.spec.isa import Fault
from amaranth_tpu.hw.spec.registers import ADDRESS_WIDTH, REGISTERS
from amaranth_tpu.hw.tpu import OUTSTANDING_WRITES

from ..publish.register_files import ACCESS, fields_of, is_built, reset_of
from .design import AXI4, AXI4_LITE, AXI4_STREAM, CLOCK, INTERRUPT, RESET

__all__ = ["IEEE_2014", "VIVADO", "VENDOR", "ip_xact"]

#: Vendor in the names of components.
VENDOR = "amaranth-tpu"
_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
#: The field of a register that is one number. The schema of 2014 demands a field in each register.
WHOLE = "value"


@dataclass(frozen=True)
class Dialect:
    prefix: str
    space: str
    newer: bool  # True: 1685-2014
    #: Kind -> (vendor, library, name, version) of the bus definition. The abstraction is `name`_rtl.
    buses: dict
    #: Kind -> signal of interfaces with one signal.
    signals: dict


IEEE_2014 = Dialect(
    "ipxact",
    "http://www.accellera.org/XMLSchema/IPXACT/1685-2014",
    True,
    {
        AXI4: ("amba.com", "AMBA4", "AXI4", "r0p0_0"),
        AXI4_LITE: ("amba.com", "AMBA4", "AXI4-Lite", "r0p0_0"),
        AXI4_STREAM: ("amba.com", "AMBA4", "AXI4Stream", "r0p0_1"),
        CLOCK: ("spiritconsortium.org", "busdef.clock", "clock", "1.0"),
        RESET: ("spiritconsortium.org", "busdef.reset", "reset", "1.0"),
        INTERRUPT: ("spiritconsortium.org", "busdef.interrupt", "interrupt", "1.0"),
    },
    {CLOCK: "CLK", RESET: "RESETn", INTERRUPT: "IRQ"},
)
VIVADO = Dialect(
    "spirit",
    "http://www.spiritconsortium.org/XMLSchema/SPIRIT/1685-2009",
    False,
    {
        AXI4: ("xilinx.com", "interface", "aximm", "1.0"),
        AXI4_LITE: ("xilinx.com", "interface", "aximm", "1.0"),
        AXI4_STREAM: ("xilinx.com", "interface", "axis", "1.0"),
        **{kind: ("xilinx.com", "signal", kind, "1.0") for kind in (CLOCK, RESET, INTERRUPT)},
    },
    {CLOCK: "CLK", RESET: "RST", INTERRUPT: "INTERRUPT"},
)
_XILINX = "http://www.xilinx.com"
#: Families of Vivado, as in `get_parts`.
_FAMILIES = """
    artix7 kintex7 virtex7 spartan7 zynq kintexu virtexu kintexuplus virtexuplus virtexuplusHBM artixuplus zynquplus versal
""".split()


class _Writer:
    """Adds elements with the prefix of a dialect."""

    def __init__(self, dialect):
        self.dialect = dialect

    def add(self, parent, tag, text=None, **attributes):
        dialect = self.dialect
        names = {name if dialect.newer else f"{dialect.prefix}:{name}": value for name, value in attributes.items()}
        element = ElementTree.SubElement(parent, f"{dialect.prefix}:{tag}", names)
        element.text = None if text is None else str(text)
        return element

    def add_all(self, parent, **texts):
        for tag, text in texts.items():
            self.add(parent, tag, text)

    def parameters(self, parent, values, path):
        """Adds parameters: a dict of name to `(value, description)`. Vivado finds their values by identifiers below `path`."""
        inside = self.add(parent, "parameters")
        for name, (value, text) in values.items():
            parameter = self.add(inside, "parameter")
            self.add(parameter, "name", name)
            if text:
                self.add(parameter, "description", text)
            self.add(parameter, "value", value, **({} if self.dialect.newer else {"id": f"{path}.{name}"}))


# --- Interfaces ---------------------------------------------------------------------------------------------------


def _interface_parameters(design, interface):
    """Returns the parameters with which Vivado connects an interface."""
    if interface.kind == CLOCK:
        buses = [one.name for one in design.interfaces if one.kind in (AXI4, AXI4_LITE, AXI4_STREAM)]
        return {"ASSOCIATED_BUSIF": (":".join(buses), ""), "ASSOCIATED_RESET": ("aresetn", "")}
    if interface.kind == AXI4:
        limits = {"MAX_BURST_LENGTH": MAX_BURST, "SUPPORTS_NARROW_BURST": 0}
        limits |= {"NUM_READ_OUTSTANDING": OUTSTANDING_READS, "NUM_WRITE_OUTSTANDING": OUTSTANDING_WRITES}
        return {name: (value, "") for name, value in {"PROTOCOL": "AXI4", **limits}.items()}
    known = {
        AXI4_LITE: {"PROTOCOL": ("AXI4LITE", "")},
        RESET: {"POLARITY": ("ACTIVE_LOW", "")},
        INTERRUPT: {"SENSITIVITY": ("LEVEL_HIGH", "")},
    }
    return known.get(interface.kind, {})


def _port_maps(writer, parent, interface, shared):
    """Adds the map from the signals of a bus to ports. `shared` has signals of the bus that other interfaces have, too."""
    maps = writer.add(parent, "portMaps")
    for signal, port in {**shared, **interface.signals}.items():
        entry = writer.add(maps, "portMap")
        writer.add(writer.add(entry, "logicalPort"), "name", signal or writer.dialect.signals[interface.kind])
        writer.add(writer.add(entry, "physicalPort"), "name", port)


def _interface(writer, parent, design, interface):
    dialect, is_axi = writer.dialect, interface.kind in (AXI4, AXI4_LITE, AXI4_STREAM)
    vendor, library, name, version = dialect.buses[interface.kind]
    element = writer.add(parent, "busInterface")
    writer.add(element, "name", interface.name)
    writer.add(element, "busType", vendor=vendor, library=library, name=name, version=version)
    abstraction = {"vendor": vendor, "library": library, "name": f"{name}_rtl", "version": version}
    if dialect.newer:
        inside = writer.add(writer.add(element, "abstractionTypes"), "abstractionType")
        writer.add(inside, "abstractionRef", **abstraction)
        _port_maps(writer, inside, interface, {"ACLK": "aclk", "ARESETn": "aresetn"} if is_axi else {})
    else:
        writer.add(element, "abstractionType", **abstraction)
    role = writer.add(element, "master" if interface.manager else "slave")
    if interface.kind == AXI4:
        writer.add(role, "addressSpaceRef", addressSpaceRef=interface.name)
    elif interface.kind == AXI4_LITE:
        writer.add(role, "memoryMapRef", memoryMapRef=interface.name)
    if not dialect.newer:
        _port_maps(writer, element, interface, {})
    if parameters := _interface_parameters(design, interface):
        writer.parameters(element, parameters, f"BUSIFPARAM_VALUE.{interface.name.upper()}")


def _address_spaces(writer, parent, design):
    spaces = writer.add(parent, "addressSpaces")
    for interface in design.of_kind(AXI4):
        space = writer.add(spaces, "addressSpace")
        writer.add_all(space, name=interface.name, range=1 << design.config.address_width, width=design.config.bus_width)


# --- Registers ----------------------------------------------------------------------------------------------------


def _reset(writer, parent, value, mask):
    where = writer.add(parent, "resets") if writer.dialect.newer else parent
    writer.add_all(writer.add(where, "reset"), value=f"0x{value:X}", mask=f"0x{mask:X}")


def _field(writer, parent, register, reset, name, first, width, text):
    newer = writer.dialect.newer
    field = writer.add(parent, "field")
    writer.add_all(field, name=name, description=text, bitOffset=first)
    if newer:
        mask = (1 << width) - 1
        _reset(writer, field, reset >> first & mask, mask)
    writer.add(field, "bitWidth", width)
    writer.add(field, "access", ACCESS[register.access])
    if register.name == "fault_cause":
        values = writer.add(field, "enumeratedValues")
        for code in Fault:
            writer.add_all(writer.add(values, "enumeratedValue"), name=code.name, value=code.value)
    if name in register.clears:
        writer.add(field, "modifiedWriteValue", "oneToClear")


def _register(writer, parent, register, reset):
    element = writer.add(parent, "register")
    writer.add_all(element, name=register.name, description=register.text, addressOffset=f"0x{register.offset:X}", size=32)
    constant = is_built(register) or register.name in ("id", "version")
    writer.add(element, "volatile", str(register.access == "ro" and not constant or bool(register.clears)).lower())
    writer.add(element, "access", ACCESS[register.access])
    if not writer.dialect.newer:
        _reset(writer, element, reset, 0xFFFF_FFFF)
    for name, first, width, text in fields_of(register) or [(WHOLE, 0, 32, register.text)]:
        _field(writer, element, register, reset, name, first, width, text)


def _memory_maps(writer, parent, design):
    maps = writer.add(parent, "memoryMaps")
    for interface in design.of_kind(AXI4_LITE):
        memory = writer.add(maps, "memoryMap")
        writer.add(memory, "name", interface.name)
        block = writer.add(memory, "addressBlock")
        writer.add_all(block, name="registers", baseAddress="0x0", range=1 << ADDRESS_WIDTH, width=32, usage="register")
        writer.add(block, "access", "read-write")
        for register in REGISTERS:
            _register(writer, block, register, reset_of(register, design.config))
        writer.add(memory, "addressUnitBits", 8)


# --- The component ------------------------------------------------------------------------------------------------


def _model(writer, parent, design, views):
    """Adds the views, and the ports."""
    newer, model = writer.dialect.newer, writer.add(parent, "model")
    inside, instances = writer.add(model, "views"), writer.add(model, "instantiations") if newer else None
    for name, (environment, files) in views.items():
        view = writer.add(inside, "view")
        writer.add_all(view, name=name, envIdentifier=environment)
        if newer:
            writer.add(view, "componentInstantiationRef", name)
            view = writer.add(instances, "componentInstantiation")
            writer.add(view, "name", name)
        writer.add(view, "language", "verilog")
        writer.add(view, "moduleName" if newer else "modelName", design.top)
        for one in files:
            writer.add(writer.add(view, "fileSetRef"), "localName", one)
    ports = writer.add(model, "ports")
    for name, direction, width in design.ports:
        port = writer.add(ports, "port")
        writer.add(port, "name", name)
        wire = writer.add(port, "wire")
        writer.add(wire, "direction", direction.removesuffix("put"))
        if width > 1:
            where = writer.add(wire, "vectors") if newer else wire
            writer.add_all(writer.add(where, "vector"), left=width - 1, right=0)


def _files(writer, parent, sets):
    """Adds the file sets: a dict of names to lists of `(path, type)`. A type beyond those of IP-XACT is the user's own."""
    inside = writer.add(parent, "fileSets")
    for name, files in sets.items():
        element = writer.add(inside, "fileSet")
        writer.add(element, "name", name)
        for path, kind in files:
            file = writer.add(element, "file")
            writer.add(file, "name", path)
            if kind in ("verilogSource", "cSource"):
                writer.add(file, "fileType", kind)
            elif writer.dialect.newer:
                writer.add(file, "fileType", "user", user=kind)
            else:
                for word in kind.split():
                    writer.add(file, "userFileType", word)


def _vivado(parent, design):
    """Adds what Vivado's catalog needs beyond the standard."""
    extensions = ElementTree.SubElement(parent, "spirit:vendorExtensions")
    core = ElementTree.SubElement(extensions, "xilinx:coreExtensions")
    families = ElementTree.SubElement(core, "xilinx:supportedFamilies")
    for name in _FAMILIES:
        ElementTree.SubElement(families, "xilinx:family", {"xilinx:lifeCycle": "Production"}).text = name
    taxonomies = ElementTree.SubElement(core, "xilinx:taxonomies")
    ElementTree.SubElement(taxonomies, "xilinx:taxonomy").text = "/UserIP"
    ElementTree.SubElement(core, "xilinx:displayName").text = design.top
    ElementTree.SubElement(core, "xilinx:coreRevision").text = "1"


def ip_xact(design, dialect, views, files):
    """Returns the text of the IP-XACT file.

    Parameters
    ----------
    design : Design
    dialect : Dialect
    views : dict
        Name of a view -> `(environment, names of its file sets)`.
    files : dict
        Name of a file set -> list of `(path, type)`.
    """
    writer = _Writer(dialect)
    names = {f"xmlns:{dialect.prefix}": dialect.space, "xmlns:xsi": _INSTANCE}
    if dialect.newer:
        names["xsi:schemaLocation"] = f"{dialect.space} {dialect.space}/index.xsd"
    else:
        names["xmlns:xilinx"] = _XILINX
    component = ElementTree.Element(f"{dialect.prefix}:component", names)
    major_minor = ".".join(design.version.split(".")[:2])
    writer.add_all(component, vendor=VENDOR, library="ip", name=design.top, version=major_minor)
    interfaces = writer.add(component, "busInterfaces")
    for interface in design.interfaces:
        _interface(writer, interfaces, design, interface)
    _address_spaces(writer, component, design)
    _memory_maps(writer, component, design)
    _model(writer, component, design, views)
    _files(writer, component, files)
    writer.add(component, "description", " ".join(["A bfloat16 tensor processing unit.", *design.lines]))
    parameters = {
        one.name: (int(getattr(design.config, one.name)), one.metadata["help"].strip()) for one in fields(design.config)
    }
    parameters["cores"] = design.cores, "Number of cores."
    if not dialect.newer:  # the name of an instance, which Vivado gives it
        parameters = {"Component_Name": (design.top, "")} | parameters
    writer.parameters(component, parameters, "PARAM_VALUE")
    if not dialect.newer:
        _vivado(component, design)
    ElementTree.indent(component)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(component, encoding="unicode") + "\n"
