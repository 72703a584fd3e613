"""Safe display of text from outside (names in model files, file names, messages of libraries) on a terminal."""

import unicodedata

__all__ = ["printable", "quoted"]

_LONGEST_NAME = 80
#: Letters that fonts draw as blanks.
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"


def printable(text, limit=None):
    """Returns text on one line, with Python's escapes for characters that a terminal interprets or does not show.

    These are control characters (also in ANSI sequences), line ends, direction marks, zero-width characters, combining marks, and
    halves of surrogate pairs. The function is idempotent.

    Parameters
    ----------
    text : object
        Text, or an object converted with `str`.
    limit : int or None
        Maximum length of the result. The middle of longer text is removed, since both ends help to distinguish names.
    """
    text = str(text)
    if limit is not None and len(text) > 2 * limit:  # bounds the work for long text: only its ends are needed
        text = text[:limit] + text[-limit:]
    if not (text.isascii() and text.isprintable()):
        text = "".join(one if _is_plain(one) else one.encode("unicode_escape").decode("ascii") for one in text)
    if limit is not None and len(text) > limit:
        end = (limit - 3) // 2
        text = f"{text[: limit - 3 - end]}...{text[len(text) - end :]}"
    return text


def quoted(name):
    """Returns a name in quotes, made safe by :func:`printable`, for messages."""
    return f"'{printable(name, _LONGEST_NAME)}'"


def _is_plain(character):
    return character.isprintable() and character not in _BLANK and unicodedata.category(character)[0] != "M"
