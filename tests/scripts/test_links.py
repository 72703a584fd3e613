"""Tests that the links of the repository's pages lead to existing files and headings, and that paths in the text exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path for path in [*ROOT.glob("*.md"), *(path for top in ("hw", "sim", "scripts") for path in (ROOT / top).rglob("*.md"))]
)


def headings(path):
    return {
        re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
        for line in path.read_text().splitlines()
        if line.startswith("#")
    }


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links(path):
    dead = []
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", path.read_text()):
        name, _, heading = target.partition("#")
        page = path.parent / name if name else path
        if not page.exists() or heading and heading not in headings(page):
            dead.append(target)
    assert not dead, dead


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_text_exist(path):
    """Each path in backquotes that starts at a top-level folder, such as `scripts/setup.sh`, exists. Capital letters are
    placeholders."""
    named = re.findall(r"`(?:\./)?((?:hw|sim|scripts|tests)/[a-z0-9_./]+)[^`]*`", path.read_text())
    assert all((ROOT / name).exists() for name in named), [name for name in named if not (ROOT / name).exists()]
