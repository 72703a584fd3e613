"""A cache of the Verilog of cores. The key is the configuration, the sources and the versions of the tools."""

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
    """Returns a digest of everything that determines the Verilog, except the configuration."""
    digest = hashlib.sha256()
    for path in sorted(Path(hw.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    for package in ("amaranth", "amaranth-tpu", YOSYS):
        digest.update(version(package).encode())
    return digest.hexdigest()


@functools.cache
def verilog_of(config):
    """Returns the text from :func:`hw.verilog.export.to_verilog` for a configuration. It is cached for all processes in the
    folder `verilog/` of the build directory."""
    key = hashlib.sha256(f"{_source()} {astuple(config)}".encode()).hexdigest()[:20]
    path = build_directory() / "verilog" / f"{key}.v"
    return made_once(path, lambda partial: partial.write_text(to_verilog(config)), 600).read_text()
