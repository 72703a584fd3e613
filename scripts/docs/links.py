"""Links in the repository's pages, rewritten for the site: to other pages, to pictures, or to source files."""

import os
import re
from pathlib import Path, PurePosixPath

__all__ = ["Links", "heading_id", "outside_code", "with_languages"]

_FENCE = re.compile(r"^( *)(`{3,})[^`]*$.*?^\1\2`*$\n?", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()(?!https?:|mailto:)([^)\s]+)(\))")
_LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".cpp": "cpp", ".v": "verilog", ".sv": "systemverilog"}
_PICTURES = (".svg", ".png")


def outside_code(text, change):
    """Returns `text` in which the function `change` has been applied to the parts outside fenced code blocks."""
    parts, end = [], 0
    for block in _FENCE.finditer(text):
        parts += [change(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(text[end:])])


def with_languages(text):
    """Returns `text` with `sh` as the language of code blocks that have no language. Drawings in characters and timing diagrams
    are left as they are."""

    def labelled(block):
        drawing = re.search(r"--[-> .']|==|[|] {2}| {2}[|]|^cycle {3}", block[0], re.MULTILINE)
        return re.sub(r"\A( *`{3,})$", r"\1" if drawing else r"\1sh", block[0], flags=re.MULTILINE)

    return _FENCE.sub(labelled, text)


def heading_id(heading):
    """Returns the anchor of a heading, as code forges and the site generator derive it."""
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")


class Links:
    """Rewrites links, and collects the pictures and source files that the site needs for them.

    Parameters
    ----------
    root : pathlib.Path
        Top folder of the repository.
    places : dict
        Maps `(file, heading)`, or `(file, "")`, to a page of the site. Files are relative to `root`, pages to the root of the
        site.

    Attributes
    ----------
    copies : dict of str to path
        Pictures to copy: path in the site to path in the repository.
    sources : dict of str to str
        Additional pages, as Markdown by their path in the site. Each has the text of a source file, or lists a folder.
    """

    def __init__(self, root, places):
        self.root, self.places, self.copies, self.sources = root, places, {}, {}

    def rewritten(self, text, file, page):
        """Returns `text`, a page from `file`, with its links changed to links from `page` of the site."""

        def turn(link):
            path, _, heading = link[2].partition("#")
            target = os.path.normpath(PurePosixPath(file).parent / path) if path else str(file)
            return link[1] + self._target(target, heading, page) + link[3]

        return outside_code(text, lambda part: _LINK.sub(turn, part))

    def _target(self, file, heading, page):
        readme = f"{file}/README.md"
        if (readme, "") in self.places:
            file = readme
        place = self.places.get((file, heading)) or self.places.get((file, ""))
        if place is None:
            place = self._picture(file) if file.endswith(_PICTURES) else self._source(file)
        return os.path.relpath(place, PurePosixPath(page).parent) + (f"#{heading}" if heading else "")

    def _picture(self, file):
        if (self.root / file).is_file():
            self.copies[f"pictures/{Path(file).name}"] = self.root / file
        return f"pictures/{Path(file).name}"

    def _source(self, file):
        """Returns the path of the page for a source file or a folder, and adds the page to `sources`. If the file does not exist,
        no page is added, and the build of the site reports the link."""
        path = self.root / file
        if path.is_dir():
            place, body = f"source/{file}/index.md", self._listing(path)
        else:
            place = f"source/{file}.md"
            if not path.is_file():
                return place
            fence = "`" * (3 + ("```" in path.read_text()))
            body = f"{fence}{_LANGUAGES.get(path.suffix, 'sh')}\n{path.read_text().rstrip()}\n{fence}"
        self.sources[place] = f"---\nsearch:\n  exclude: true\n---\n# {file}\n\n{body}\n"
        return place

    def _listing(self, folder):
        """Returns a Markdown table of the files in a folder. Each Python file has the first line of its docstring."""
        rows = []
        for path in sorted(folder.iterdir()):
            text = path.read_text() if path.suffix == ".py" else ""
            first = text[3:].partition("\n")[0].rstrip('"') if text.startswith('"""') else ""
            if path.name[0] not in "_." and (path.is_file() or any(path.glob("*.py"))):
                rows.append(f"| `{path.name}{'/' if path.is_dir() else ''}` | {first} |")
        return "\n".join(["| | |", "| --- | --- |", *rows])
