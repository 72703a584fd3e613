"""A cache of the Verilog of cores. The key is the configuration, the sources and the versions of the tools."""

import functools
import hashlib
from dataclasses import astuple
from importlib.metadata import version
from pathlib import Path

import amaranth_tpu.hw as hw
from amaranth_tpu.hw.tools.process import build_directory, made_once
from amaranth_tpu.hw.tools.run_tool import YOSYS
from amaranth_tpu.hw.verilog.export import pod_to_verilog, to_verilog

__all__ = ["verilog_of", "pod_verilog_of"]


@functools.cache
def _source():
    digest = hashlib.sha256()
    for path in sorted(Path(hw.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    for package in ("amaranth", "amaranth-tpu", YOSYS):
        digest.update(version(package).encode())
    return digest.hexdigest()


def _cached(content, write):
    """Returns the text from `write()`. It is cached for all processes in the folder `verilog/` of the build directory, under the
    key `content`."""
    key = hashlib.sha256(f"{_source()} {content}".encode()).hexdigest()[:20]
    path = build_directory() / "verilog" / f"{key}.v"
    return made_once(path, lambda partial: partial.write_text(write()), 600).read_text()


@functools.cache
def verilog_of(config):
    """Returns the text from :func:`hw.verilog.export.to_verilog` for a configuration, from the cache if it is there."""
    return _cached(astuple(config), lambda: to_verilog(config))


@functools.cache
def pod_verilog_of(config, cores, link_latency=0):
    """Returns the text from :func:`hw.verilog.export.pod_to_verilog`, from the cache if it is there."""
    return _cached((astuple(config), cores, link_latency), lambda: pod_to_verilog(config, cores=cores, link_latency=link_latency))
