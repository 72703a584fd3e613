"""Embeddings in a graph of the compiler: tables that the host reads become weights of a stage over one-hot rows."""

from dataclasses import replace

import numpy as np
from ml_dtypes import bfloat16

from ..ir.errors import ModelError
from ..ir.graph import Feed, Stage, Tensor, Term

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
    tensors, feeds, stages = dict(graph.tensors), [], []
    for feed in graph.feeds:
        if feed.table is None:
            feeds.append(feed)
            continue
        rows, tensor = len(feed.table), tensors[feed.tensor]
        if rows > MOST_ROWS:
            raise ModelError(
                f"{graph.name}: its table of embeddings {feed.tensor!r} has {rows:,} rows; training takes at most {MOST_ROWS:,}"
            )
        name = f"{feed.tensor} one-hot"
        tensors[name] = Tensor(name, rows, tensor.height, tensor.width)
        feeds.append(Feed(name, feed.places, np.eye(rows, dtype=np.float32)))
        weights = feed.table.astype(np.float32).astype(bfloat16)[None, None]
        title = f"operator Gather, tensor {feed.tensor!r}"
        stages.append(Stage(feed.tensor, feed.tensor, (Term(name, weights),), (tensor.height, tensor.width), title=title))
    entry = feeds[0].tensor
    return replace(graph, tensors=tensors, feeds=tuple(feeds), input=entry, stages=(*stages, *graph.stages))


def tied_terms(graph, stage, term):
    """Returns the other trained terms, as (stage, term), whose weights are the transpose of this embedding's: the language-model
    head of a model with tied embeddings."""
    weights = graph.stages[stage].terms[term].weights
    if not any(feed.tensor == graph.stages[stage].terms[term].source and feed.table is not None for feed in graph.feeds):
        return ()
    found = []
    for number, other in enumerate(graph.stages):
        for place, one in enumerate(other.terms):
            plain = one.weights.shape == weights.shape[:2] + weights.shape[:1:-1] and not (one.fixed or one.data)
            if number != stage and plain and np.array_equal(one.weights, weights.swapaxes(2, 3)) and len(np.unique(weights)) > 2:
                found.append((number, place))
    return tuple(found)
