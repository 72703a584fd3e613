"""Tests that tools in WebAssembly are compiled once, on their first use, with a message and into a writable cache."""

import hashlib
import logging
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.hw.tools.wasm_tools import tool_environment

#: Replaces the WebAssembly runtime: writes a file to the same path, and counts the calls.
_TOOL = """
import os, sys, time, pathlib
place = pathlib.Path(os.environ["YOWASP_CACHE_DIR"]) / "wasm_fake" / "fake.wasm" / sys.argv[1]
if not place.exists():
    open(sys.argv[2], "a").write("x")
    time.sleep(0.2)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("code")
"""


@pytest.fixture
def use(tmp_path, monkeypatch):
    """Creates a package with a fake tool. Returns a function that returns the cache folder of the tool. Its attribute
    `compiled()` counts compilations."""
    package = tmp_path / "packages" / "wasm_fake"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "fake.wasm").write_bytes(b"binary")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delenv("YOWASP_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    count = tmp_path / "count"
    count.touch()
    command = [sys.executable, "-c", _TOOL, hashlib.sha1(b"binary").hexdigest(), str(count)]

    def use():
        return tool_environment("wasm_fake", "fake", command)["YOWASP_CACHE_DIR"]

    use.compiled = lambda: len(count.read_text())
    return use


def test_first_use(use, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        assert use() == str(tmp_path / "home" / "YoWASP")
    assert use.compiled() == 1
    [said] = caplog.messages
    assert "fake is used for the first time" in said and str(tmp_path / "home") in said


def test_side_by_side(use):
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: use(), range(4)))) == 1
    assert use.compiled() == 1


def test_home_that_cannot_be_written(use, tmp_path, monkeypatch):
    """If the home directory is not writable, the cache is in the folder for temporary files, but only if its contents belong to
    this user. The next process reuses it."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = use()
    assert place == use() and place.startswith(str(tmp_path / "amaranth-tpu-")) and use.compiled() == 1
    next(tmp_path.glob("amaranth-tpu-*")).chmod(0o777)
    with pytest.raises(ToolError, match="set YOWASP_CACHE_DIR"):
        use()


def test_cache_that_cannot_be_written(use, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("YOWASP_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(ToolError, match="YOWASP_CACHE_DIR is .*file/cache, which is not writable"):
        use()
    assert use.compiled() == 0
