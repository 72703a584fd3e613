"""The JSON that commands print with `--json`. `output.schema.json` beside this file says what is in it: `made_by`, `model` and
`core` are the same objects everywhere."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from amaranth_tpu.hw.verilog.header import package_version

__all__ = ["model_object", "print_json"]


def model_object(model):
    """Returns the object `model` of an ONNX file's path, or of the name of a shipped network."""
    from amaranth_tpu.sim.models.shipped import SHIPPED

    path = Path(SHIPPED.get(str(model), model))
    return {"name": str(model) if str(model) in SHIPPED else path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def print_json(figures, **objects):
    """Prints figures and `made_by`, with `model` and `core` before them where the command has these: a :func:`model_object`, and
    a Config or None."""
    if objects.get("core"):
        objects["core"] = asdict(objects["core"])
    made_by = {"name": "amaranth-tpu", "version": package_version()}
    print(json.dumps({"made_by": made_by} | objects | {name: value for name, value in figures.items() if name not in objects}))
