"""Text from outside (names in a model's file, file names, messages of libraries) as it may be shown on a terminal."""

import unicodedata

__all__ = ["printable", "quoted"]

_LONGEST_NAME = 80
#: Letters that fonts draw as nothing.
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"


def printable(text, limit=None):
    """`text` on one line, in which every character that a terminal could act on, or that nobody sees, is written as Python would
    escape it: control characters (also those of ANSI sequences), line ends, marks of direction, zero-width characters, combining
    marks, and halves of surrogate pairs. Applied twice, it changes nothing more.

    Parameters
    ----------
    text : str, or what `str` makes one of
    limit : int or None
        The most characters of the result; what is longer loses its middle. Both ends of a name tell names apart.
    """
    text = str(text)
    if limit is not None and len(text) > 2 * limit:  # however long the name is, only its ends are looked at
        text = text[:limit] + text[-limit:]
    text = "".join(one if _is_plain(one) else one.encode("unicode_escape").decode("ascii") for one in text)
    if limit is not None and len(text) > limit:
        end = (limit - 3) // 2
        text = f"{text[: limit - 3 - end]}...{text[len(text) - end :]}"
    return text


def quoted(name):
    """A name in quotes, as messages show it."""
    return f"'{printable(name, _LONGEST_NAME)}'"


def _is_plain(character):
    if character.isascii():
        return character.isprintable()
    return character.isprintable() and character not in _BLANK and unicodedata.category(character)[0] != "M"
