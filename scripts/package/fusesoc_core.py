"""The FuseSoC core file (CAPI2) of a packaged design."""

__all__ = ["core_name", "fusesoc_core"]


def core_name(design):
    return f"amaranth-tpu:package:{design.top}:{design.version}"


def fusesoc_core(design, rtl, constraints, bench, plusargs):
    """Returns the text of the core file.

    Parameters
    ----------
    design : Design
    rtl, bench : list of str
        Paths of the Verilog and of the bench.
    constraints : dict
        Path -> file type.
    plusargs : dict
        Parameters of the simulation and their default values.
    """
    text = f"""CAPI=2:
{design.comment("#")}
name: {core_name(design)}
description: A bfloat16 tensor processing unit, module {design.top}

filesets:
  rtl:
    files: [{", ".join(rtl)}]
    file_type: verilogSource-2005
  constraints:
    files:
{"".join(f"      - {path}: {{file_type: {kind}}}" + chr(10) for path, kind in constraints.items())}\
  bench:
    files: [{", ".join(path for path in bench if path.endswith(".sv"))}]
    file_type: systemVerilogSource
  contents:
    files: [{", ".join(f"{path}: {{copyto: {path.rpartition('/')[2]}}}" for path in bench if path.endswith(".hex"))}]
    file_type: user

parameters:
"""
    for name, value in plusargs.items():
        kind = "int" if isinstance(value, int) else "str"
        text += f"  {name}: {{datatype: {kind}, paramtype: plusarg, default: {value}}}\n"
    return (
        text
        + f"""
targets:
  default:
    filesets: [rtl]

  sim:
    flow: sim
    flow_options:
      tool: icarus
      iverilog_options: [-g2012, -Wall, -Wno-timescale]
      timescale: 1ns/1ps
    filesets: [rtl, bench, contents]
    parameters: [{", ".join(plusargs)}]
    toplevel: bench

  synth:
    description: The design on its own, with the constraint of its clock
    filesets: [rtl, constraints]
    toplevel: {design.top}

  lint:
    flow: lint
    flow_options:
      tool: verilator
      verilator_options: [-Wall]
    filesets: [rtl]
    toplevel: {design.top}
"""
    )
