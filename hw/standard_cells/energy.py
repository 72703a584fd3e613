"""Energy of a multiply-accumulate from the transitions of a gate-level run with random operands.

Counted are the capacitances of pins, the internal energies of the Liberty file, and the clock pins of registers. Wires, the clock
tree and leakage are left out.
"""

import random
import struct
from collections import defaultdict

from .gate_run import GateRun

__all__ = ["MAC_SAMPLES", "energy_per_cycle", "random_operands", "run_cell"]

#: Independent cells of a run, and its cycles. Each cell takes a new weight after `_ROWS` cycles, as an array of 16 x 16 does if
#: each tile has 16 rows, its shortest time.
MAC_SAMPLES, _CYCLES, _ROWS = 64, 32, 16
_WARM_UP = 16  # cycles before the count: the pipeline fills


def _bits_of(number, width):
    """Returns the highest `width` bits of a number in binary32."""
    return struct.unpack("<I", struct.pack("<f", number))[0] >> 32 - width


def _planes(words, width):
    """Returns integers, one per bit of the words, lowest first. Bit k of an integer belongs to word k."""
    return [sum((word >> bit & 1) << k for k, word in enumerate(words)) for bit in range(width)]


def random_operands(seed=1, samples=MAC_SAMPLES, cycles=_CYCLES + _WARM_UP):
    """Yields the inputs of a cell in each cycle, {port: list of words, one per sample}.

    Operands and weights are standard normal numbers in bfloat16. Sums are sums of eight such products, as in the middle of a
    column of 16 cells. The stream of weights moves in each cycle.
    """
    rng = random.Random(seed)
    for cycle in range(cycles):
        row = cycle % _ROWS
        yield {
            "x_i": [_bits_of(rng.gauss(0, 1), 16) for _ in range(samples)],
            "w_i": [_bits_of(rng.gauss(0, 1), 16) for _ in range(samples)],
            "sum_i": [_bits_of(rng.gauss(0, 8**0.5), 32) for _ in range(samples)],
            "mark_i": [int(row == 0)] * samples,
            "switch_i": [int(row == 1)] * samples,
        }


def run_cell(module, library, seed=1):
    """Simulates a mapped cell with :func:`random_operands`. Returns `(GateRun, list of inputs, list of sums per cycle, cycles
    that were counted)`. Sums are lists of words, one per sample."""
    run, given, sums = GateRun(module, library, MAC_SAMPLES), [], []
    zeros = {name: [0] * len(bits) for name, bits in run.ports.items() if name in ("x_i", "w_i", "sum_i", "mark_i", "switch_i")}
    run.cycle(zeros | {"rst": [run.ones]}, count=False)
    for number, inputs in enumerate(random_operands(seed)):
        planes = {name: _planes(words, len(run.ports[name])) for name, words in inputs.items()}
        run.cycle(planes | {"rst": [0]}, count=number >= _WARM_UP)
        given.append(inputs)
        result = run.read("sum_o")
        sums.append([sum((plane >> k & 1) << bit for bit, plane in enumerate(result)) for k in range(MAC_SAMPLES)])
    return run, given, sums, _CYCLES


def _mean(tables, load, transition):
    return sum(table.at(load, transition) for table in tables) / len(tables) if tables else 0.0


def _loads(run):
    loads = defaultdict(float)
    for cell, nets in run.gates:
        for name in cell.inputs:
            loads[nets.get(name)] += cell.pins[name].capacitance
    return loads


def energy_per_cycle(run, library, cycles, edges):
    """Returns joules per cycle and sample.

    An edge of a net costs half its load times the square of the voltage. It also costs the internal energy of the driver's output
    pin and of the readers' input pins. The clock has two edges per cycle. Transition times of inputs are the drivers' at their
    loads, with the fastest input of the table.

    Parameters
    ----------
    run : GateRun
    cycles : int
        Cycles that were counted.
    edges : dict
        `run.settled` or `run.all_edges`.
    """
    loads, samples = _loads(run), run.ones.bit_count()
    clocks = {nets[cell.register[3]] for cell, nets in run.gates if cell.register}
    edges = dict(edges) | dict.fromkeys(clocks, 2 * cycles * samples)
    slopes = {}
    for cell, nets in run.gates:
        for pin in cell.outputs:
            if pin.name in nets:
                slopes[nets[pin.name]] = _mean(pin.transition, loads[nets[pin.name]], 0.0)
    total = sum(count * loads[net] * library.voltage**2 / 2 for net, count in edges.items())
    for cell, nets in run.gates:
        slowest = max((slopes.get(nets.get(name), 0.0) for name in cell.inputs), default=0.0)
        for pin in cell.pins.values():
            net = nets.get(pin.name)
            if count := edges.get(net, 0):
                total += count * _mean(
                    pin.energy, loads[net] if pin.output else 0.0, slowest if pin.output else slopes.get(net, 0.0)
                )
    return total / cycles / samples
