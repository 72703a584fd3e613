"""Bench of the accumulators: random traffic on all ports against a model that knows only the docstring."""

import cocotb

from amaranth_tpu.hw.array.accumulators import Accumulators

from ..rtl.bench_side import arguments, report
from ..rtl.ports import play


def _with_halves(row, data, halves):
    """A row of 32-bit words after a write of those 16-bit halves, lower ones first, that are 1 in `halves`."""
    masks = [0xFFFF * low | 0xFFFF0000 * high for low, high in zip(halves[::2], halves[1::2])]
    return [(old or 0) & ~mask | new & mask for old, new, mask in zip(row, data, masks)]


async def traffic(ports, rng, *, n, depth, bias_depth, latency, cycles, bias_halves=False):
    """Writes every row of both memories, then works all ports at random; sums in the columns' own time. With `bias_halves` any
    halves of a bias row are written.

    What a read gives in the cycle in which its row is written is left open, so it is not looked at. Returns the count of
    values compared.
    """
    sums, biases = ([[None] * n for _ in range(size)] for size in (depth, bias_depth))
    controls = []
    tops, out = [[None] * n] * latency, [None] * n  # what `top` is from this cycle on
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
        bias_write, bias_write_row = rng.random() < 0.3, rng.randrange(bias_depth)
        if cycle < depth:
            control.update(write=1, write_row=cycle)
        if cycle < bias_depth:
            bias_write, bias_write_row = True, cycle
        random_halves = bias_halves and cycle >= bias_depth
        halves = [rng.getrandbits(1) if random_halves else 1 for _ in range(2 * n)]
        bottom, bias_data = ([rng.getrandbits(32) for _ in range(n)] for _ in range(2))
        controls.append(control)
        ports.set(
            **control,
            bottom=bottom,
            out_row=out_row,
            out_read=out_read,
            bias_write=[bias_write and half for half in halves] if bias_halves else bias_write,
            bias_write_row=bias_write_row,
            bias_data=bias_data,
        )
        await ports.settle()

        for name, expected in (("top", tops[0]), ("out", out)):
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
                top[c] = None if bias_write and bias_write_row == now["bias_row"] else biases[now["bias_row"]][c]
            else:
                top[c] = None if now["read_row"] == written else sums[now["read_row"]][c]
            if out_read:
                out[c] = None if out_row == written else sums[out_row][c]
            if written is not None:
                sums[written][c] = bottom[c]
        tops = [*tops[1:], top]
        if bias_write:
            biases[bias_write_row] = _with_halves(biases[bias_write_row], bias_data, halves)
        await ports.tick()
    return compared


@cocotb.test()
async def random_traffic(dut):
    job = arguments()
    component = Accumulators(**{name: job[name] for name in ("n", "depth", "bias_depth", "latency", "bias_halves")})
    report({"compared": await play(dut, component, traffic, **job)})
