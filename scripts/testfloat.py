"""The check of the RTL adder or multiplier, in compiled simulation, with vectors of Berkeley TestFloat.

Run `python -m amaranth_tpu.scripts.testfloat FILE`. TestFloat has subnormals and many NaNs. The core has no subnormals, and only
one NaN. Expected results are therefore flushed, and each NaN is replaced by the canonical NaN. If an operand is subnormal, the
core flushes it; the expected result is then computed by the golden model.
"""

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from amaranth_tpu.hw.arithmetic.adder import LATENCIES, Adder
from amaranth_tpu.hw.arithmetic.multiplier import LEADS, Multiplier
from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.rtl.native_cells import NativeArithmetic
from amaranth_tpu.sim.rtl.streams import SideBySide, StreamedBlock

__all__ = ["VectorCounts", "VectorError", "read_vectors", "check_file"]

_LINES = 1 << 19  # lines per block
_DIGITS = np.full(256, 0xFF, dtype=np.uint8)
for _digit in b"0123456789abcdefABCDEF":
    _DIGITS[_digit] = int(chr(_digit), 16)


class VectorError(ValueError):
    """A file does not contain TestFloat vectors; the message is one line."""


@dataclass
class VectorCounts:
    """The counts for one file of vectors. `passed` and `failed` are the vectors checked; `flushed` of them had a subnormal
    operand. `skipped` vectors are not for this block. `first` describes the first failure."""

    passed: int = 0
    failed: int = 0
    flushed: int = 0
    skipped: int = 0
    first: str = ""


def _word(text, first, digits):
    """Converts hexadecimal columns of lines of equal length to numbers. Returns an array of uint32. Returns None if a digit is
    not hexadecimal. `text` has the characters, (lines, columns)."""
    nibbles = _DIGITS[text[:, first : first + digits]]
    if (nibbles == 0xFF).any():
        return None
    word = np.zeros(len(text), dtype=np.uint32)
    for column in range(digits):
        word = word << np.uint32(4) | nibbles[:, column]
    return word


def read_vectors(path):
    """Yields `(a, b, result)`, arrays of binary32 bits, from a file of lines `a b result flags`. The file may be compressed
    with gzip. Raises VectorError if the file has another content, or no vectors."""
    path = Path(path)
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    done = 0
    try:
        with (gzip.open if packed else open)(path, "rb") as file:
            line = file.readline()
            length = len(line)
            rest = line
            while rest:
                rest += file.read(_LINES * length - len(rest))
                if rest and not rest.endswith(b"\n"):
                    rest += b"\n"
                words = None
                if len(rest) % length == 0:
                    text = np.frombuffer(rest, dtype=np.uint8).reshape(-1, length)
                    if length >= 27 and (text[:, [8, 17, 26]] == ord(" ")).all() and (text[:, -1] == ord("\n")).all():
                        words = [_word(text, first, 8) for first in (0, 9, 18)]
                if words is None or any(word is None for word in words):
                    raise VectorError(f"{path.name}: no lines 'operand operand result flags' of equal length after line {done}")
                done += len(words[0])
                yield tuple(words)
                rest = file.read(length)
    except (EOFError, gzip.BadGzipFile) as error:
        raise VectorError(f"{path.name}: damaged after line {done}: {error}") from error
    if not done:
        raise VectorError(f"{path.name}: no vectors")


def _subnormal(bits):
    return (bits & np.uint32(0x7F800000) == 0) & (bits & np.uint32(0x007FFFFF) != 0)


def _is_nan(bits):
    return bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)


def _canonical(bits):
    """Returns binary32 bits with subnormals flushed to zero, and with every NaN replaced by the canonical one."""
    bits = np.where(_subnormal(bits), bits & np.uint32(1 << 31), bits)
    return np.where(_is_nan(bits), np.uint32(golden.NAN), bits).astype(np.uint32)


def _adders():
    """Returns {name: Adder}: the general adder and a cell's adder, each with all latencies. The second operand of a cell's adder
    has only one NaN."""
    adders = {f"{latency}": Adder(latency=latency) for latency in LATENCIES}
    return {**adders, **{f"cell_{latency}": Adder(latency=latency, canonical_b=True) for latency in LATENCIES}}


def _outputs(block, components, latency_of, **columns):
    """Streams input columns through the block. Yields `(name, results)` of each component, with the outputs before its latency
    removed."""
    longest = max(map(latency_of, components.values()))
    padded = {name: np.concatenate([column, np.zeros(longest, dtype=np.uint32)]) for name, column in columns.items()}
    outputs = block.run(**padded)
    for name, component in components.items():
        start = latency_of(component)
        yield name, outputs[f"o_{name}"][start : start + len(outputs[f"o_{name}"]) - longest]


def _rtl(operation):
    """Returns a function of two arrays of operands. It yields `(name, results)` of the RTL blocks with all latencies."""
    components = _adders() if operation == "add" else {f"{lead}": Multiplier(lead=lead) for lead in LEADS}
    block = StreamedBlock(SideBySide(components))

    def multiply(x, w):
        return _outputs(block, components, lambda multiplier: multiplier.lead, x=x, w=w)

    def add(a, b):
        # The cell's adder gets a canonical second operand; the general adder gets the operand of the file.
        for canonical, operand in ((False, b), (True, np.where(_is_nan(b), np.uint32(golden.NAN), b))):
            chosen = {name: adder for name, adder in components.items() if adder.canonical_b is canonical}
            yield from _outputs(block, chosen, lambda adder: adder.latency, a=a, b=operand)

    return add if operation == "add" else multiply


def _native(operation, arithmetic):
    compute = arithmetic.add if operation == "add" else arithmetic.multiply
    return lambda one, two: [("native", compute(one, two))]


def check_file(path, operation=None, progress=lambda count: None, arithmetic=None):
    """Computes a file of vectors in the RTL, and returns the :class:`VectorCounts`.

    Parameters
    ----------
    path : str or Path
        Vectors of TestFloat for round to nearest, ties to even.
    operation : str, optional
        `add` or `mul`. Default: by the file's name (`f32_add...`, `f32_mul...`).
    progress : callable
        Called with the number of vectors processed so far.
    arithmetic : sim.rtl.native_cells.NativeArithmetic, optional
        C functions that are checked in place of the RTL.
    """
    path = Path(path)
    if operation is None:
        operation = next((name for name in ("add", "mul") if f"f32_{name}" in path.name), None)
    if operation not in ("add", "mul"):
        raise VectorError(f"{path.name}: the name does not say f32_add or f32_mul; give --operation")
    compute = _native(operation, arithmetic) if arithmetic else _rtl(operation)
    result, high = VectorCounts(), np.uint32(16)
    for a, b, expected in read_vectors(path):
        count = len(a)
        if operation == "mul":
            fits = (a & np.uint32(0xFFFF) == 0) & (b & np.uint32(0xFFFF) == 0)
            a, b, expected = a[fits] >> high, b[fits] >> high, expected[fits]
            result.skipped += count - len(a)
        flushed = _subnormal(a) | _subnormal(b) if operation == "add" else _subnormal(a << high) | _subnormal(b << high)
        result.flushed += int(flushed.sum())
        expected = _canonical(expected)
        expected[flushed] = (golden.add if operation == "add" else golden.multiply)(a[flushed], b[flushed])
        wrong = np.zeros(len(a), dtype=bool)
        for name, found in compute(a, b):
            differs = found != expected
            wrong |= differs
            if differs.any() and not result.first:
                at = int(np.flatnonzero(differs)[0])
                result.first = f"{name}: {a[at]:08x} {b[at]:08x} gave {found[at]:08x}, not {expected[at]:08x}"
        result.failed += int(wrong.sum())
        result.passed += int((~wrong).sum())
        progress(result.passed + result.failed + result.skipped)
    return result


def main(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="TestFloat vectors, gzip or plain text.")],
    operation: Annotated[str, typer.Option(help="add or mul. Default: by the file's name.")] = None,
    native: Annotated[bool, typer.Option("--native", help="Check the C functions of native cells, not the RTL.")] = False,
):
    """Stream TestFloat vectors (round to nearest even) through the RTL adder or multiplier with every latency."""
    try:
        result = check_file(file, operation, arithmetic=NativeArithmetic() if native else None)
    except VectorError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(
        f"{file.name}: {result.passed} passed, {result.failed} failed, {result.skipped} skipped "
        f"({result.flushed} with a subnormal operand, flushed)"
    )
    if result.first:
        typer.echo(f"first failure, {result.first}", err=True)
    raise typer.Exit(1 if result.failed or not result.passed else 0)


if __name__ == "__main__":
    typer.run(main)
