"""Embeddings in a graph of the compiler: tables that the host reads become weights of a stage over one-hot rows."""

from dataclasses import replace

import numpy as np
from ml_dtypes import bfloat16

from ..ir.errors import ModelError
from ..ir.sample_order import Feed
from ..ir.stage import Stage

__all__ = ["MOST_ROWS", "with_embeddings", "tied_terms"]

#: Most rows of a trained table: each row is a channel of the one-hot input.
MOST_ROWS = 4096


def with_embeddings(graph):
    """Returns the graph with a stage for each table that the host reads. The stage multiplies one-hot rows by the table, so that
    its results have the bits of the table's rows. The last `feeds` of the graph give the one-hot rows.

    Raises
    ------
    sim.ir.errors.ModelError
        If a table has more than `MOST_ROWS` rows. The message is one line.
    """
    if all(feed.table is None for feed in graph.feeds):
        return graph
    made, feeds = graph.copied(), []
    made.stages = []
    for feed in graph.feeds:
        if feed.table is None:
            feeds.append(feed)
            continue
        rows, tensor = len(feed.table), graph.tensors[feed.tensor]
        if rows > MOST_ROWS:
            raise ModelError(
                f"{graph.name}: its table of embeddings {feed.tensor!r} has {rows:,} rows; give it {MOST_ROWS:,} at most"
            )
        name = made.add_tensor(f"{feed.tensor} one-hot", (tensor.height, tensor.width, rows))
        feeds.append(Feed(name, feed.places, np.eye(rows, dtype=np.float32)))
        weights = feed.table.astype(np.float32).astype(bfloat16)[None, None]
        term, title = made.term(name, f"{feed.tensor}.weights", weights), f"operator Gather, tensor {feed.tensor!r}"
        stage = Stage(feed.tensor, (term,), (tensor.height, tensor.width), name=feed.tensor, title=title)
        made.stages.append(stage)
    made.stages += graph.stages
    return replace(made, feeds=tuple(feeds), inputs=(*(feed.tensor for feed in feeds), *graph.masks))


def tied_terms(graph, name):
    """Returns the names of the other weights that are the transpose of these weights of an embedding: the language-model head of
    a model with tied embeddings."""
    weights, terms = graph.constants[name], [term for stage in graph.stages for term in stage.terms]
    source = next(term.source for term in terms if term.weights == name)
    if not any(feed.tensor == source and feed.table is not None for feed in graph.feeds) or len(np.unique(weights)) <= 2:
        return ()
    others = [term.weights for term in terms if term.weights in graph.constants and not term.fixed and term.weights != name]
    return tuple(other for other in others if np.array_equal(graph.constants[other], weights.swapaxes(1, 2)))
