"""FuseSoC generator `tpu`: parameters of a core -> its Verilog (see `tpu.core`)."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)   # this checkout, installed or not

try:
    from fusesoc.capi2.generator import Generator

    from hw.config import Config
    from hw.export import to_verilog
    from hw.verilog_header import source
    from hw.yosys import YosysError
except ModuleNotFoundError as error:
    sys.exit(f"error: {sys.executable} has no package {error.name}; put the environment of amaranth-tpu first on PATH")


def main():
    generator = Generator()
    try:
        text = to_verilog(Config(**generator.config or {}), source=source())
    except (ValueError, TypeError, YosysError) as error:
        sys.exit(f"error: {error}")
    Path("tpu.v").write_text(text)
    generator.add_files(["tpu.v"], file_type="verilogSource-2005")
    generator.write()


if __name__ == "__main__":
    main()
