"""Tests that the links of the repository's pages lead to existing files and headings, and that paths in the text exist."""

import re
from pathlib import Path

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


def test_links():
    dead = []
    for path in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)]+)\)", path.read_text()):
            name, _, heading = target.partition("#")
            page = path.parent / name if name else path
            if not page.exists() or heading and heading not in headings(page):
                dead.append((str(path), target))
    assert not dead, dead


def test_paths_in_text_exist():
    """Each path in backquotes that starts at a top-level folder, such as `scripts/setup.sh`, exists. Capital letters are
    placeholders."""
    pattern = re.compile(r"`(?:\./)?((?:hw|sim|scripts|tests)/[a-z0-9_./]+)[^`]*`")
    missing = [(str(path), name) for path in PAGES for name in pattern.findall(path.read_text()) if not (ROOT / name).exists()]
    assert not missing, missing
