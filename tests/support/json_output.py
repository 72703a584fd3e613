"""A parser of `--json` output that checks it against the documented schema."""

import json
import warnings
from pathlib import Path

import amaranth.lib.meta  # noqa: F401 -- it makes jschon's catalogue of the draft
import jschon

from amaranth_tpu.scripts import cli

SCHEMA = json.loads((Path(cli.__file__).parent / "output.schema.json").read_text())
_KINDS = {}


def printed(kind, text):
    value = json.loads(text)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # jschon's of rfc3986
        if kind not in _KINDS:
            whole = SCHEMA | {"$id": f"{SCHEMA['$id']}:{kind}", "$ref": f"#/$defs/{kind}"}
            del whole["anyOf"]
            _KINDS[kind] = jschon.JSONSchema(whole)
        result = _KINDS[kind].evaluate(jschon.JSON(value))
        assert result.valid, json.dumps(result.output("basic"), indent=1)[:3000]
    return value
