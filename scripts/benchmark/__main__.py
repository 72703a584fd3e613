"""The command that measures the core and its simulation, for the tables in the results and in the datasheet.

`python -m amaranth_tpu.scripts.benchmark --help` lists the tables. `scripts/show/documents.py` lists the documents that contain
them. The text at each table names the command that makes it. The core of a row is the core that `tpu` generates with the options
of the row.
"""

from amaranth_tpu.hw.standard_cells.liberty import LibertyError
from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.ir.errors import ModelError
from amaranth_tpu.sim.rtl.runner import SimulationError

from ..cli.command_line import run_app
from . import (
    fpga,
    gpt_training,
    inference,
    language,
    language_token,
    master_rounding,
    mlperf_tiny,
    node_tests,
    old,
    onnx_backend,
    parameter_server,
    processors,
    rings,
    speed,
    standard_cells,
    summary,
    training,
    transformers,
    zoo,
)
from .common import app

#: Modules that add their commands to `app`.
TABLES = (
    inference,
    language,
    language_token,
    mlperf_tiny,
    transformers,
    training,
    master_rounding,
    speed,
    rings,
    parameter_server,
    fpga,
    standard_cells,
    gpt_training,
    processors,
    node_tests,
    onnx_backend,
    zoo,
    summary,
    old,
)

if __name__ == "__main__":
    run_app(app, (LibertyError, ToolError, CompileError, ModelError, SimulationError, OSError))
