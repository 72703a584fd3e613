"""The files with which a host executes a compiled network, as bytes."""

import hashlib
import json
import zlib
from dataclasses import asdict, dataclass

import numpy as np

from amaranth_tpu.hw.verilog.header import origin

from ..golden.network import core_input, run_network
from .c_header import c_header
from .copies import expand
from .host_model import HostModel, host_model

__all__ = ["FILES", "Bundle", "make_bundle", "output_image"]

#: Names of the files in a bundle.
FILES = ("model.bin", "model.h", "layout.json", "input.bin", "output.bin", "samples.bin", "results.bin")
#: Maximum line length of layout.json, without indentation.
_WIDTH = 200


@dataclass(frozen=True, eq=False)
class Bundle:
    """The files of a compiled network, and the data of its test vectors."""

    model: HostModel
    files: dict
    samples: np.ndarray  # Float32 (batch, input size). Input samples of the test vectors.
    results: np.ndarray  # Float32 (batch, output size). Results of the golden model for these samples.


def output_image(model, results):
    """Returns the contents of region OUTPUT after the core has stored `results`, (batch, values). All other bytes are 0."""
    image = np.zeros(model.output_bytes // (model.output_bits // 8), f"<u{model.output_bits // 8}")
    bits = np.ascontiguousarray(results, np.float32).view(np.uint32) >> np.uint32(32 - model.output_bits)
    for tensor in model.output:
        values, places = expand(tensor.copies)
        for sample, row in enumerate(bits):
            image[places + tensor.offset(sample)] = row[values]
    return image.tobytes()


def make_bundle(network, program, samples, *, name="model", lines=()):
    """Builds the :class:`Bundle` of a network and its compiled program.

    Parameters
    ----------
    samples : float32 (up to batch, input size)
        Samples of the test vectors. A smaller batch is padded with zeros.
    name : str
        Prefix of the C identifiers in the header.
    lines : sequence of str
        Lines of the header's first comment, which describe the origin of the network.
    """
    model = host_model(network, program)
    whole = np.zeros((program.batch, network.sample_size), np.float32)
    whole[: len(samples)] = samples
    rounded = core_input(network, whole)
    results = run_network(network, rounded)
    files = {
        "model.bin": program.model,
        "model.h": c_header(model, name, lines).encode(),
        "input.bin": program.pack_input(rounded),
        "output.bin": output_image(model, results),
        "samples.bin": whole.astype("<f4").tobytes(),
        "results.bin": results.astype("<f4").tobytes(),
    }
    stored = program.unpack_output(files["output.bin"])
    assert np.array_equal(stored.view(np.uint32), results.view(np.uint32)), "the header's places are not the program's"
    files["layout.json"] = (_json(_description(network, program, model, name, files)) + "\n").encode()
    return Bundle(model, {key: files[key] for key in FILES}, whole, results)


def _description(network, program, model, name, files):
    """Returns the contents of layout.json. hw/driver/README.md describes each entry."""
    read = network.origin
    tensors = {"input": [asdict(tensor) for tensor in model.input], "output": [asdict(tensor) for tensor in model.output]}
    return {
        "format": 2,
        "made_by": origin(),
        "network": model.name,
        "identifier": name,
        "batch": model.batch,
        "core": asdict(program.config),
        "needs": asdict(model.needs),
        "regions": {
            "MODEL": {"bytes": model.image_bytes, "file": "model.bin"},
            "INPUT": {"bytes": model.input_bytes, "file": "input.bin"},
            "OUTPUT": {"bytes": model.output_bytes, "file": "output.bin"},
            "SCRATCH": {"bytes": model.scratch_bytes, "file": None},
        },
        "input": {
            "name": None if read is None else read.input,
            "shape": list(model.input_shape),
            "values": model.input_values,
            "parts": [asdict(part) for part in model.input_parts],
            "element": "bfloat16",
            "tensors": tensors["input"],
        },
        "output": {
            "name": None if read is None or read.is_split else read.output.name,
            "shape": list(model.output_shape),
            "values": model.output_values,
            "parts": [asdict(part) for part in model.output_parts],
            "element": "binary32" if model.output_bits == 32 else "bfloat16",
            "left_to_host": model.left_to_host,
            "tensors": tensors["output"],
        },
        "vectors": {
            "samples.bin": {"element": "binary32", "shape": [model.batch, *model.input_shape]},
            "results.bin": {"element": "binary32", "shape": [model.batch, *model.output_shape]},
        },
        "predicted_cycles": program.predicted_cycles,
        "header_crc": f"0x{model.crc:08X}",
        "files": {
            key: {"bytes": len(data), "crc32": f"0x{zlib.crc32(data):08X}", "sha256": hashlib.sha256(data).hexdigest()}
            for key, data in files.items()
        },
    }


def _json(value, indent=""):
    """Formats a value as JSON. It is one line if it fits and contains no nested dictionaries."""
    text, inside = json.dumps(value), indent + "  "
    nested = isinstance(value, dict) and any(isinstance(one, dict) for one in value.values())
    if not nested and len(text) <= _WIDTH or not isinstance(value, (dict, list, tuple)):
        return text
    if isinstance(value, dict):
        lines = [f"{inside}{json.dumps(key)}: {_json(one, inside)}" for key, one in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inside + _json(one, inside) for one in value) + f"\n{indent}]"
