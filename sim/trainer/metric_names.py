"""Names of the metrics beside accuracy. The command line reads this file before numpy is imported."""

import re

__all__ = ["FORMS", "parse_metric"]

#: Forms of the option `--metric`.
FORMS = "`top-5` (any number), `confusion` (with precision and recall of each class), `perplexity`"


def parse_metric(text):
    """Checks the name of a metric. Returns it. Raises ValueError, with a message of one line, for other names."""
    if re.fullmatch(r"top-[1-9]\d{0,5}|confusion|perplexity", text):
        return text
    raise ValueError(f"{text!r} is not a metric; write {FORMS.replace('`', '')}")
