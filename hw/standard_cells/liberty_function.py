"""Boolean functions of Liberty files, on integers whose bits are independent samples."""

import re

__all__ = ["compile_function", "names_in"]

_TOKEN = re.compile(r"[A-Za-z_][\w\[\]]*|[01]|[!'&*|+^()]")
_NAME = re.compile(r"[A-Za-z_][\w\[\]]*")


def names_in(text):
    """Returns the names in a function, as a set."""
    return set(_NAME.findall(text))


def compile_function(text):
    """Returns `f(values, ones)` of a function such as `!((A & B) | C')`.

    `values` maps each name to an integer, and `ones` is the integer with all bits set. Operators bind in the order `'` and `!`,
    `^`, `&` or `*` or a space, `|` or `+`. Raises ValueError if the text is not a function.
    """
    tokens = _TOKEN.findall(text)
    if not tokens or "".join(tokens) != re.sub(r"\s", "", text):
        raise ValueError(f"{text!r} is not a Boolean function")
    tokens.reverse()  # the next token is the last
    function = _sum(tokens)
    if tokens:
        raise ValueError(f"{text!r} is not a Boolean function")
    return function


def _sum(tokens):
    left = _product(tokens)
    while tokens and tokens[-1] in "|+":
        tokens.pop()
        left = _or(left, _product(tokens))
    return left


def _product(tokens):
    left = _difference(tokens)
    while tokens and tokens[-1] not in "|+)":
        if tokens[-1] in "&*":
            tokens.pop()
        left = _and(left, _difference(tokens))
    return left


def _difference(tokens):
    left = _factor(tokens)
    while tokens and tokens[-1] == "^":
        tokens.pop()
        left = _xor(left, _factor(tokens))
    return left


def _factor(tokens):
    token = tokens.pop() if tokens else ""
    if token == "!":
        return _not(_factor(tokens))
    if token == "(":
        value = _sum(tokens)
        if not tokens or tokens.pop() != ")":
            raise ValueError("a Boolean function has an open parenthesis")
    elif token == "1":
        value = lambda values, ones: ones  # noqa: E731
    elif token == "0":
        value = lambda values, ones: 0  # noqa: E731
    elif _NAME.fullmatch(token):
        value = lambda values, ones: values[token]  # noqa: E731
    else:
        raise ValueError(f"a Boolean function has {token!r} at the wrong place")
    while tokens and tokens[-1] == "'":
        tokens.pop()
        value = _not(value)
    return value


def _not(one):
    return lambda values, ones: ones ^ one(values, ones)


def _and(one, two):
    return lambda values, ones: one(values, ones) & two(values, ones)


def _or(one, two):
    return lambda values, ones: one(values, ones) | two(values, ones)


def _xor(one, two):
    return lambda values, ones: one(values, ones) ^ two(values, ones)
