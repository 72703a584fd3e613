"""Measurements of rings of cores. The RTL of the ring units is simulated by Verilator."""

from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from amaranth_tpu.hw.cycles import ring_cycles
from amaranth_tpu.hw.spec.isa import RingMode
from amaranth_tpu.sim.golden.ring import words_sent
from amaranth_tpu.sim.rtl.ring_buckets import random_bucket, ring_core, run_buckets

from .common import Json, Write, app, publish

__all__ = ["ring", "ring_buckets"]


@app.command()
def ring(
    cores: Annotated[str, typer.Option(help="Numbers of cores.")] = "2,4,8",
    latencies: Annotated[str, typer.Option(help="Latencies of the links, in cycles.")] = "4,64,256",
    buckets: Annotated[str, typer.Option(help="Numbers of vectors to sum.")] = "8,64,256,1024,4096",
    as_json: Json = False,
    write: Write = False,
):
    """Measure the cycles of ALL_REDUCE in otherwise idle rings of verilated ring units, against the datasheet's formula."""
    config = ring_core(cell_stages=4, unified_buffer_depth=1 << 13, ring_depth=1 << 11)
    rng, figures, rows = np.random.default_rng(1), [], []
    sizes, links, counts = ([int(word) for word in words.split(",")] for words in (cores, latencies, buckets))
    jobs = [(vectors, size, latency) for vectors in counts for size in sizes for latency in links if vectors >= size]
    drawn = [
        random_bucket(
            rng,
            config,
            size,
            mode=RingMode.ALL_REDUCE,
            buffer=0,
            result=0,
            segment=vectors // size,
            stride=vectors // size,
            rounds=1,
        )
        for vectors, size, _ in jobs
    ]
    results = run_buckets(config, drawn, [{"latency": latency} for _, _, latency in jobs])
    for (vectors, size, latency), bucket, result in zip(jobs, drawn, results):
        formula = ring_cycles(config, RingMode.ALL_REDUCE, size, bucket.fields["segment"], 1, latency)
        right = all((found == wanted).all() for found, wanted in zip(result.memories, bucket.expected()))
        sent = int(result.counts[0, 0])
        figures.append(
            dict(vectors=vectors, cores=size, latency=latency, cycles=result.cycles, formula=formula, sent=sent, right=right)
        )
    for vectors in counts:
        found = {(f["cores"], f["latency"]): f for f in figures if f["vectors"] == vectors}
        cells = [found.get((size, latency)) for size in sizes for latency in links]
        rows.append([f"{vectors:,}", *(f"{f['cycles']:,}, {f['formula']:,}" if f else "" for f in cells)])
    head = ["vectors", *(f"{size} cores, latency {latency}" for size in sizes for latency in links)]
    publish("ring", head, rows, figures, as_json, write)
    wrong = [f for f in figures if not f["right"] or abs(f["cycles"] - f["formula"]) > max(20, 0.02 * f["formula"])]
    if wrong:
        raise SystemExit(f"wrong bits, or neither within 2 % nor 20 cycles of the formula: {wrong[0]}")


@app.command()
def ring_buckets(
    count: Annotated[int, typer.Option(min=1, help="Number of buckets.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 1,
    as_json: Json = False,
):
    """Check random buckets in rings of 1 to 8 verilated ring units, with random latencies and stalls, against golden sums."""
    config, rng = ring_core(), np.random.default_rng(seed)
    figures = {"buckets": 0, "hangs": 0, "wrong": 0, "words": 0, "cycles": 0}
    batches = [min(500, count - first) for first in range(0, count, 500)]
    for batch in track(batches, "running", console=Console(stderr=True), transient=True):
        drawn = [random_bucket(rng, config, int(rng.integers(1, 9))) for _ in range(batch)]
        links = [
            {
                "latency": int(rng.choice([0, 1, 2, 3, 7, 20, 64, 256])),
                "stall": float(rng.choice([0, 0.1, 0.5])),
                "busy": float(rng.choice([0, 0.1, 0.5])),
                "late": int(rng.choice([0, 10, 300])),
                "seed": int(rng.integers(1 << 31)),
            }
            for _ in drawn
        ]
        for bucket, result in zip(drawn, run_buckets(config, drawn, links)):
            f = bucket.fields
            words = words_sent(f["mode"], bucket.size, f["segment"] * f["rounds"], config.n)
            right = all((found == wanted).all() for found, wanted in zip(result.memories, bucket.expected()))
            figures["buckets"] += 1
            figures["hangs"] += result.cycles is None
            figures["wrong"] += not (right and (result.counts[:, :2] == words).all())
            figures["words"] += words * bucket.size
            figures["cycles"] += result.cycles or 0
    publish(None, [*figures], [[f"{value:,}" for value in figures.values()]], figures, as_json, False)
    if figures["hangs"] or figures["wrong"]:
        raise SystemExit("a ring is deadlocked, or its sums are wrong")
