"""The C header of a compiled network, for the driver in `hw/driver`."""

from dataclasses import astuple, fields
from math import prod

from .host_model import Needs

__all__ = ["c_header"]

#: Version of the C structures' format, equal to the driver's `TPU_MODEL_FORMAT`.
_FORMAT = 2


def _list(words):
    return "{" + ", ".join(f"{word % (1 << 32)}u" for word in words) + "}"


def _copies(name, tensor):
    rows = (
        f"    {{{copy.value}u, {copy.place}u, {_list(copy.count)}, {_list(copy.value_step)}, {_list(copy.place_step)}}},"
        for copy in tensor.copies
    )
    return "\n".join([f"static const tpu_copy {name}[] = {{", *rows, "};"])


def _tensors(name, tensors):
    names = [f"{name}_copies_{index}" for index in range(len(tensors))]
    yield from map(_copies, names, tensors)
    rows = (f"    {{{one.rows}u, {one.chunk}u, {one.step}u, {len(one.copies)}u, {key}}}," for key, one in zip(names, tensors))
    yield "\n".join([f"static const tpu_tensor {name}s[] = {{", *rows, "};"])


def _shown(shape):
    return " x ".join(map(str, shape)) or "1"


def _texts_of_parts(model):
    """Yields C comments with the range of values of each input and output, if several inputs or outputs form one vector."""
    for side, parts in (("input", model.input_parts), ("output", model.output_parts)):
        for part in parts:
            last = part.first + part.values - 1
            yield f"Values {part.first} to {last} of a sample's {side}: {part.name!r}, {_shown(part.shape)}."


def _macros(upper, model):
    """Yields `(name, value, comment)` for each macro of the header. `upper` is the prefix of the names."""
    element = "binary32" if model.output_bits == 32 else "bfloat16"
    yield "IMAGE_BYTES", model.image_bytes, "region MODEL: model.bin, from its first byte on"
    yield "IMAGE_CRC", f"0x{model.image_crc:08X}", "CRC-32 of model.bin"
    yield "INPUT_BYTES", model.input_bytes, "region INPUT, bfloat16"
    yield "OUTPUT_BYTES", model.output_bytes, f"region OUTPUT, {element}"
    yield "SCRATCH_BYTES", model.scratch_bytes, "region SCRATCH, for the core alone"
    yield "BATCH", model.batch, "samples of a run"
    yield "INPUT_VALUES", model.input_values, f"of a sample: {_shown(model.input_shape)}, the last axis fastest"
    yield "OUTPUT_VALUES", model.output_values, f"of a sample: {_shown(model.output_shape)}, the last axis fastest"
    for field, value in zip(fields(Needs), astuple(model.needs)):
        hexadecimal = field.name in ("version", "features")
        yield f"NEEDS_{field.name.upper()}", f"0x{value:08X}" if hexadecimal else value, _NEEDS_TEXTS.get(field.name, "at least")


_NEEDS_TEXTS = {
    "version": "of registers and instructions: this major half, at least this minor one",
    "n": "rows and columns of the array, exactly",
    "bus_bytes": "of a beat, exactly; fewer where this is up to 32",
    "features": "fields that must not be 0",
}


def c_header(model, name, lines=()):
    """Returns the text of the header, model.h.

    Parameters
    ----------
    model : HostModel
    name : str
        Prefix of the C identifiers, in lower case.
    lines : sequence of str
        Further lines of the comment at the top.
    """
    upper = name.upper()
    assert prod(model.input_shape) == model.input_values and prod(model.output_shape) == model.output_values
    macros = [(f"{upper}_{key}", f"{value}u", text) for key, value, text in _macros(upper, model)]
    wide, values = max(len(key) for key, _, _ in macros), max(len(value) for _, value, _ in macros)
    shapes = {
        f"{name}_{side}_shape": shape or (1,) for side, shape in (("input", model.input_shape), ("output", model.output_shape))
    }
    return "\n".join(
        [
            f"/* Network {model.name!r}, compiled for the core. Not to be changed by hand: tpu_check refuses it then.",
            *(f"   {line}" for line in lines),
            "   Include it in one file of a program; the driver's README.md has an example. On a PC without the core,",
            "   link the program with the C files of the driver's folder core, as its example_pc.c shows. */\n",
            f"#ifndef {upper}_H\n#define {upper}_H\n",
            '#include "tpu.h"\n',
            f"#if TPU_MODEL_FORMAT != {_FORMAT}",
            f'#error "this header is of format {_FORMAT}, tpu.h of another: compile the network again, with the tools of tpu.h"',
            "#endif\n",
            *(f"#define {key:{wide}} {value:{values}} /* {text} */" for key, value, text in macros),
            *(f"/* {text} */" for text in _texts_of_parts(model)),
            "",
            *(f"static const uint32_t {key}[] = {_list(shape)};" for key, shape in shapes.items()),
            "",
            *_tensors(f"{name}_input", model.input),
            *_tensors(f"{name}_output", model.output),
            "",
            f"static const tpu_model {name} = {{",
            f'    "{model.name}",',
            *(f"    {upper}_{key}," for key in ("IMAGE_BYTES", "IMAGE_CRC", "INPUT_BYTES", "OUTPUT_BYTES", "SCRATCH_BYTES")),
            *(f"    {upper}_{key}," for key in ("BATCH", "INPUT_VALUES", "OUTPUT_VALUES")),
            f"    {len(model.input_shape)}u, {len(model.output_shape)}u, {name}_input_shape, {name}_output_shape,",
            f"    {model.output_bits}u,",
            f"    TPU_LAST_{model.left_to_host.upper()},",
            "    {" + ",\n     ".join(f"{upper}_NEEDS_{field.name.upper()}" for field in fields(Needs)) + "},",
            f"    {len(model.input)}u, {name}_inputs,",
            f"    {len(model.output)}u, {name}_outputs,",
            f"    0x{model.crc:08X}u,",
            "};\n",
            "#endif\n",
        ]
    )
