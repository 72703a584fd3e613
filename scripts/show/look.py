"""The look of all pictures: one set of colours for light and for dark pages, told apart with any kind of colour vision.

The colours of data are those of Okabe and Ito, Color Universal Design (2008), black and yellow left out; each has a lighter or
darker neighbour for the other page. What they stand for is also said by place, shape or words.
"""

__all__ = ["COLOURS", "DARK", "dark_rules"]

#: Name to its colour on a light page, and on a dark one.
COLOURS = {
    "ground": ("#ffffff", "#14171c"),
    "panel": ("#f3f4f6", "#20252d"),
    "line": ("#c9ced6", "#3d4652"),
    "ink": ("#1b1f24", "#e8ebf0"),
    "faint": ("#5d6673", "#9aa5b4"),
    "blue": ("#0072b2", "#58b4ea"),
    "orange": ("#c26a00", "#f0a63c"),
    "green": ("#00795a", "#2fc79d"),
    "red": ("#c04a00", "#ff8a4f"),
    "purple": ("#a8558a", "#e0a0c8"),
    "sky": ("#3f9fd4", "#7cc8f2"),
    "sand": ("#b39800", "#e8dc5c"),
    "grey": ("#767d87", "#8e97a3"),
}

DARK = "@media (prefers-color-scheme: dark)"


def dark_rules(selectors):
    """CSS that gives a page's elements their dark colours: `selectors` maps a selector and property, as `.x fill`, to a name."""
    rules = "".join("{}{{{}:{}!important}}".format(*place.rsplit(" ", 1), COLOURS[name][1]) for place, name in selectors.items())
    return f"{DARK}{{{rules}}}"
