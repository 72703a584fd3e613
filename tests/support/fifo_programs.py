"""Programs on both sides of the rule on the weight FIFO and instructions in flight."""

from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.verification.programs import initialisation
from core_programs import Case
from core_runs import op


class Edge:
    """A generator of random programs, about half of which deadlock. Each section starts with LOAD_WEIGHTS for which the FIFO has
    no room, or with MATMULs for which it has no tiles. About as many instructions follow as fit the queues, and then the
    instructions that would resolve the wait. A program first writes every on-chip row, because a run that ends early leaves some
    rows undefined."""

    def __init__(self, rng, config):
        # lead: tiles that are loaded but not yet taken, in program order
        self.rng, self.config, self.program, self.lead = rng, config, [], 0

    def below(self, bound):
        return int(self.rng.integers(0, bound))

    def choice(self, *values):
        return int(self.rng.choice(values))

    def chance(self, probability):
        return bool(self.rng.random() < probability)

    def host(self, region, row_bytes, rows):
        size, bus = Case.sizes[region.name], self.config.bus_bytes
        return dict(region=region, rows=rows, offset=self.below((size - rows * row_bytes) // bus + 1) * bus)

    def add(self, opcode, **fields):
        self.program.append(op(opcode, **fields))

    def load_weights(self, tiles):
        tile = 2 * self.config.n**2
        region = Region.INPUT if tiles * tile > Case.sizes["SCRATCH"] else self.source()
        self.add(Opcode.LOAD_WEIGHTS, **self.host(region, tile, tiles))
        self.lead += tiles

    def source(self):
        return Region.SCRATCH if self.chance(0.7) else Region.INPUT

    def matmul(self, tiles0, tiles1=1, *, apart, keep=0):
        """Appends a MATMUL of `tiles0` x `tiles1` tiles. If `apart` is True, no other instruction writes the buffer and
        accumulator rows of the MATMUL."""
        loops = dict(rows0=1, rows1=1, tiles0=tiles0, tiles0_acc_stride=1, tiles1=tiles1)
        buffer = self.below(8) if apart else 8 + self.below(self.config.unified_buffer_depth - 8)
        acc = 0 if apart else 4 + self.below(self.config.accumulator_depth - 3 - tiles0)
        bias = 0 if apart else self.below(self.config.bias_depth - tiles0 + 1)
        self.add(Opcode.MATMUL, start=self.below(2), keep=keep, **loops, buffer=buffer, acc=acc, bias=bias)
        self.lead -= 0 if keep else tiles0 * tiles1

    def take(self, tiles):
        apart = self.chance(0.8)
        while tiles > 0:
            tiles0 = 1 + self.below(min(tiles, 2))
            tiles1 = 1 + self.below(tiles // tiles0)
            self.matmul(tiles0, tiles1, apart=apart)
            tiles -= tiles0 * tiles1

    def several(self, kind, count):
        n, depth = self.config.n, self.config.unified_buffer_depth
        for _ in range(count):
            rows = 1 + self.below(3)
            buffer = 8 + self.below(depth - 8 - rows + 1)
            if kind == "weights":
                self.load_weights(self.choice(1, 1, 2))
            elif kind == "store":
                self.add(
                    Opcode.STORE,
                    **self.host(self.choice_of(Region.SCRATCH, Region.OUTPUT), 2 * n, self.choice(1, 3, 20)),
                    buffer=self.below(depth - 20 + 1),
                )
            elif kind == "load":
                self.add(Opcode.LOAD, **self.host(self.source(), 2 * n, rows), buffer=buffer)
            elif kind == "bias":
                self.add(Opcode.LOAD_BIAS, **self.host(self.source(), 4 * n, 1), bias=self.below(self.config.bias_depth))
            elif kind == "activate":
                self.add(
                    Opcode.ACTIVATE,
                    rows=rows,
                    lanes=n,
                    buffer=buffer,
                    acc=4 + self.below(self.config.accumulator_depth - 3 - rows),
                )
            else:
                self.matmul(self.choice(1, 2), self.choice(1, 1, 2), apart=False, keep=self.below(2))

    def choice_of(self, likely, other):
        return likely if self.chance(0.8) else other

    def part(self):
        depth = self.config.weight_fifo_depth
        if self.chance(0.2):  # tiles before a SYNC
            self.load_weights(max(1, depth + self.choice(0, 1, 1, 2) - self.lead))
            self.add(Opcode.SYNC)
        elif self.chance(0.3):  # MATMULs before their tiles
            for _ in range(self.choice(3, 4, 5, 6, 7, 8)):
                self.matmul(1, self.choice(1, 1, 1, 2, 3), apart=True)
        else:
            self.load_weights(max(1, depth + self.choice(1, 2, 3) - self.lead))
        kinds = [kind for kind in ("weights", "store", "load", "activate", "bias", "matmul") if self.chance(0.3)]
        self.rng.shuffle(kinds)
        for kind in kinds:
            self.several(kind, self.choice(1, 2, 3, 4, 5, 6) if kind != "matmul" else self.choice(1, 2))
        if self.lead < 0:
            self.load_weights(-self.lead)
        else:
            self.take(self.lead)

    def make(self):
        self.program, self.lead = initialisation(self.config), 0
        for _ in range(1 + self.below(3)):
            self.part()
        self.add(Opcode.STORE, region=Region.OUTPUT, rows=self.config.unified_buffer_depth)
        self.program.append(0x7F if self.chance(0.05) else op(Opcode.HALT))
        return self.program


def limits(config):
    """Returns programs on both sides of each limit, as (name, instructions, cause of the fault or None)."""
    n, depth, in_flight = config.n, config.weight_fifo_depth, config.in_flight
    halt = op(Opcode.HALT)

    def weights(tiles, offset=256):
        return op(Opcode.LOAD_WEIGHTS, region=Region.SCRATCH, rows=tiles, offset=offset)

    def matmul(tiles, **fields):
        return op(Opcode.MATMUL, rows0=1, rows1=1, tiles0=1, tiles1=tiles, **fields)

    def store(offset=0):
        return op(Opcode.STORE, region=Region.SCRATCH, rows=1, offset=offset, buffer=8)

    load = op(Opcode.LOAD, region=Region.INPUT, rows=1, buffer=8)
    bias = op(Opcode.LOAD_BIAS, region=Region.SCRATCH, rows=1)
    activate = op(Opcode.ACTIVATE, rows=1, lanes=n, acc=8, buffer=8)

    def both(name, program, most, *rest):
        """Returns two programs: `program(most)`, which ends normally, and `program(most + 1)`, which ends with TIMEOUT."""
        return [
            (f"{name}, {most + more}", [*program(most + more), *rest, halt], end) for more, end in ((0, None), (1, "TIMEOUT"))
        ]

    # Instructions that wait for the first LOAD_WEIGHTS, directly or not, up to the size of the queues.
    waiting = [*[store()] * 4, *[load] * 4, *[activate] * 4, *[weights(1)] * 5]
    found = [
        *both("tiles at a SYNC", lambda k: [weights(k), op(Opcode.SYNC), matmul(k)], depth + 1),
        *both("tiles at the end", lambda k: [weights(2), matmul(2), weights(k)], depth + 1),
        *both(
            "LOAD_WEIGHTS in line",
            lambda k: [weights(depth + 2), *[weights(1)] * k, matmul(depth + 2 + k)],
            min(5, in_flight - 2),
        ),
        *both("MATMULs of one pass in line", lambda k: [*[matmul(1)] * k, weights(k)], min(7, in_flight - 1)),
        *both("MATMULs of two passes in line", lambda k: [*[matmul(2)] * k, weights(2 * k)], min(6, in_flight - 1)),
        *both("MATMULs of three passes in line", lambda k: [*[matmul(3)] * k, weights(3 * k)], min(5, in_flight - 1)),
        *both("STOREs in line", lambda k: [weights(depth + 2, 0), *[store()] * k, matmul(depth + 2)], min(4, in_flight - 2)),
        ("STORE to what waits, for a MATMUL", [weights(depth + 2, 0), store(), load, matmul(depth + 2), halt], None),
        ("its operands behind it", [weights(depth + 2, 0), store(), activate, matmul(depth + 2, buffer=8), halt], "TIMEOUT"),
        ("other operands", [weights(depth + 2, 0), store(), activate, matmul(depth + 2, buffer=7), halt], None),
        ("its biases behind it", [weights(depth + 2, 0), store(), bias, matmul(depth + 2, start=1), halt], "TIMEOUT"),
        ("no biases", [weights(depth + 2, 0), store(), bias, matmul(depth + 2), halt], None),
        ("two that read", [weights(depth + 2, 0), op(Opcode.LOAD, region=Region.SCRATCH, rows=1), matmul(depth + 2), halt], None),
        ("refused before it is noticed", [weights(depth + 2), 0x7F], "ILLEGAL"),
        ("never decoded", [weights(depth + 2), op(Opcode.SYNC), 0x7F], "TIMEOUT"),
        *[
            (
                f"LOAD_WEIGHTS that wait for a MATMUL, {k}",
                [matmul(1, acc=8), activate, store(), *[weights(1, 0)] * k, halt],
                "TIMEOUT",
            )
            for k in range(1, 7)
        ],
    ]
    if in_flight >= 8:
        found += both(
            "LOAD_WEIGHTS in line behind a hazard",
            lambda k: [weights(depth + 2, 0), store(), *[weights(1, 0)] * k, matmul(depth + 2 + k)],
            4,
        )
    if in_flight - 2 < len(waiting):
        found += both(
            "instructions in flight",
            lambda k: [weights(depth + 2, 0), *waiting[:k], matmul(depth + 2 + max(0, k - 12))],
            in_flight - 2,
        )
    return found
