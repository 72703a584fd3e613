"""The text form of a graph: a line for each tensor and a line for each stage.

An array is shown as its shape and a checksum of its bits. Different graphs therefore have different texts, unless checksums
collide.
"""

import zlib

import numpy as np

from ..functions.functions import NONE

__all__ = ["graph_text"]


def graph_text(graph):
    """Returns the text of a :class:`sim.ir.graph.Graph`."""
    orders = ("input order", graph.input_order), ("output order", graph.output_order)
    given = [f" | {name} {_array(order)}" for name, order in orders if order is not None]
    lines = [f"graph {graph.name}: {', '.join(graph.input_names)} -> {graph.output}" + "".join(given)]
    lines += map(_feed, graph.feeds)
    lines += map(_tensor, graph.tensors.values())
    lines += map(_gather, graph.gathers)
    return "\n".join([*lines, *map(_stage, graph.stages)])


def _by(sizes):
    return "x".join(map(str, sizes))


def _array(values):
    return f"{_by(values.shape)}#{zlib.crc32(np.ascontiguousarray(values).tobytes()):08x}"


def _given(record, **usual):
    fields = [(name, getattr(record, name)) for name, value in usual.items() if getattr(record, name) != value]
    return [name if value is True else f"{name} {_by(value) if isinstance(value, tuple) else value}" for name, value in fields]


def _tensor(tensor):
    view = tensor.view
    options = [f"transpose of {view.of}", *_given(view, rows=1, step=0, before=0)] if view else ()
    return " ".join([f"tensor {tensor.name}: {_by(tensor.shape)}", *options])


def _feed(feed):
    table = f" rows of {_array(feed.table)}" if feed.table is not None else ""
    return f"feed {feed.tensor}: {_array(feed.places)}{table}"


def _gather(gather):
    windows = f": windows {_by(gather.term.kernel)} of {gather.source}" if gather.term else ""
    options = _given(gather.term, stride=(1, 1), dilation=(1, 1), padding=(0, 0)) if gather.term else ()
    return " ".join([f"gather {gather.tensor.name}{windows}", *options])


def _term(term):
    options = _given(term, stride=(1, 1), dilation=(1, 1), padding=(0, 0), groups=1, rows=False, sparse=False, fixed=False)
    weights = term.data or _array(term.weights)
    return f"{term.source} * {weights}" + (f" ({', '.join(options)})" if options else "")


def _stage(stage):
    parts = [" + ".join(([f"bias {_array(stage.bias)}"] if stage.bias is not None else []) + [*map(_term, stage.terms)])]
    if stage.pool:
        options = _given(stage.pool, stride=(1, 1), dilation=(1, 1), padding=(0, 0))
        parts.append(" ".join([f"pool {_by(stage.pool.window)} to {_by(stage.pool.size)}", *options]))
    parts += [str(stage.function)] * (stage.function != NONE) + ["softmax"] * stage.softmax
    parts += [f"times {stage.times}"] * bool(stage.times)
    parts += _given(stage, origin=(0, 0), reflow=False)
    return f"stage {stage.name}: {stage.output} {_by(stage.size)} = " + " | ".join(parts)
