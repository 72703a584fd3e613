"""Bench of the accumulators: random traffic on all ports, compared with a model that was written from the component's docstring
alone."""

import cocotb

from amaranth_tpu.hw.array.accumulators import Accumulators

from ..rtl.bench_side import arguments, report
from ..rtl.ports import play


def _random_biases(rng, first, *, n, depth, halves):
    """Draws a random write of biases or halves of biases. Returns the inputs of the port, and `(row, mask, value)` for each lane.

    With `first`, a row number, the write covers that whole row.
    """
    writes = first is not None or rng.random() < 0.3
    sides = [rng.randrange(depth) if first is None else first for _ in range(2 if halves else 1)]
    enables = [int(writes and (first is not None or not halves or rng.getrandbits(1))) for _ in range(2 * n)]
    data = [rng.getrandbits(16 if halves else 32) for _ in range(n)]
    inputs = {"biases__write": enables if halves else writes, "biases__row": sides, "biases__data": data}
    lanes = []
    for c in range(n):
        mask = 0xFFFF * enables[2 * c] | 0xFFFF0000 * enables[2 * c + 1]
        lanes.append((sides[len(sides) * c // n], mask, data[c] * 0x10001 if halves else data[c]))
    return inputs, lanes


async def traffic(ports, rng, *, n, depth, bias_depth, latency, cycles, bias_halves=False):
    """Writes every row of both memories, then drives all ports at random. The sums of each column arrive with the column's delay.

    A read in the cycle in which its row is written is undefined, so its value is not compared. Returns the number of values
    compared.
    """
    sums, biases = ([[None] * n for _ in range(size)] for size in (depth, bias_depth))
    controls = []
    tops, out = [[None] * n] * latency, [None] * n  # the value of `top` from this cycle on
    compared = 0
    for cycle in range(cycles):
        control = {
            "read_row": rng.randrange(depth),
            "start": rng.getrandbits(1),
            "bias_row": rng.randrange(bias_depth),
            "write": rng.getrandbits(1),
            "write_row": rng.randrange(depth),
        }
        out_row, out_read = rng.randrange(depth), rng.getrandbits(1)
        if cycle < depth:
            control.update(write=1, write_row=cycle)
        first = cycle if cycle < bias_depth else None
        bias_inputs, bias_writes = _random_biases(rng, first, n=n, depth=bias_depth, halves=bias_halves)
        bottom = [rng.choice([0, 1 << 31, rng.getrandbits(32) | 1 << 23]) for _ in range(n)]
        controls.append(control)
        passes = {f"passes__{name}": value for name, value in control.items()}
        ports.set(**passes, edge__bottom=bottom, results__row=out_row, results__read=out_read, **bias_inputs)
        await ports.settle()

        for name, expected in (("edge__top", tops[0]), ("results__data", out)):
            for c, (value, right) in enumerate(zip(ports.lanes(name, n), expected)):
                if right is not None:
                    assert value == right, f"cycle {cycle}: {name}[{c}] is {value}, not {right:#010x}"
                    compared += 1

        top = [None] * n
        for c in range(n):
            now = controls[cycle - c] if cycle >= c else None
            written = now["write_row"] if now and now["write"] else None
            if now is None:
                continue
            if now["start"]:
                row, mask, _ = bias_writes[c]
                top[c] = None if mask and row == now["bias_row"] else biases[now["bias_row"]][c]
            else:
                top[c] = None if now["read_row"] == written else sums[now["read_row"]][c]
            if out_read:
                out[c] = None if out_row == written else sums[out_row][c]
            if written is not None:
                sums[written][c] = bottom[c] if bottom[c] & 0x7F800000 else 0
        tops = [*tops[1:], top]
        for c, (row, mask, value) in enumerate(bias_writes):
            biases[row][c] = (biases[row][c] or 0) & ~mask | value & mask
        await ports.tick()
    return compared


@cocotb.test()
async def random_traffic(dut):
    job = arguments()
    component = Accumulators(**{name: job[name] for name in ("n", "depth", "bias_depth", "latency", "bias_halves")})
    report({"compared": await play(dut, component, traffic, **job)})
