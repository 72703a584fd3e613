"""The dialogue template of a language model. It is a program of its file, so it runs in a process with limits."""

import json
import subprocess
import sys

from .errors import DataError
from .printable import printable

__all__ = ["rendered"]

_SECONDS, _BYTES = 5, 512 << 20  # CPU time, and memory with Python's own
_LETTERS = 1 << 20
_PROGRAM = """
import json, resource, sys
template, messages, limits, letters, sys.path = json.load(sys.stdin)
from jinja2.sandbox import ImmutableSandboxedEnvironment
for kind, most in limits.items():
    kind = getattr(resource, kind)
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, hard))
try:
    text = ImmutableSandboxedEnvironment().from_string(template).render(messages=messages, add_generation_prompt=True)
    found = {"text": text} if len(text) <= letters else {}
except MemoryError:
    found = {}
except Exception as error:
    found = {"error": str(error)[:1000]}
print(json.dumps(found))
"""


def rendered(template, messages):
    """Returns the text of a dialogue, up to the answer. Raises DataError, one line, if the template is damaged, or exceeds a
    limit.

    Parameters
    ----------
    template : str
        A template of the package jinja2.
    messages : list of dict
        The `role` and `content` of each message.
    """
    given = [template, messages, {"RLIMIT_CPU": _SECONDS, "RLIMIT_DATA": _BYTES}, _LETTERS, sys.path]
    done = subprocess.run([sys.executable, "-P", "-c", _PROGRAM], input=json.dumps(given).encode(), capture_output=True)
    found = json.loads(done.stdout) if done.returncode == 0 else {}
    if "text" in found:
        return found["text"]
    limits = f"it takes more than {_SECONDS} s, {_BYTES >> 20} MB or {_LETTERS:,} letters"
    raise DataError(f"its dialogue template is damaged: {printable(found.get('error', limits), 200)}; use `tpu text`")
