"""Comparison of two ways to sum gradients over cores, by the number of 32-bit words on the links: a parameter server, and the
ring."""

from typing import Annotated

import numpy as np
import typer

from amaranth_tpu.hw.spec.isa import RingMode
from amaranth_tpu.sim.rtl.ring_buckets import random_bucket, ring_core, run_buckets

from .common import Json, Write, app, publish

__all__ = ["serve", "ring_words"]


class _Links:
    """A network between cores that counts the 32-bit words that each core sends and receives."""

    def __init__(self, size):
        self.sent, self.received = np.zeros(size, dtype=int), np.zeros(size, dtype=int)

    def carry(self, source, target, values):
        self.sent[source] += len(values)
        self.received[target] += len(values)
        return values.copy()


def serve(gradients):
    """Sums the gradients of all cores as a parameter server does: core 0 receives all gradients, adds them, and sends the sums to
    every core.

    Parameters
    ----------
    gradients : list of array float32 (values,)
        The gradients of each core.

    Returns
    -------
    sums : list of array float32 (values,)
        The sums that each core has at the end.
    sent, received : array int (cores,)
        Words sent and received by each core.
    """
    links = _Links(len(gradients))
    others = range(1, len(gradients))
    total = gradients[0].copy()
    for core in others:
        total += links.carry(core, 0, gradients[core])
    return [total, *(links.carry(0, core, total) for core in others)], links.sent, links.received


@app.command()
def ring_words(
    cores: Annotated[str, typer.Option(help="Numbers of cores.")] = "2,3,4,5,6,7,8",
    segment: Annotated[int, typer.Option(min=1, help="Vectors per segment.")] = 256,
    as_json: Json = False,
    write: Write = False,
):
    """Count the words that ALL_REDUCE sends, with verilated ring units, and the words of a parameter server."""
    config = ring_core(cell_stages=4, unified_buffer_depth=1 << 13, ring_depth=1 << 11)
    rng, sizes = np.random.default_rng(1), [int(word) for word in cores.split(",")]
    fields = dict(mode=RingMode.ALL_REDUCE, buffer=0, result=0, segment=segment, stride=segment, rounds=1)
    buckets = [random_bucket(rng, config, size, **fields) for size in sizes]
    figures = []
    for size, result in zip(sizes, run_buckets(config, buckets, [{"latency": 4}] * len(sizes))):
        values = size * segment * config.n // 2
        sums, sent, received = serve([rng.standard_normal(values).astype(np.float32) for _ in range(size)])
        if result.cycles is None or any((one != sums[0]).any() for one in sums):
            raise SystemExit(f"{size} cores: the ring's sums are wrong")
        words = [int(count) for count in result.counts[:, 0]]
        figures.append({"cores": size, "values": values, "ring": words, "server": int(sent[0]), "other": int(sent[1])})
        figures[-1]["server_received"] = int(received[0])
    rows = [
        [
            f["cores"],
            f"{f['values']:,}",
            f"{max(f['ring']):,}",
            f"{f['other']:,}",
            f"{f['server']:,}",
            f"{f['server'] / max(f['ring']):.1f}",
        ]
        for f in figures
    ]
    head = ["cores", "values", "each core of a ring sends", "each but the server sends", "the server sends", "server to ring"]
    publish("ring-words", head, rows, figures, as_json, write)
