"""The JSON output of commands with `--json`. `output.schema.json` in this folder is its schema.

The objects `made_by`, `model` and `core` have the same form for all commands.
"""

import json
from dataclasses import asdict
from pathlib import Path

from amaranth_tpu.hw.verilog.header import package_version, source

__all__ = ["model_object", "print_json"]


def model_object(model):
    """Returns the name and the SHA-256 of a model as a JSON object. The argument is the path of an ONNX file, or the name of a
    shipped network. Raises ModelError if the file cannot be read."""
    import hashlib

    from amaranth_tpu.sim.data.printable import printable
    from amaranth_tpu.sim.ir.errors import ModelError
    from amaranth_tpu.sim.models.shipped import GPT, GPT_NAME, SHIPPED

    shipped = SHIPPED | {GPT_NAME: GPT}
    path = Path(shipped.get(str(model), model))
    try:
        content = path.read_bytes()
    except OSError as error:
        names = "" if path.suffix else f", or a shipped network: {', '.join(SHIPPED)}"
        raise ModelError(f"{printable(path)}: {error.strerror or error}; name an ONNX file{names}") from None
    return {"name": str(model) if str(model) in shipped else path.name, "sha256": hashlib.sha256(content).hexdigest()}


def print_json(figures, **objects):
    """Prints a JSON object: `made_by` (name, version and, if known, commit of this package), then `objects`, then the figures.

    `objects` may be `model`, from :func:`model_object`, and `core`, a Config or None.
    """
    if objects.get("core"):
        objects["core"] = asdict(objects["core"])
    made_by = {"name": "amaranth-tpu", "version": package_version(), "commit": source().removeprefix("commit ") or None}
    print(json.dumps({"made_by": made_by} | objects | {name: value for name, value in figures.items() if name not in objects}))
