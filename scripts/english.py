"""A lint for the English of docstrings, comments, messages and Markdown: `python -m amaranth_tpu.scripts.english [--list HABIT]`.

It counts phrases that make a reader search for the subject, per 1,000 words, separately for each kind of text. Each rate is
compared with a limit. The limits are a little above the rates in codebases that read easily (amaranth, tinygrad, coreblocks,
hls4ml, onnx-ir). The command exits with 1 if a rate exceeds its limit.
"""

import argparse
import ast
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HABITS", "Habit", "Passage", "passages_of", "rates"]

_ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = ("hw", "sim", "scripts", "tests")
_CODE = re.compile(r"`[^`]*`")
_SHORT = 5  # strings with fewer words are not counted as messages
#: A string literal, which may contain a `#`, or a comment. `tokenize` finds the same comments in twenty times the time.
_LITERAL_OR_COMMENT = re.compile(
    r""""{3}(?:\\.|[^\\])*?"{3}|\'{3}(?:\\.|[^\\])*?\'{3}|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(\#[^\n]*)""", re.DOTALL
)


@dataclass(frozen=True)
class Habit:
    """A phrase to avoid: its name, its regular expression, and its limit in occurrences per 1,000 words."""

    name: str
    pattern: re.Pattern
    limit: float

    @classmethod
    def of(cls, name, pattern, limit):
        return cls(name, re.compile(pattern), limit)


#: The pattern `opens` is searched in the first words of docstrings alone; a docstring opens with a verb or a noun.
HABITS = (
    Habit.of("opens", r"^(What|Whether|How|Where|Who|Which|Of|As|That|Those)\b", 0.0),
    Habit.of("what", r"\b[Ww]hat\b(?!\?)", 1.0),
    Habit.of("that of", r"\b(that|those) of\b|\bof (them|which|whom)\b", 0.5),
    Habit.of("so many", r"\bso (many|few|much)\b", 0.2),
    Habit.of("is no", r"\b(is|are) no\b", 0.4),
    Habit.of("stands", r"\b(lies?|stands?(?!-in)|go(es)? on)\b", 0.4),
    Habit.of("turned", r"\bturned\b", 0.1),
    Habit.of("without it", r"\b[Ww]ithout it\b|\bif not given\b", 0.1),
)


@dataclass(frozen=True)
class Passage:
    """A piece of text: where it is, `file:line`, and its kind: docstring, comment, message or markdown."""

    place: str
    kind: str
    text: str


def _python(path, source):
    docstrings = set()
    for node in ast.walk(ast.parse(source)):  # a docstring follows its function, class or module
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False) is not None:
            docstrings.add(id(node.body[0].value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.split()
            if id(node) in docstrings or len(words) >= _SHORT:
                yield Passage(f"{path}:{node.lineno}", "docstring" if id(node) in docstrings else "message", " ".join(words))
    for match in _LITERAL_OR_COMMENT.finditer(source):
        if match[1]:
            yield Passage(f"{path}:{source.count(chr(10), 0, match.start()) + 1}", "comment", match[1].lstrip("#: "))


def _markdown(path, source):
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        fenced ^= line.startswith("```")
        if line.strip() and not fenced and not line.startswith(("|", "```", "<", "    ")):
            yield Passage(f"{path}:{number}", "markdown", line.strip())


def passages_of(root):
    """Yields every :class:`Passage` in the folders of the package at `root`, and in the Markdown files directly in `root`."""
    files = [path for folder in _FOLDERS for path in (root / folder).rglob("*.*")] + [*root.glob("*.md")]
    for path in sorted(files):
        reader = {".py": _python, ".md": _markdown}.get(path.suffix)
        if reader:
            yield from reader(path.relative_to(root), path.read_text(encoding="utf-8"))


def rates(passages):
    """Returns `({(kind, name of a habit): [Passage]}, {kind: number of words})`. A passage is in a list once for each
    occurrence."""
    found, words = {}, Counter()
    for passage in passages:
        words[passage.kind] += len(passage.text.split())
        text = _CODE.sub("``", passage.text)
        for habit in HABITS:
            if habit.name == "opens" and passage.kind != "docstring":
                continue
            places = found.setdefault((passage.kind, habit.name), [])
            places += [passage] * len(habit.pattern.findall(text))
    return found, words


def main():
    """Prints the rates. Exits with 1 if one of them exceeds its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--list", metavar="HABIT", help=f"show the places of a habit: {', '.join(habit.name for habit in HABITS)}"
    )
    parser.add_argument("folder", nargs="?", type=Path, default=_ROOT, help="the checkout; default: this one")
    options = parser.parse_args()
    found, words = rates(passages_of(options.folder))
    failed = False
    for (kind, name), places in sorted(found.items()):
        limit = next(habit.limit for habit in HABITS if habit.name == name)
        rate = 1000 * len(places) / max(words[kind], 1)
        failed |= rate > limit
        if rate > limit or options.list:
            print(f"{kind:9s}  {name:10s}  {len(places):4d}, {rate:5.2f} per 1,000 words; limit {limit}")
        if name == options.list:
            print(*(f"    {passage.place}: {passage.text[:100]}" for passage in places), sep="\n")
    if failed:
        sys.exit("english: rewrite these phrases: name the subject, and use the field's words; --list HABIT shows the places")


if __name__ == "__main__":
    main()
