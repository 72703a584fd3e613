"""Metrics of a trained classifier beside accuracy: top-k accuracy, confusion matrix, precision, recall, perplexity."""

import numpy as np

from ..data.labels import PADDING
from ..golden.losses import cross_entropy, one_hot

__all__ = ["measured"]


def _confusion(vectors, labels):
    """Returns the entries of the confusion matrix: rows are classes of the labels, columns are classes of the network."""
    classes = vectors.shape[-1]
    counts = np.bincount(labels * classes + vectors.argmax(axis=-1), minlength=classes**2).reshape(classes, classes)
    right = np.diag(counts)
    shares = {"precision": counts.sum(axis=0), "recall": counts.sum(axis=1)}
    return {"confusion": counts.tolist()} | {
        name: [int(one) / int(all_of) if all_of else None for one, all_of in zip(right, total)] for name, total in shares.items()
    }


def measured(names, vectors, labels):
    """Computes metrics. Returns {name: number or list}; `confusion` also gives `precision` and `recall`, with None for classes
    that never occur.

    Parameters
    ----------
    names : sequence of str
    vectors : float array (count, positions, classes)
        Logits.
    labels : int array (count, positions)
        `PADDING` does not count.
    """
    vectors, labels = vectors.reshape(-1, vectors.shape[-1]), np.asarray(labels).reshape(-1)
    vectors, labels = vectors[labels != PADDING], labels[labels != PADDING]
    found = {}
    for name in names:
        if name == "confusion":
            found |= _confusion(vectors, labels)
        elif name == "perplexity":
            found[name] = float(np.exp(cross_entropy(vectors, one_hot(labels, vectors.shape[-1]))))
        else:
            above = (vectors > np.take_along_axis(vectors, labels[:, None], axis=1)).sum(axis=1)
            found[name] = float((above < int(name.removeprefix("top-"))).mean())
    return found
