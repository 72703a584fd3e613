"""The device-tree nodes of a packaged design, and the binding that describes them."""

from amaranth_tpu.hw.spec.registers import ADDRESS_WIDTH, VERSION

from .design import AXI4_LITE

__all__ = ["COMPATIBLE", "binding", "dtsi"]

#: The `compatible` of all cores with the same major version of the programming interface.
COMPATIBLE = f"amaranth-tpu,tpu-{VERSION >> 16}"
_BASE, _MEMORY, _MEMORY_BYTES = 0x4000_0000, 0x3000_0000, 0x0100_0000

_HEAD = """
/* A node for each core, and the memory that the cores share with programs. Set to the values of your system:
   reg, interrupts, interrupt-parent (a label `intc` is expected), and reg of the memory. All `reg` have one cell
   for the address and one for the size, as their parents have in most 32-bit systems.
   With `generic-uio` and the kernel's argument uio_pdrv_genirq.of_id=generic-uio, Linux makes /dev/uioN of each node.
   Its maps are the entries of `reg`: registers and memory, as driver/tpu_linux.h expects. */
"""


def dtsi(design):
    """Returns the device-tree source, to be included at the end of a board's tree."""
    head = "".join(f"// {line}\n" for line in design.lines)
    nodes = [_node(index, design) for index, _ in enumerate(design.of_kind(AXI4_LITE))]
    return f"""{head}{_HEAD}
/ {{
\treserved-memory {{
\t\t#address-cells = <1>;
\t\t#size-cells = <1>;
\t\tranges;

\t\ttpu_memory: tpu@{_MEMORY:x} {{
\t\t\treg = <0x{_MEMORY:x} 0x{_MEMORY_BYTES:x}>;
\t\t\tno-map;
\t\t}};
\t}};
{"".join(nodes)}}};
"""


def _node(index, design):
    address = _BASE + (index << ADDRESS_WIDTH + 3)
    frequency = round(design.mhz * 1e6)
    return f"""
\ttpu{index}: tpu@{address:x} {{
\t\tcompatible = "{COMPATIBLE}", "generic-uio";
\t\treg = <0x{address:x} 0x{1 << ADDRESS_WIDTH:x}>, <0x{_MEMORY:x} 0x{_MEMORY_BYTES:x}>;
\t\treg-names = "registers", "memory";
\t\tinterrupt-parent = <&intc>;
\t\tinterrupts = <{index + 1} 4>; /* level, active high */
\t\tclock-frequency = <{frequency}>;
\t\tmemory-region = <&tpu_memory>;
\t}};
"""


def binding(design):
    """Returns the binding as YAML in the form of the Linux kernel."""
    return f"""{design.comment("#")}%YAML 1.2
---
$id: http://devicetree.org/schemas/misc/{COMPATIBLE}.yaml#
$schema: http://devicetree.org/meta-schemas/core.yaml#

title: bfloat16 tensor processing unit

maintainers:
  - the authors of amaranth-tpu <authors@amaranth-tpu.invalid>

description:
  One core with AXI4-Lite registers, an AXI4 manager for memory, and an interrupt. Programs map the registers and the
  memory, and write bus addresses into the core. The registers id, version, config and features describe the core.

properties:
  compatible:
    items:
      - const: {COMPATIBLE}
      - const: generic-uio
    minItems: 1

  reg:
    minItems: 1
    items:
      - description: Registers, {1 << ADDRESS_WIDTH} bytes. The size may be rounded up to a page.
      - description: The reserved memory, for programs that map it with the registers.

  reg-names:
    minItems: 1
    items:
      - const: registers
      - const: memory

  interrupts:
    maxItems: 1
    description: Level, active high, until a 1 is written to bit 1 of the register interrupt.

  clock-frequency:
    description: Frequency of aclk in Hz, which converts the cycle counters to seconds.

  memory-region:
    maxItems: 1
    description: Memory for programs, samples and results, inside the address range of the manager.

required:
  - compatible
  - reg
  - interrupts
  - memory-region

additionalProperties: false

{_example()}"""


def _example():
    return f"""examples:
  - |
    tpu@{_BASE:x} {{
        compatible = "{COMPATIBLE}", "generic-uio";
        reg = <0x{_BASE:x} 0x{1 << ADDRESS_WIDTH:x}>, <0x{_MEMORY:x} 0x{_MEMORY_BYTES:x}>;
        reg-names = "registers", "memory";
        interrupts = <1 4>;
        memory-region = <&tpu_memory>;
    }};
"""
