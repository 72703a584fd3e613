"""The FuseSoC generator `tpu`. It exports the Verilog of a core from the core's parameters (see `tpu.core`)."""

import sys
import types
from pathlib import Path

sys.modules["amaranth_tpu"] = package = types.ModuleType("amaranth_tpu")
package.__path__ = [str(Path(__file__).resolve().parents[1])]  # imports from this checkout, even if the package is not installed
del sys.path[0]  # this folder must not shadow modules of the standard library

try:
    from fusesoc.capi2.generator import Generator

    from amaranth_tpu.hw.config import Config
    from amaranth_tpu.hw.tools.process import ToolError
    from amaranth_tpu.hw.verilog.export import to_verilog
    from amaranth_tpu.hw.verilog.header import source
except ModuleNotFoundError as error:
    remedy = f"put the environment of amaranth-tpu first on PATH, or run {sys.executable} -m pip install {error.name}"
    sys.exit(f"error: {sys.executable} has no package {error.name}; {remedy}")


def main():
    generator = Generator()
    try:
        text = to_verilog(Config(**generator.config or {}), source=source())
    except (ValueError, TypeError, ToolError) as error:
        sys.exit(f"error: {error}")
    Path("tpu.v").write_text(text)
    generator.add_files(["tpu.v"], file_type="verilogSource-2005")
    generator.write()


if __name__ == "__main__":
    main()
