"""The description of a program for its host, as numbers. The C header and `layout.json` are made from it."""

import re
import zlib
from dataclasses import astuple, dataclass

from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Region
from amaranth_tpu.hw.spec.registers import REGISTER, VERSION

from ..compiler.errors import CompileError
from .tensors import HostTensor, input_tensors, output_tensors

__all__ = ["LAST", "Needs", "VectorSlice", "HostModel", "host_model"]

_ODD = re.compile(r"[^\w.+ -]", re.ASCII)  # characters that might end a string or a comment in C
#: Operators that the host may have to compute after the last layer, in the order of the driver's `enum tpu_last`.
LAST = ("none", "softmax", "log_softmax", "argmax")


@dataclass(frozen=True)
class Needs:
    """The properties that a core must have to execute a program.

    `n` must be equal to the core's. `bus_bytes` must be equal, or smaller if both are at most 32. All other values are minima.
    `features` is a mask: the selected fields of the register `features` must not be 0.
    """

    version: int
    n: int
    bus_bytes: int
    in_flight: int
    unified_buffer_depth: int
    accumulator_depth: int
    bias_depth: int
    weight_fifo_depth: int
    features: int


@dataclass(frozen=True)
class VectorSlice:
    """One of several inputs or outputs that form one vector: `values` values, starting at index `first` of the vector."""

    name: str
    shape: tuple[int, ...]
    first: int
    values: int


@dataclass(frozen=True)
class HostModel:
    """The contents of the driver's structure `tpu_model`: sizes of regions in bytes; number of values and shapes of one sample,
    as in the ONNX model."""

    name: str
    image_bytes: int
    image_crc: int
    input_bytes: int
    output_bytes: int
    scratch_bytes: int
    batch: int
    input_values: int
    output_values: int
    output_bits: int
    last: int
    needs: Needs
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    input: tuple[HostTensor, ...]
    output: tuple[HostTensor, ...]
    input_parts: tuple[VectorSlice, ...]
    output_parts: tuple[VectorSlice, ...]

    @property
    def left_to_host(self):
        """Returns the operator that the host must compute after the last layer, one of `LAST`."""
        return LAST[self.last]

    @property
    def crc(self):
        """Returns the CRC-32 of all fields of the header. The driver's `tpu_check_header` compares it."""
        words = [self.image_bytes, self.image_crc, self.input_bytes, self.output_bytes, self.scratch_bytes, self.batch]
        words += [self.input_values, self.output_values, self.output_bits, self.last, *astuple(self.needs)]
        words += [len(self.input_shape), len(self.output_shape), len(self.input), len(self.output)]
        words += [*self.input_shape, *self.output_shape]
        for tensor in (*self.input, *self.output):
            words += [tensor.rows, tensor.chunk, tensor.step, len(tensor.copies)]
            for copy in tensor.copies:
                words += [copy.value, copy.place, *copy.count, *copy.value_step, *copy.place_step]
        return zlib.crc32(self.name.encode() + b"".join((word % (1 << 32)).to_bytes(4, "little") for word in words))


def _features(program):
    records = [(INSTRUCTIONS[op.opcode], op.fields) for op in program.ops]
    needed = {record.needs for record, _ in records}
    used = [(field, fields.get(field.name, 0)) for record, fields in records for field in record.fields if not field.plain]
    needed |= {field.needs for field, value in used if getattr(value, "value", value)}  # members of an Enum are all true
    needed.discard(None)
    fields = REGISTER["features"].fields
    return sum((1 << fields[name][1]) - 1 << fields[name][0] for name in needed)


def _last(origin):
    if origin is None:
        return "none"
    if origin.is_split:
        for output in origin.outputs:
            if output.label or output.last:
                raise CompileError(
                    f"output {_ODD.sub('_', output.name)!r}, one of several, ends in an operator that is left to the host; "
                    "the C driver supports this for a single output only: remove that operator"
                )
        return "none"
    output = origin.output
    return "argmax" if output.label else {"": "none", "softmax": "softmax", "log": "log_softmax"}[output.last]


def host_model(network, program):
    """Returns the :class:`HostModel` of a network and its compiled program."""
    config, origin = program.config, network.origin
    for feed in network.feeds:
        if feed.table is not None:
            name = next(one.name for one in origin.inputs if one.place.start <= feed.places[0] < one.place.stop)
            raise CompileError(
                f"input {_ODD.sub('_', name)!r}: selects rows of a table on the host, which the C driver does not do; "
                "export the model from these rows on"
            )
    needs = Needs(
        VERSION,
        config.n,
        config.bus_bytes,
        config.in_flight,
        config.unified_buffer_depth,
        config.accumulator_depth,
        config.bias_depth,
        config.weight_fifo_depth,
        _features(program),
    )
    with_values = origin is not None and not origin.is_split and not origin.output.label
    return HostModel(
        name=_ODD.sub("_", network.name),
        image_bytes=len(program.model),
        image_crc=zlib.crc32(program.model),
        input_bytes=program.sizes[Region.INPUT],
        output_bytes=program.sizes[Region.OUTPUT],
        scratch_bytes=program.sizes[Region.SCRATCH],
        batch=program.batch,
        input_values=network.sample_size,
        output_values=network.output_size,
        output_bits=32 if program.memory.wide else 16,
        last=LAST.index(_last(origin)),
        needs=needs,
        input_shape=tuple(network.input_shape) or (network.sample_size,),
        output_shape=tuple(origin.output.shape) if with_values else (network.output_size,),
        input=tuple(input_tensors(program.memory)),
        output=tuple(output_tensors(program.memory)),
        input_parts=_parts(origin.inputs) if origin is not None and len(origin.inputs) > 1 else (),
        output_parts=_parts(origin.outputs) if origin is not None and origin.is_split else (),
    )


def _parts(ends):
    return tuple(
        VectorSlice(_ODD.sub("_", end.name), tuple(end.shape), end.place.start, end.place.stop - end.place.start) for end in ends
    )
