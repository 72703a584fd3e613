"""A recording of a small systolic array: every cell in every cycle of Y = XW + b, from the RTL of a whole core."""

from dataclasses import dataclass

import numpy as np

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.spec.cell_stages import split_stages

from ..golden.arithmetic import bfloat16
from ..ir.graph import dense_chain
from ..rtl.probes import Net, Probe
from .inference import run_samples

__all__ = ["ArrayWave", "record_wave"]

_N, _ROWS = 4, 5
_SIZES = dict(unified_buffer_depth=64, accumulator_depth=16, bias_depth=4, weight_fifo_depth=2)
_CELL = {"x": "x_i", "w": "w_i", "mark": "mark_i", "switch": "switch_i", "sums": "sum_i", "shadow": "shadow", "active": "active"}
_FLOATS = {"x": 16, "w": 16, "shadow": 16, "active": 16, "sums": 0, "out": 0}  # position of each value within a binary32


@dataclass(frozen=True)
class ArrayWave:
    """The recorded values of all cells in consecutive cycles."""

    #: x, weights, bias, y: Float32 (rows, n), (n, n), (n,), (rows, n). Operands and result of the matrix multiplication.
    x: np.ndarray
    weights: np.ndarray
    bias: np.ndarray
    y: np.ndarray
    #: Dict of array (cycles, n, n). Values of the cells, by name. Inputs of a cell in a cycle: `x`, `w`, `sums` (float32), `mark`
    #: and `switch`. Registers of a cell: the next weight, `shadow`, and the active weight, `active`.
    cells: dict
    out: np.ndarray  # Float32 (cycles, n). Sums that leave each column.
    entered: list  # List of int. For each row of `x`, the cycle in which its first value enters the upper left cell.


def _values(seed):
    """Returns `(x, weights, bias)` of small random integers. All sums are then exact and short to print."""
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(-9, 10, shape).astype(np.float32) for shape in ((_ROWS, _N), (_N, _N), (_N,)))


def _network(weights, bias):
    return dense_chain("wave", [("dense", weights.astype(bfloat16), bias, "none")])


def _probe(names):
    fields = {
        f"{name} {r} {c}": Net(f"array.row_{r}.cell_{c}.{port}")
        for name, port in names.items()
        for r in range(_N)
        for c in range(_N)
    }
    out = {f"out {c}": Net("array.sums__bottom", 32 * c, 32) for c in range(_N)}
    return Probe("array", fields | out | {"row": Net("matmul.issuer.active"), "run": Net("run.registers__active")})


def record_wave(*, seed=1, simulator="icarus"):
    """Executes one dense layer, for five samples of four values, on a core of 4 x 4 cells with one pipeline stage per cell.

    Returns an :class:`ArrayWave`, from one cycle before the first mark enters until the last sum leaves. Raises RuntimeError if a
    bit of the result differs from the golden model.
    """
    x, weights, bias = _values(seed)
    config, probe = Config(n=_N, cell_stages=1, **_SIZES, **PLAIN), _probe(_CELL)
    result = run_samples(
        _network(weights, bias), config, x, simulator=simulator, probes=(probe,), memory={"latency": 4}, quick=True
    )
    if result.fault or result.mismatched_bits:
        raise RuntimeError("the core's result differs from the golden model")
    return _wave(result, config, x, weights, bias)


def _by_cycle(rows):
    """Returns one row of values per cycle. The recording has a row only for cycles with a change."""
    found, last = [], None
    for row in rows:
        while last is not None and last["cycle"] + 1 < row["cycle"]:
            last = last | {"cycle": last["cycle"] + 1}
            found.append(last)
        found.append(last := row)
    return found


def _wave(result, config, x, weights, bias):
    rows = [row for row in _by_cycle(result.seen["array"]) if row["run"]]
    lead, latency = split_stages(config.cell_stages)
    issued = [index + 2 for index, row in enumerate(rows) if row["row"]]  # the operands arrive two cycles later
    begin = next(index for index, row in enumerate(rows) if row["mark 0 0"]) - 1
    end = issued[-1] + lead + _N * (latency + 1) + 1

    def array(name, *places):
        shape = (end - begin, *[_N] * (places[0].count(" ") + 1))
        bits = np.array([[row[f"{name} {place}"] for place in places] for row in rows[begin:end]], np.uint32).reshape(shape)
        return (bits << _FLOATS[name]).view(np.float32) if name in _FLOATS else bits

    cells = {name: array(name, *(f"{r} {c}" for r in range(_N) for c in range(_N))) for name in _CELL}
    out = array("out", *map(str, range(_N)))
    return ArrayWave(x, weights, bias, result.logits, cells, out, [index - begin for index in issued])
