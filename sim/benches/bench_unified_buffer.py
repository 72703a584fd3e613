"""Bench of the unified buffer: random traffic on both ports, compared with a model that was written from the component's
docstring alone."""

import cocotb

from amaranth_tpu.hw.array.unified_buffer import UnifiedBuffer

from ..rtl.bench_side import arguments, report
from ..rtl.ports import play


async def traffic(ports, rng, *, n, depth, skew, cycles):
    """Fills the buffer. Then moves vectors through one port while the other port reads rows, each lane with its delay.

    A read in the cycle in which its row is written is undefined, so its value is not compared. Returns the number of values
    compared.
    """
    rows = [[None] * n for _ in range(depth)]
    addresses = []
    reading, expected, vector = [None] * n, [None] * n, None
    compared = 0
    for cycle in range(cycles):
        address, port_address = rng.randrange(depth), rng.randrange(depth)
        write, read = rng.choice(((1, 0), (0, 1), (0, 0)))
        if cycle < depth:
            write, read, port_address = 1, 0, cycle
        data = [rng.getrandbits(16) for _ in range(n)]
        addresses.append(address)
        access = {"vectors__address": port_address, "vectors__write": write, "vectors__read": read, "vectors__vector": data}
        ports.set(address=address, **access)
        await ports.settle()

        for r, value in enumerate(ports.lanes("x", n)):
            if expected[r] is not None:
                assert value == expected[r], f"cycle {cycle}: lane {r} reads {value}, not {expected[r]:#06x}"
                compared += 1
        if vector is not None:
            found = ports.lanes("vectors__operand", n)
            assert found == vector, f"cycle {cycle}: vectors.operand is {found}"
            compared += 1

        expected = list(reading)
        for r in range(n):
            seen = addresses[cycle - r * skew] if cycle >= r * skew else None
            reading[r] = None if seen is None or write and seen == port_address else rows[seen][r]
        if read:
            vector = list(rows[port_address])
        if write:
            rows[port_address] = data
        await ports.tick()
    return compared


@cocotb.test()
async def random_traffic(dut):
    job = arguments()
    component = UnifiedBuffer(n=job["n"], depth=job["depth"], skew=job["skew"])
    report({"compared": await play(dut, component, traffic, **job)})
