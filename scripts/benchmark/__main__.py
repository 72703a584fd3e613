"""Measures the core and its simulation. The tables of results and datasheet come from here, each by the command that stands
beside it; `scripts/show/documents.py` knows where they are.

`python -m amaranth_tpu.scripts.benchmark --help` lists the tables. A row's core is the one that `tpu` makes with the row's
options.
"""

from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.sim.compiler.compile import CompileError
from amaranth_tpu.sim.ir.errors import ModelError
from amaranth_tpu.sim.rtl.runner import SimulationError

from ..cli.command_line import run_app
from . import fpga, inference, mlperf_tiny, node_tests, parameter_server, processors, rings, speed, summary, training
from .common import app

#: Modules whose commands `app` has.
TABLES = (inference, mlperf_tiny, training, speed, rings, parameter_server, fpga, processors, node_tests, summary)

if __name__ == "__main__":
    run_app(app, (ToolError, CompileError, ModelError, SimulationError, OSError))
