"""Alphabets of character GPTs, and the training text of the shipped one: Python's own help topics."""

import codecs
import json
import pydoc_data.topics
from collections import Counter
from dataclasses import dataclass

import numpy as np

__all__ = ["ALPHABET", "Alphabet", "SHIPPED_ALPHABET", "training_text"]

#: The letters of the shipped GPT by id.
ALPHABET = "\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:()'\"_=`"
_MOST = 256  # letters; a text with more has its bytes as letters


@dataclass(frozen=True)
class Alphabet:
    """The letters of a model by id, or the 256 bytes of UTF-8 with `letters` None."""

    letters: str | None = ALPHABET

    @classmethod
    def of(cls, content):
        """Returns the alphabet of a text's bytes: its letters; bytes, if there are more than 256 or it is not UTF-8."""
        try:
            letters = "".join(sorted(set(content.decode())))
        except UnicodeDecodeError:
            return cls(None)
        return cls(letters if len(letters) <= _MOST else None)

    @classmethod
    def read(cls, text):
        """Returns the alphabet of an entry `alphabet` in a model's metadata; without one, the shipped alphabet."""
        return cls(ALPHABET if text is None else json.loads(text))

    @property
    def entry(self):
        """Returns the entry `alphabet` of a model's metadata."""
        return {"alphabet": json.dumps(self.letters)}

    def __len__(self):
        return _MOST if self.letters is None else len(self.letters)

    def __str__(self):
        return "the 256 bytes of UTF-8" if self.letters is None else f"{len(self.letters)} letters"

    @property
    def fill(self):
        """Returns the letter that fills a short prompt: a line end, else a space, else the first letter."""
        return next(letter for letter in ("\n", " ", self.letters) if self.letters is None or letter[:1] in self.letters)[:1]

    def encoded(self, text):
        """Returns the ids of a text, int64 (letters,); others are left out. An alphabet of bytes takes bytes, too."""
        if self.letters is None:
            return np.frombuffer(text if isinstance(text, bytes) else text.encode(), np.uint8).astype(np.int64)
        places = {letter: index for index, letter in enumerate(self.letters)}
        return np.array([places[letter] for letter in text if letter in places], np.int64)

    def decoded(self, ids):
        """Returns the text of these ids. Bytes that are no UTF-8 become the replacement character."""
        return self.decoder()(ids)

    def decoder(self):
        """Returns a function of ids that returns their text. A letter of several bytes comes with its last one."""
        if self.letters is not None:
            return lambda ids: "".join(self.letters[int(index)] for index in ids)
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return lambda ids: decoder.decode(bytes(int(index) for index in ids))

    def left_out(self, text):
        """Returns the letters of a text that :meth:`encoded` leaves out: their number, and a phrase that also has their share and
        names the most frequent ones, such as `2 of 40 letters (5.0%, most often '-', 'ä')`."""
        letters = Counter(letter for letter in text if self.letters is not None and letter not in self.letters)
        count, most = letters.total(), ", ".join(repr(letter) for letter, _ in letters.most_common(4))
        return count, f"{count:,} of {len(text):,} letters ({count / max(1, len(text)):.1%}, most often {most})"


SHIPPED_ALPHABET = Alphabet()


def training_text():
    """Returns the text of `help("topics")`, in the shipped alphabet."""
    return "".join(letter for letter in "".join(pydoc_data.topics.topics.values()) if letter in ALPHABET)
