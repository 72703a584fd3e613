"""Links of the repository's pages, rewritten for the site: to other pages, pictures, or source files."""

import os
import re
from pathlib import Path, PurePosixPath

__all__ = ["Links", "heading_id", "outside_code", "with_languages"]

_FENCE = re.compile(r"^( *)(`{3,})[^`]*$.*?^\1\2`*$\n?", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()(?!https?:|mailto:)([^)\s]+)(\))")
_LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".cpp": "cpp", ".v": "verilog", ".sv": "systemverilog"}
_PICTURES = (".svg", ".png")


def outside_code(text, change):
    """`text` with its parts outside of fenced code changed."""
    parts, end = [], 0
    for block in _FENCE.finditer(text):
        parts += [change(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(text[end:])])


def with_languages(text):
    """Returns `text` with `sh` as the language of blocks that have none, unless they are drawings in letters."""

    def labelled(block):
        drawing = re.search(r"--[-> .']|==|[|] {2}| {2}[|]", block[0])
        return re.sub(r"\A( *`{3,})$", r"\1" if drawing else r"\1sh", block[0], flags=re.MULTILINE)

    return _FENCE.sub(labelled, text)


def heading_id(heading):
    """The anchor of a heading, as forges and the site make it."""
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")


class Links:
    """The targets of links.

    Parameters
    ----------
    root : pathlib.Path
        Top folder of the repository.
    places : dict
        `(file, heading)` or `(file, "")` to a page. The file's path is relative to `root`, the page's to the site's root.

    Attributes
    ----------
    copies : dict of str to path
        Pictures of the site that pages show.
    sources : dict of str to str
        Pages with the text of a source file, or with the list of a folder.
    """

    def __init__(self, root, places):
        self.root, self.places, self.copies, self.sources = root, places, {}, {}

    def rewritten(self, text, file, page):
        """Returns the text of a page in `file`, with links as `page` needs them."""

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
        """The page of a source file or a folder; one that is not there has none, which the build finds."""
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
        """Lists the files of a folder, each with the first line of its docstring or text."""
        rows = []
        for path in sorted(folder.iterdir()):
            text = path.read_text() if path.suffix == ".py" else ""
            first = text[3:].partition("\n")[0].rstrip('"') if text.startswith('"""') else ""
            if path.name[0] not in "_." and (path.is_file() or any(path.glob("*.py"))):
                rows.append(f"| `{path.name}{'/' if path.is_dir() else ''}` | {first} |")
        return "\n".join(["| | |", "| --- | --- |", *rows])
