"""The documentation site: its pages, their sources in the repository, and the call of the HTML generator.

Each text has one source. The first page is the README. Guides are in this folder. The datasheet, the results and their tables
come from the rooms to which they belong. Recipes come from CONTRIBUTING, options and Python calls from the code.
"""

import os
import re
import shutil
import sys
from importlib.util import find_spec

from amaranth_tpu.hw.tools.process import ToolError, build_directory, execute, lock, tail

from ..cli.command_line import RunFailed
from ..show.documents import GUIDES as FOLDER
from ..show.documents import ROOT
from .command_reference import command_reference
from .links import Links, heading_id, outside_code, with_languages
from .notebooks import notebook
from .python_reference import python_reference
from .tables import with_numbers_right

__all__ = ["FOLDER", "GUIDES", "NAMES", "ROOT", "build", "pages"]

_TIMEOUT = 300  # seconds

#: The guides, in the order of their tabs.
GUIDES = {
    "Tutorials": ["first-digit", "train", "keras-and-pytorch", "your-model", "chat", "your-soc"],
    "How to": "stop-and-go-on sweep stalls cell function operator instruction package litex fpga board sram".split(),
    "Explanation": ["bfloat16", "systolic-arrays", "order-of-sums", "interlocks", "ring", "glossary"],
}
#: Pages of other rooms, and pages made from code: file to page.
NAMES = {
    "README.md": "index.md",
    "sim/README.md": "reference/software.md",
    "scripts/benchmark/README.md": "reference/results.md",
    "scripts/benchmark/zoo.md": "reference/zoo.md",
    "hw/driver/README.md": "reference/c-driver.md",
    "hw/examples/soc/README.md": "reference/example-soc.md",
    "hw/boards/README.md": "reference/boards.md",
    "hw/proofs.md": "reference/proofs.md",
    "hw/verification.md": "reference/verification.md",
    "hw/coverage.md": "reference/coverage.md",
    "hw/regression.md": "reference/regression.md",
    "CONTRIBUTING.md": "reference/contributing.md",
    "scripts/docs/changelog.md": "reference/changelog.md",
}
_DATASHEET, _DATASHEET_PAGES = "hw/README.md", "reference/datasheet/"
_DECISIONS, _PAGES_OF_DECISIONS = "hw/decisions/", "explanation/decisions/"


def build(output):
    """Builds the site in the folder `output`, and replaces its contents. Returns the number of pages. Raises RunFailed for
    links without a target; the advice lists them. Raises ToolError if the generator is missing or exceeds its time limit, or
    another process builds the site for too long."""
    if find_spec("mkdocs") is None or find_spec("material") is None:
        raise ToolError("the site is made by mkdocs-material, which is not installed: pip install -e '.[docs]'")
    with lock(build_directory() / "docs.lock", timeout=_TIMEOUT):
        return _build(build_directory() / "docs", output.resolve())


def _build(work, output):
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    found, files, nav = pages()
    for name, text in found.items():
        _write(work / "pages" / name, text)
    for name in GUIDES["Tutorials"]:
        _write(work / "pages" / "tutorials" / f"{name}.ipynb", notebook((FOLDER / "tutorials" / f"{name}.md").read_text()))
    for name, path in files.items():
        (work / "pages" / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(path, work / "pages" / name)
    _write(work / "mkdocs.yml", _settings(nav, work))
    _generate(work, output)
    return len(found)


def _generate(work, output):
    """Runs the HTML generator in the folder `work`, which has the pages, and writes the site to `output`."""
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "-f", str(work / "mkdocs.yml"), "-d", str(output)]
    with open(work / "log", "w") as log:
        try:
            status = execute(words, cwd=work, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, log=log, timeout=_TIMEOUT)
        except TimeoutError as error:
            raise ToolError(str(error)) from None
    if status:
        wrong = [line for line in (work / "log").read_text().splitlines() if line.startswith(("WARNING", "ERROR"))]
        raise RunFailed(f"mkdocs ended with status {status}; its log: {work / 'log'}", wrong or [tail(work / "log", 3)])


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _settings(nav, work):
    lines = [f"INHERIT: {FOLDER / 'mkdocs.yml'}", f"docs_dir: {work / 'pages'}", "nav:", "  - Home: index.md"]
    for title, places in nav.items():
        groups = {"": [], "Datasheet": [], "Decisions": []}
        for place in places:
            group = "Datasheet" if place.startswith(_DATASHEET_PAGES) else "Decisions" if _PAGES_OF_DECISIONS in place else ""
            groups[group].append(place)
        lines += [f"  - {title}:"] * bool(places)
        for group, entries in groups.items():
            lines += [f"      - {group}:"] * bool(group and entries)
            lines += [f"      {'    ' * bool(group)}- {entry}" for entry in entries]
    return "\n".join(lines) + "\n"


def pages():
    """Returns `(pages, files, nav)`: {path in the site: Markdown}, {path in the site: file to copy}, and {title of a tab: paths
    of its pages}."""
    texts, places = _texts()
    links = Links(ROOT, places)
    found = {
        place: with_languages(outside_code(links.rewritten(text, file, place), with_numbers_right))
        for place, (file, text) in texts.items()
    }
    found |= {f"tutorials/{name}.md": _with_notebook(name, found) for name in GUIDES["Tutorials"]}
    found |= links.sources
    reference = [place for place in texts if place.startswith("reference/")]
    nav = {title: [f"{_folder(title)}/{name}.md" for name in names] for title, names in GUIDES.items()}
    nav["Explanation"] += [place for place in texts if place.startswith(_PAGES_OF_DECISIONS)]
    order = ["Tutorials", "How to", "Reference", "Explanation"]
    return found, links.copies | {"site.css": FOLDER / "site.css"}, {one: (nav | {"Reference": reference})[one] for one in order}


def _with_notebook(name, found):
    """Returns a tutorial with a link to its notebook below its title."""
    title, text = found[f"tutorials/{name}.md"].split("\n", 1)
    return f"{title}\n\n[This page as a Jupyter notebook]({name}.ipynb)\n{text}"


def _folder(title):
    return title.lower().replace(" ", "-")


def _texts():
    """Returns `({path in the site: (file, text)}, {(file, heading): path in the site})` of all pages. The links in the texts are
    as in the files."""
    texts = {}
    for title, names in GUIDES.items():
        for name in names:
            place = f"{_folder(title)}/{name}.md"
            texts[place] = f"scripts/docs/{place}", (FOLDER / place).read_text()
    places = {(file, ""): place for place, (file, _) in texts.items()}
    for heading, text in _split((ROOT / _DATASHEET).read_text()):
        place = f"{_DATASHEET_PAGES}{heading_id(heading) if heading else 'index'}.md"
        texts[place] = _DATASHEET, text
        places |= {(_DATASHEET, one): place for one in _headings(text)}
    places[_DATASHEET, ""] = f"{_DATASHEET_PAGES}index.md"
    for file, place, text in (
        ("scripts/tpu.py", "reference/command-line.md", command_reference()),
        ("sim/tpu/__init__.py", "reference/python.md", python_reference()),
    ):
        texts[place] = file, text
        places[file, ""] = place
    decisions = {f"{_DECISIONS}{path.name}": f"{_PAGES_OF_DECISIONS}{path.name}" for path in (ROOT / _DECISIONS).glob("*.md")}
    for file, place in [*NAMES.items(), *sorted(decisions.items())]:
        texts[place] = file, (ROOT / file).read_text()
        places[file, ""] = place
    return texts, places


def _headings(text):
    ids = []
    outside_code(text, lambda part: ids.extend(map(heading_id, re.findall(r"^#+ (.*)$", part, re.MULTILINE))) or part)
    return ids


def _split(text):
    """Splits a page at its headings of level 2. Yields `(heading, text)`: first the part before these headings, with an empty
    heading, then each section. Headings in the sections are raised by one level."""
    marked = outside_code(text, lambda part: re.sub(r"^## (?=.)", "\0", part, flags=re.MULTILINE))
    first, *rest = marked.split("\0")
    yield "", first
    for one in rest:
        heading, _, body = one.partition("\n")
        body = outside_code(body, lambda part: re.sub(r"^##(#+ )", r"#\1", part, flags=re.MULTILINE))
        yield heading, f"# {heading}\n{body}"
