"""Files of the register map: a C header for the driver, and CMSIS-SVD for debuggers and code generators."""

import textwrap
from xml.etree import ElementTree

from amaranth_tpu.hw.spec.isa import Fault, Region
from amaranth_tpu.hw.spec.registers import (
    ADDRESS_WIDTH,
    IDENTIFIER,
    REGISTER,
    REGISTERS,
    STALLS,
    VERSION,
    described,
    registers_of,
)

__all__ = ["ACCESS", "MADE_BY", "c_header", "fields_of", "is_built", "reset_of", "svd"]

MADE_BY = "Generated from hw/spec/registers.py by `python -m amaranth_tpu.scripts.datasheet`. Do not edit."
#: Access of a register in the words of CMSIS-SVD and IP-XACT.
ACCESS = {"ro": "read-only", "rw": "read-write", "w1": "write-only"}
#: Reset values of registers that have none in the register map.
_RESET = {"id": IDENTIFIER, "version": VERSION, "status": REGISTER["status"].pack(running=0, done=0, fault=0, quiet=1)}
#: Registers whose value depends on the configuration of the core.
_BUILT = ("config", "unified_buffer_depth", "accumulator_depth", "bias_depth", "weight_fifo_depth", "features", "ring_depth")


def _mask(first, width):
    return (1 << width) - 1 << first


# --- C ------------------------------------------------------------------------------------------------------------


def _comment(text):
    return "\n".join(textwrap.wrap(f"/* {text}", 110, subsequent_indent="   ")) + " */"


def _defines(pairs):
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"#define {name:{width}} {value}" for name, value in pairs)


def _register(register):
    """Returns the lines of the C header for a register: its offset, and the shift and mask of each field."""
    name, text = register.name.upper(), f"{register.name} ({register.access}): {register.text}"
    pairs = [(f"TPU_REG_{name}", f"0x{register.offset:03X}u")]
    for field, (first, width, meaning) in (register.fields or {}).items():
        text += f" {field}: {meaning}."
        pairs.append((f"TPU_{name}_{field.upper()}_MASK", f"0x{_mask(first, width):08X}u"))
        pairs.append((f"TPU_{name}_{field.upper()}_SHIFT", f"{first}u"))
    return f"{_comment(text)}\n{_defines(pairs)}"


def _codes(kind, codes, text):
    pairs = [(f"TPU_{kind}_{code.name}", f"{code.value}u") for code in codes]
    return f"{_comment(text)}\n{_defines(pairs)}"


def _group_step(name):
    first, second = (next(r.offset for r in REGISTERS if r.group[:2] == (name, index)) for index in (0, 1))
    return second - first


def c_header(made_by=MADE_BY):
    """Returns the text of `tpu_regs.h`. Offsets are in bytes, and masks are shifted to the position of the field. `made_by` tells
    its origin."""
    parts = [
        "/* Registers of the core: offsets in bytes, shifted masks.",
        f"   {made_by} */\n",
        "#ifndef TPU_REGS_H\n#define TPU_REGS_H\n",
        _comment("Values of the registers id and version of a matching core."),
        _defines([("TPU_IDENTIFIER", f"0x{IDENTIFIER:08X}u"), ("TPU_INTERFACE_VERSION", f"0x{VERSION:08X}u")]) + "\n",
        _comment("Size of the register space in bytes."),
        f"#define TPU_REGISTER_BYTES 0x{1 << ADDRESS_WIDTH:X}u\n",
        _codes("FAULT", Fault, "Values of fault_cause.") + "\n",
        _codes("REGION", Region, "Regions of host memory, and the stride of their registers in bytes."),
        _defines([("TPU_REGIONS", f"{len(Region)}u"), ("TPU_REGION_STEP", f"0x{_group_step('regions'):X}u")]) + "\n",
        _comment("Indices of the counters stall_*, and their stride in bytes."),
        _defines([(f"TPU_STALL_{name.upper()}", f"{index}u") for index, name in enumerate(STALLS)]),
        _defines([("TPU_STALLS", f"{len(STALLS)}u"), ("TPU_STALL_STEP", f"0x{_group_step('stalls'):X}u")]) + "\n",
        *(_register(register) + "\n" for register in REGISTERS),
        "#endif\n",
    ]
    return "\n".join(parts)


# --- SVD ----------------------------------------------------------------------------------------------------------


def _add(parent, tag, text=None, **attributes):
    element = ElementTree.SubElement(parent, tag, attributes)
    element.text = text
    return element


def _add_all(parent, **texts):
    for tag, text in texts.items():
        _add(parent, tag, text)


def _enumerate(field, codes):
    values = _add(field, "enumeratedValues")
    for code in codes:
        _add_all(_add(values, "enumeratedValue"), name=code.name, value=str(code.value))


def fields_of(register):
    """Returns the fields of a register as a list of `(name, first bit, width, text)`. The fault cause counts as a field, so that
    its values have names."""
    if register.name == "fault_cause":
        return [("cause", 0, Fault.as_shape().width, "cause of the fault")]
    return [(name, *field) for name, field in (register.fields or {}).items()]


def reset_of(register, config=None):
    """Returns the value of a register after a reset. It is 0 if the core of `config` lacks the register. Default: a core with
    all registers; for a register of :func:`is_built`, the value has no meaning then."""
    if config and register not in registers_of(config):
        return 0
    own = described(config) if config else {}
    return own.get(register.name, _RESET.get(register.name, register.reset))


def is_built(register):
    """Returns True if the value of the register depends on the configuration of the core, and is constant."""
    return register.name in _BUILT


def _svd_register(parent, register, config):
    element = _add(parent, "register")
    _add_all(
        element,
        name=register.name,
        description=register.text,
        addressOffset=f"0x{register.offset:03X}",
        access=ACCESS[register.access],
        resetValue=f"0x{reset_of(register, config):08X}",
    )
    if is_built(register) and not config:
        _add(element, "resetMask", "0x00000000")
    fields = fields_of(register)
    inside = _add(element, "fields") if fields else None
    for name, first, width, text in fields:
        field = _add(inside, "field")
        _add_all(field, name=name, description=text, bitOffset=str(first), bitWidth=str(width))
        if name in register.clears:
            _add(field, "modifiedWriteValues", "oneToClear")
        if register.name == "fault_cause":
            _enumerate(field, Fault)


def svd(made_by=MADE_BY, config=None):
    """Returns the text of `tpu.svd`. The base address is 0, and there is no interrupt number, as the system around the core
    defines both. `made_by` tells its origin. `config` is the core whose reset values to use; see :func:`reset_of`."""
    device = ElementTree.Element(
        "device",
        {
            "schemaVersion": "1.3",
            "xmlns:xs": "http://www.w3.org/2001/XMLSchema-instance",
            "xs:noNamespaceSchemaLocation": "CMSIS-SVD.xsd",
        },
    )
    version = f"{VERSION >> 16}.{VERSION & 0xFFFF}"
    _add_all(device, name="amaranth_tpu", version=version, description=f"A bfloat16 tensor processing unit. {made_by}")
    _add_all(device, addressUnitBits="8", width="32", size="32")
    peripheral = _add(_add(device, "peripherals"), "peripheral")
    _add_all(peripheral, name="TPU", version=version, description="Control, status and counters.", baseAddress="0x00000000")
    _add_all(_add(peripheral, "addressBlock"), offset="0x0", size=f"0x{1 << ADDRESS_WIDTH:X}", usage="registers")
    registers = _add(peripheral, "registers")
    for register in REGISTERS:
        _svd_register(registers, register, config)
    ElementTree.indent(device)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(device, encoding="unicode") + "\n"
