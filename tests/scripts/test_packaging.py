"""What `pip install` brings: every file of the hardware and of its models, not only the Python."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("setuptools", reason="what pip builds packages with")

ROOT = Path(__file__).parents[2]
#: Built by the code that pip calls, without its copy of the sources.
_BUILD = "import setuptools; setuptools.setup(script_args=['-q', 'egg_info', '-e', '{0}', 'build_py', '-d', '{0}'])"


def test_every_file_is_installed(tmp_path):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _BUILD.format(tmp_path)], cwd=ROOT, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for folder in ("hw", "sim", "scripts"):
        expected = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*")
                    if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".sh"}
        missing = sorted(str(path) for path in expected if not (tmp_path / "amaranth_tpu" / path).exists())
        assert not missing, missing
