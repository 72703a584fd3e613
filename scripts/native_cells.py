"""The check of native cells: `python -m amaranth_tpu.scripts.native_cells --pairs 4294967296`, some minutes.

The C functions in `sim/rtl/native_cells.h` and the golden model compute the same pairs of operands, and every bit is compared.
The pairs are all pairs of special values, and `--pairs` further ones for each function. With 2^32 of these, the multiplier gets
every pair of bfloat16 numbers. For vectors of TestFloat, see `python -m amaranth_tpu.scripts.testfloat FILE --native`.
"""

import itertools
import shlex
from typing import Annotated

import numpy as np
import typer

from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.rtl.native_cells import NativeArithmetic

from .cli.command_line import console
from .show.terminal import progress_bar

__all__ = ["compare", "random_pairs", "special_pairs"]

_BLOCK = 1 << 20  # pairs per call
_STRIDE = 0x9E3779B1  # odd: its multiples modulo 2^32 are all numbers of 32 bits

#: Both signs of: zero, subnormals, the least normal numbers, 1, its neighbours, the largest number, infinity, NaNs.
_SPECIALS = [
    sign | bits
    for sign in (0, 1 << 31)
    for bits in (
        *(0x00000000, 0x00000001, 0x00010000, 0x00400000, 0x007FFFFF, 0x00800000, 0x00800001, 0x00FFFFFF, 0x01000000),
        *(0x1FFF0000, 0x20000000, 0x33800000, 0x34000000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x4B800000, 0x5F7F0000),
        *(0x5F800000, 0x7F000000, 0x7F7F0000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FA00000, 0x7FC00000, 0x7FFFFFFF),
    )
]


def special_pairs(width):
    """Returns all pairs of special values as two arrays of bit patterns. `width` is 32, or 16 for bfloat16."""
    values = sorted({bits >> 32 - width for bits in _SPECIALS})
    one, two = zip(*itertools.product(values, values))
    return np.array(one, np.uint32), np.array(two, np.uint32)


def random_pairs(rng, width, first, count):
    """Returns pairs number `first` to `first + count - 1` as two arrays of bit patterns.

    Numbers of 16 bits form every pair once in 2^32 pairs. Numbers of 32 bits are random. In half of the pairs, the exponents
    differ by at most 28, so that rounding and cancellation are frequent.
    """
    if width == 16:
        index = np.arange(first, first + count, dtype=np.uint64).astype(np.uint32) * np.uint32(_STRIDE)
        return index >> np.uint32(16), index & np.uint32(0xFFFF)
    a, b = rng.integers(0, 1 << 32, (2, count), dtype=np.uint32)
    exponent = (a >> np.uint32(23) & np.uint32(255)).astype(np.int32) + rng.integers(-28, 29, count, dtype=np.int32)
    near = b & np.uint32(0x807FFFFF) | np.clip(exponent, 0, 255).astype(np.uint32) << np.uint32(23)
    return a, np.where(np.arange(count) & 1, near, b)


def compare(arithmetic, pairs, rng, progress=lambda done, total: None):
    """Compares functions of native cells with the golden model. Returns the number of differing results, and a text about the
    first one.

    Parameters
    ----------
    arithmetic : NativeArithmetic
    pairs : int
        Pairs for each function, beside the pairs of special values.
    progress : callable
        Called with `(pairs done, all pairs)`.
    """
    wrong, text = 0, ""
    functions = (("add", 32, arithmetic.add, golden.add), ("multiply", 16, arithmetic.multiply, golden.multiply))
    for number, (name, width, native, exact) in enumerate(functions):
        starts = range(0, pairs, _BLOCK)
        blocks = (random_pairs(rng, width, first, min(_BLOCK, pairs - first)) for first in starts)
        for done, (one, two) in enumerate(itertools.chain([special_pairs(width)], blocks)):
            found, expected = native(one, two), exact(one, two)
            differing = np.flatnonzero(found != expected)
            if len(differing) and not wrong:
                at = differing[0]
                text = f"{name} {one[at]:08x} {two[at]:08x} gave {found[at]:08x}, not {expected[at]:08x}"
            wrong += len(differing)
            progress(number * pairs + min(done * _BLOCK, pairs), len(functions) * pairs)
    return wrong, text


def main(
    pairs: Annotated[int, typer.Option(min=0, help="Random pairs of operands for each function.")] = 1 << 24,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random operands.")] = 1,
    compiler: Annotated[str, typer.Option(help="C++ compiler, with options.")] = "g++",
    emulator: Annotated[str, typer.Option(help="Program that executes code of another processor, such as qemu-aarch64.")] = "",
):
    """Compare the C functions of native cells with the golden model, bit for bit."""
    arithmetic = NativeArithmetic(compiler=shlex.split(compiler), emulator=shlex.split(emulator))
    with progress_bar(console, "comparing (pairs)") as advance:
        wrong, text = compare(arithmetic, pairs, np.random.default_rng(seed), advance)
    typer.echo(f"{2 * pairs:,} pairs and all pairs of special values: {wrong:,} results differ from the golden model")
    if wrong:
        typer.echo(f"first: {text}", err=True)
    raise typer.Exit(wrong > 0)


if __name__ == "__main__":
    typer.run(main)
