"""The Verilog front end slang, in a process of its own: it reports objects that it leaves behind when its process ends."""

import sys

from command import captured

_CODE = """
import sys
from pyslang import driver
path, top = sys.argv[1:]
slang = driver.Driver()
slang.addStandardArgs()
assert slang.parseCommandLine(f"slang {path} --top {top}") and slang.processOptions() and slang.parseAllSources()
assert slang.reportParseDiags()
slang.reportCompilation(slang.createCompilation(), False)
assert (slang.diagEngine.numErrors, slang.diagEngine.numWarnings) == (0, 0)
"""


def check_with_slang(path, top):
    """Fails if slang does not find the module `top` in a file, or reports an error or a warning."""
    done = captured([sys.executable, "-c", _CODE, path, top], timeout=600)
    assert done.returncode == 0 and top in done.stdout, done.stderr + done.stdout
