"""Cache of the Verilog of cores, by configuration, sources and versions of the tools."""

import functools
import hashlib
from dataclasses import astuple
from importlib.metadata import version
from pathlib import Path

import amaranth_tpu.hw as hw
from amaranth_tpu.hw.tools.process import build_directory, made_once
from amaranth_tpu.hw.tools.run_tool import YOSYS
from amaranth_tpu.hw.verilog.export import to_verilog

__all__ = ["verilog_of"]


@functools.cache
def _source():
    """Returns a digest of all inputs of the Verilog except the configuration."""
    digest = hashlib.sha256()
    for path in sorted(Path(hw.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    for package in ("amaranth", "amaranth-tpu", YOSYS):
        digest.update(version(package).encode())
    return digest.hexdigest()


@functools.cache
def verilog_of(config):
    """Returns :func:`hw.verilog.export.to_verilog`, cached in the folder `verilog/` of the build directory for all processes."""
    key = hashlib.sha256(f"{_source()} {astuple(config)}".encode()).hexdigest()[:20]
    path = build_directory() / "verilog" / f"{key}.v"
    return made_once(path, lambda partial: partial.write_text(to_verilog(config)), 600).read_text()
