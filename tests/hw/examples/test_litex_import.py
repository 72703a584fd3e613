"""Tests that a user's design imports `add_tpu` without side effects."""

import sys

from command import captured

#: Imports the example with empty packages for LiteX and Migen, then the user's own module.
SCRIPT = """
import sys, types

class Empty(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        return type(name, (), {})

litex = ("soc.integration.soc", "soc.interconnect.axi")
folders = ("migen", "litex", "litex.soc", "litex.soc.integration", "litex.soc.interconnect")
for name in (*folders, *("litex." + name for name in litex)):
    sys.modules[name] = Empty(name)
import amaranth_tpu
path = list(sys.path)
from amaranth_tpu.hw.examples.soc.litex_tpu import add_tpu
assert sys.path == path and sys.modules["amaranth_tpu"] is amaranth_tpu
import mymod
"""


def test_import_has_no_side_effects(tmp_path):
    (tmp_path / "mymod.py").write_text("")
    (tmp_path / "user.py").write_text(SCRIPT)
    done = captured([sys.executable, tmp_path / "user.py"])
    assert done.returncode == 0, done.stderr
