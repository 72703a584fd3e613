"""The alphabet of the shipped character GPT, and its training text: Python's own help topics."""

import pydoc_data.topics
from collections import Counter

import numpy as np

__all__ = ["ALPHABET", "decoded", "encoded", "left_out", "training_text"]

#: The letters by id.
ALPHABET = "\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:()'\"_=`"


def encoded(text):
    """Returns the ids of a text, int64 (letters,); letters outside the alphabet are left out."""
    return np.array([ALPHABET.index(letter) for letter in text if letter in ALPHABET], np.int64)


def left_out(text):
    """Returns the letters of a text that :func:`encoded` leaves out: their number, and a phrase that also has their share and
    names the most frequent ones, such as `2 of 40 letters (5.0%, most often '-', 'ä')`."""
    letters = Counter(letter for letter in text if letter not in ALPHABET)
    count, most = letters.total(), ", ".join(repr(letter) for letter, _ in letters.most_common(4))
    return count, f"{count:,} of {len(text):,} letters ({count / max(1, len(text)):.1%}, most often {most})"


def decoded(ids):
    """Returns the text of these ids."""
    return "".join(ALPHABET[index] for index in ids)


def training_text():
    """Returns the text of `help("topics")`, in the alphabet."""
    return "".join(letter for letter in "".join(pydoc_data.topics.topics.values()) if letter in ALPHABET)
