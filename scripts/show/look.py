"""The colours of all pictures, for light and dark pages. They can be distinguished with any kind of colour vision.

The colours for data are from Okabe and Ito, Color Universal Design (2008), without black and yellow. Each has a lighter or darker
variant for the other page. Position, shape or text always repeats the meaning of a colour.
"""

__all__ = ["COLOURS", "DARK", "dark_rules"]

#: Name to its colours on a light page and on a dark page.
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
    """Returns the CSS rules for dark pages. `selectors` maps a selector with a property, such as `.x fill`, to the name of a
    colour."""
    rules = "".join("{}{{{}:{}!important}}".format(*place.rsplit(" ", 1), COLOURS[name][1]) for place, name in selectors.items())
    return f"{DARK}{{{rules}}}"
