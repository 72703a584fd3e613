"""The alphabet of the shipped character GPT, and its training text: Python's own help topics."""

import pydoc_data.topics

import numpy as np

__all__ = ["ALPHABET", "decoded", "encoded", "training_text"]

#: The letters by id.
ALPHABET = "\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:()'\"_=`"


def encoded(text):
    """Returns the ids of a text, int64 (letters,); letters outside the alphabet are left out."""
    return np.array([ALPHABET.index(letter) for letter in text if letter in ALPHABET], np.int64)


def decoded(ids):
    """Returns the text of these ids."""
    return "".join(ALPHABET[index] for index in ids)


def training_text():
    """Returns the text of `help("topics")`, in the alphabet."""
    return "".join(letter for letter in "".join(pydoc_data.topics.topics.values()) if letter in ALPHABET)
