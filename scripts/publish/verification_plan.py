"""The verification plan: each promise of the datasheet, with the tests, proofs and random events that check it.

A comment `<!-- promise: NAME -->` follows a promise in the datasheet. The line above its evidence is a comment
`# promise: NAME, NAME`. Evidence is a test, a claim of a proof, or an event of random jobs. An event needs a text:
`# promise: NAME (text)`.
"""

import re
from collections import defaultdict

from ..show.documents import DATASHEET, ROOT
from ..show.markdown import markdown_table

__all__ = ["evidence", "promises", "verification_plan"]

#: Kinds of evidence: heading, files, and the text that follows a comment.
_KINDS = {
    "tests": ("tests/**/test_*.py", r"def (test_\w+)"),
    "proofs": ("sim/proofs/*.py", r'"(.+?)":'),
    "events of random programs": ("sim/verification/events.py", None),
}
_MARK = re.compile(r"<!-- promise: ([a-z0-9-]+) -->")
_COMMENT = re.compile(r"^ *# promise: ([a-z0-9, -]+?)(?: \((.+)\))?$")


def promises(text):
    """Returns the promises of a datasheet: name to sentence. Raises ValueError for a name that occurs twice."""
    found = {}
    for mark in _MARK.finditer(text):
        before = re.split(r"\n\n|\n(?=[*#|])|<!-- promise: \S+ -->", text[: mark.start()])[-1]
        sentence = re.split(r"(?<=[.?])\**\s+(?=[A-Z`(*\[])", " ".join(before.split()))[-1]
        if mark[1] in found:
            raise ValueError(f"{mark[1]}: two promises of the datasheet have this name; change one")
        found[mark[1]] = sentence.replace("**", "").strip("* ")
    return found


def evidence(root=ROOT):
    """Returns the evidence: name of a promise to kind to texts. Raises ValueError for a comment without evidence below."""
    found = defaultdict(lambda: {kind: [] for kind in _KINDS})
    for kind, (pattern, following) in _KINDS.items():
        for path in sorted(root.glob(pattern)):
            lines = path.read_text().splitlines()
            for number, line in enumerate(lines):
                if not (comment := _COMMENT.match(line)):
                    continue
                title = comment[2]
                if following:
                    name = re.search(following, "\n".join(lines[number + 1 : number + 40]))
                    title = name and f"{path.stem}: {name[1].removeprefix('test_').replace('_', ' ')}"
                if not title:
                    raise ValueError(
                        f"{path.name}, line {number + 1}: the comment names no evidence; move it above a test or claim"
                    )
                for promise in comment[1].split(", "):
                    if title not in found[promise][kind]:
                        found[promise][kind].append(title)
    return found


def verification_plan():
    """Returns the plan as a Markdown table. Raises ValueError for a promise without evidence, and for evidence of no promise."""
    promised, found = promises(DATASHEET.read_text()), evidence()
    if unknown := found.keys() - promised.keys():
        raise ValueError(f"no promise of the datasheet is named {min(unknown)!r}; correct the comment above its evidence")
    if bare := promised.keys() - found.keys():
        raise ValueError(f"promise {min(bare)!r} of the datasheet has no evidence; add a comment above a test or a claim")
    rows = [
        [text.replace("(#", f"({DATASHEET.name}#"), *("<br>".join(found[name][kind]) for kind in _KINDS)]
        for name, text in promised.items()
    ]
    return markdown_table(["promise", *_KINDS], rows)
