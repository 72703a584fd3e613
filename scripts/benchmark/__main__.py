"""Measurements of the core and its simulation, for the tables of results and datasheet.

`python -m amaranth_tpu.scripts.benchmark --help` lists the tables; `scripts/show/documents.py` has their documents. The text at
each table names its command. A row's core is the core that `tpu` generates with the row's options.
"""

from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.sim.compiler.compile import CompileError
from amaranth_tpu.sim.ir.errors import ModelError
from amaranth_tpu.sim.rtl.runner import SimulationError

from ..cli.command_line import run_app
from . import (
    fpga,
    inference,
    master_rounding,
    mlperf_tiny,
    node_tests,
    parameter_server,
    processors,
    rings,
    speed,
    summary,
    training,
)
from .common import app

#: Modules that add their commands to `app`.
TABLES = (
    inference,
    mlperf_tiny,
    training,
    master_rounding,
    speed,
    rings,
    parameter_server,
    fpga,
    processors,
    node_tests,
    summary,
)

if __name__ == "__main__":
    run_app(app, (ToolError, CompileError, ModelError, SimulationError, OSError))
