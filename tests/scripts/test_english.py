"""The lint for English: kinds of text that it finds in a file, and its limits."""

import subprocess
import sys

from amaranth_tpu.scripts.english import passages_of, rates
from command import captured

_SOURCE = '''"""What a module is."""

TEXT = 'five words in a "message" # not a comment'  #: A comment: "with quotes
PATTERN = r"\\"#" + \'\'\'in a text of 'three' quotes # no comment
either\'\'\'


class Block:
    """A block.

    With \\\\""" # after a docstring
    def run(self):
        f"{self} runs over a message # of an f-string"  # the last
        return "# short"
'''


def test_kinds_of_text(tmp_path):
    (tmp_path / "hw").mkdir()
    (tmp_path / "hw" / "block.py").write_text(_SOURCE)
    (tmp_path / "README.md").write_text("# Title\n\n```\ncode\n```\nProse.\n| table |\n")
    found = {(passage.place, passage.kind, passage.text) for passage in passages_of(tmp_path)}
    assert found == {
        ("hw/block.py:1", "docstring", "What a module is."),
        ("hw/block.py:3", "message", 'five words in a "message" # not a comment'),
        ("hw/block.py:3", "comment", 'A comment: "with quotes'),
        ("hw/block.py:4", "message", "in a text of 'three' quotes # no comment either"),
        ("hw/block.py:9", "docstring", "A block. With \\"),
        ("hw/block.py:11", "comment", "after a docstring"),
        ("hw/block.py:13", "message", "runs over a message # of an f-string"),
        ("hw/block.py:13", "comment", "the last"),
        ("README.md:1", "markdown", "# Title"),
        ("README.md:6", "markdown", "Prose."),
    }


def test_rates_and_exit_status(tmp_path):
    (tmp_path / "hw").mkdir()
    place = tmp_path / "hw" / "block.py"
    place.write_text(_SOURCE)
    found, words = rates(passages_of(tmp_path))
    assert [passage.place for passage in found["docstring", "opens"]] == ["hw/block.py:1"] and words["docstring"] == 8
    command = [sys.executable, "-m", "amaranth_tpu.scripts.english", tmp_path]
    refused = captured(command)
    assert refused.returncode == 1 and "opens" in refused.stdout and "rewrite these phrases" in refused.stderr
    place.write_text(_SOURCE.replace("What a module is", "A module"))
    assert subprocess.run(command, timeout=60).returncode == 0
