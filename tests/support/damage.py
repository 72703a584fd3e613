"""Model files with random damage in their bytes or in the fields of their protobuf message."""

import onnx
from onnx import helper

from onnx_mutations import bases

#: Names that would control a terminal, hide text, or fill the screen.
HOSTILE = (
    "\x1b[31mred\x1b]0;title\x07",
    "two\nlines\r",
    "\u202efdp.exe",
    "zero\u200bwidth\ufeff",
    "[bold]markup[/]",
    "e" + "\u0301" * 99,
    "long" * 9000,
    "\x00",
    "\x9b2J",
    "{0}%s",
    "../../etc/passwd",
    "\ud83d",
)
_NUMBERS = (0, 1, -1, 2, 3, 7, 255, 4097, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 62) + 1, -(1 << 63))


def originals(rng):
    models = bases(rng)
    model = onnx.ModelProto.FromString(models[0].SerializeToString())
    opsets = [helper.make_opsetid("", 13)]
    model.functions.append(helper.make_function("own", "f", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], opsets))
    model.graph.node[1].CopyFrom(
        helper.make_node("f", list(model.graph.node[1].input), list(model.graph.node[1].output), "call", domain="own")
    )
    model.opset_import.add(domain="own", version=1)
    model.metadata_props.add(key="preprocess", value="unit")
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], "weights.bin", 0, 4 * 96)
    model.graph.initializer[0].ClearField("raw_data")
    return [*models, model]


def damaged(model, rng):
    """Returns the bytes of a model with random damage: a changed field, a cut end, missing, inserted or flipped bits."""
    number = int(rng.integers(5))
    if number == 0:
        model = onnx.ModelProto.FromString(model.SerializeToString())
        for _ in range(rng.integers(1, 3)):
            _change_field(model, rng)
        return model.SerializeToString()
    content = bytearray(model.SerializeToString())
    place = int(rng.integers(len(content)))
    if number == 1:
        del content[place:]
    elif number == 2:
        del content[place : place + int(rng.integers(1, 40))]
    elif number == 3:
        content[place:place] = rng.bytes(int(rng.integers(1, 40)))
    else:
        for _ in range(rng.integers(1, 9)):
            content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    return bytes(content)


def _messages(message):
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from _messages(inner)


def _change_field(model, rng):
    """Changes one random field of one message: another value, a removed element, or a repeated one."""
    messages = list(_messages(model))
    message = messages[rng.integers(len(messages))]
    fields = message.ListFields()
    if not fields:
        return
    field, value = fields[rng.integers(len(fields))]
    many = not isinstance(value, (str, bytes, int, float)) and not hasattr(value, "ListFields")
    if field.type == field.TYPE_MESSAGE:
        if many and rng.random() < 0.5:
            value.append(value[rng.integers(len(value))])
        elif many:
            del value[rng.integers(len(value))]
        else:
            message.ClearField(field.name)
        return
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        new = HOSTILE[rng.integers(len(HOSTILE) - 1)]  # an unpaired surrogate cannot be stored in a message
        new = new.encode() if field.type == field.TYPE_BYTES else new
    elif field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        new = (0.0, -1.0, float("nan"), float("inf"), 1e30)[rng.integers(5)]
    else:
        new = _NUMBERS[rng.integers(len(_NUMBERS))]
        new = new if field.type in (field.TYPE_INT64,) else max(-(1 << 31), min(new, (1 << 31) - 1))
        if field.type == field.TYPE_ENUM:
            values = field.enum_type.values
            new = values[rng.integers(len(values))].number
        elif field.type == field.TYPE_UINT64:
            new = abs(new)
    if many:
        value[rng.integers(len(value))] = new
    else:
        setattr(message, field.name, new)
