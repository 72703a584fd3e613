"""FuseSoC generator `tpu`: parameters of a core -> its Verilog (see `tpu.core`)."""

import sys
import types
from pathlib import Path

sys.modules["amaranth_tpu"] = package = types.ModuleType("amaranth_tpu")
package.__path__ = [str(Path(__file__).resolve().parents[1])]  # this checkout, installed or not
del sys.path[0]  # where it holds names of Python's own modules

try:
    from fusesoc.capi2.generator import Generator

    from amaranth_tpu.hw.config import Config
    from amaranth_tpu.hw.tools.process import ToolError
    from amaranth_tpu.hw.verilog.export import to_verilog
    from amaranth_tpu.hw.verilog.header import source
except ModuleNotFoundError as error:
    remedy = f"put the environment of amaranth-tpu first on PATH, or there: {sys.executable} -m pip install {error.name}"
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
