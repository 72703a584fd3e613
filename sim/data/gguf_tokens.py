"""The tokenizer and the dialogue template of a GGUF file, by the packages `tokenizers` and `jinja2`."""

import importlib.util

from .dialogue_template import rendered
from .errors import DataError
from .printable import printable

__all__ = ["Tokens"]

_SPLITS = ("smollm", "gpt-2")  # ways to split a text into words
_NORMAL = 1  # type of a token that is text


class Tokens:
    """The tokens of a model.

    Parameters
    ----------
    file : GgufFile

    Members
    -------
    end : int
        The token that ends an answer.

    Raises
    ------
    DataError
        If a package is missing, or the file has a tokenizer of another kind. The message is one line.
    """

    def __init__(self, file):
        for package in ("tokenizers", "jinja2"):
            if importlib.util.find_spec(package) is None:
                raise DataError(f"language models need the package {package}; install it with `pip install '.[chat]'`")
        kind, split = file.fact("tokenizer.ggml.model", str), file.fact("tokenizer.ggml.pre", str, "gpt-2")
        if kind != "gpt2" or split not in _SPLITS:
            raise DataError(f"its tokenizer is {kind} {split}; gpt2 with {' or '.join(_SPLITS)} can be used")
        self._template = file.fact("tokenizer.chat_template", str, "")
        self.end = file.fact("tokenizer.ggml.eos_token_id")
        self._tokenizer = _tokenizer(file, split)

    def encoded(self, text):
        """Returns the tokens of a text. Marks of a dialogue in it are text, too."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def dialogue(self, question, system=None):
        """Returns the tokens of a dialogue with one question, up to the answer."""
        if not self._template:
            raise DataError("it has no dialogue template; use `tpu text`")
        messages = [{"role": "system", "content": system}] * bool(system) + [{"role": "user", "content": question}]
        return self.encoded(rendered(self._template, messages))

    def decoder(self):
        """Returns a function of a token that returns the text that is complete with it."""
        ids, shown = [], 0

        def text(token):
            nonlocal shown
            ids.append(token)
            found = self._tokenizer.decode(ids, skip_special_tokens=True)
            if found.endswith("\N{REPLACEMENT CHARACTER}"):
                return ""
            new, shown = found[shown:], len(found)
            return new

        return text


def _tokenizer(file, split):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    names = file.texts("tokenizer.ggml.tokens")
    merges = [tuple(one.split(" ", 1)) for one in file.texts("tokenizer.ggml.merges")]
    try:
        made = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=merges))
    except Exception as error:  # the package has no narrower one
        raise DataError(f"its tokenizer is damaged: {printable(error)}") from None
    words = [pre_tokenizers.Digits(individual_digits=True)] * (split == "smollm")
    made.pre_tokenizer = pre_tokenizers.Sequence([*words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    types = file.fact("tokenizer.ggml.token_type", list, ())
    made.add_special_tokens([AddedToken(name, special=True) for name, kind in zip(names, types) if kind != _NORMAL])
    return made
