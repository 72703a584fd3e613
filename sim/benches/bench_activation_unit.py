"""Bench of the activation unit: random operations of every kind, accumulators with every kind of number, a port that makes it
wait; bits from the golden model."""

import cocotb

from amaranth_tpu.hw.activation.activation_unit import ActivationUnit
from amaranth_tpu.hw.activation.result_units import ResultUnits
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import TABLE_WORDS, Format, Function, Task, exists
from amaranth_tpu.hw.spec.operations import activate_layout

from ..golden import arithmetic as golden
from ..golden.softmax import softmax
from ..golden.table_lookup import Table, lookup
from ..rtl.bench_side import arguments, report
from ..rtl.ports import binary32_bits, pack, play

TIES = (
    0x3F808000,
    0x3F818000,
    0xBF808000,
    0xBF818000,
    0x3F808001,
    0x3F807FFF,
    0x7F7F8000,
    0x7F7F7FFF,
    0xFF7FFFFF,
    0x007FFFFF,
    0x00800000,
    0x807FFFFF,
    0x00808000,
    0x80000000,
    0x7F800000,
    0xFF800000,
    golden.NAN,
)


def canonical(bits):
    """A sum as cells make it: without subnormals, and with only one NaN."""
    return int(golden.add(bits, 0x80000000))


def number(rng):
    return canonical(rng.choice((rng.choice(TIES), binary32_bits(rng, 0.3), rng.getrandbits(32))))


def unit(config):
    units = ResultUnits if config.softmax else ActivationUnit
    return units(n=config.n, activate=activate_layout(config), table_lanes=config.table_lanes)


class Model:
    """Accumulators, unified buffer and function table of a core, and what an operation makes of them."""

    def __init__(self, rng, config):
        self.n = config.n
        self.sums = [[number(rng) for _ in range(config.n)] for _ in range(config.accumulator_depth)]
        self.buffer = [[number(rng) >> 16 for _ in range(config.n)] for _ in range(config.unified_buffer_depth)]
        self.table = Table(0, 0, 0, [0] * TABLE_WORDS)

    def events(self, operation):
        """`(read, row, lanes)` of each vector that an operation reads or writes, in order; lanes are 16 bits."""
        op = {"rows1": 1, "window0": 1, "window1": 1, "rows0_stride": 1, "task": Task.RESULTS, **operation}
        if op["task"] == Task.LOAD_TABLE:
            words = list(self.table.words)
            for index in range(op["rows"]):
                row, place = op["operand"] + index, (op["word"] + index) * self.n
                words[place : place + self.n] = self.buffer[row]
                yield True, row, self.buffer[row]
            self.table = Table(op["first"], op["linear_low"], op["linear_high"], words)
            return
        if op.get("softmax"):
            yield from self.softmax_rows(op)
            return
        for r1 in range(op["rows1"]):
            for r0 in range(op["rows"]):
                window = op["acc"] + r0 * op["rows0_stride"] + r1 * op.get("rows1_stride", 0)
                rows = [
                    self.sums[window + w1 * op.get("window1_stride", 0) + w0 * op.get("window0_stride", 0)]
                    for w1 in range(op["window1"])
                    for w0 in range(op["window0"])
                ]
                values = [largest(column) for column in zip(*rows)]
                row = op["row"] + r1 * op.get("buffer_stride", 0) + r0 * (1 if op["format"] == Format.BFLOAT16 else 2)
                if op["task"] == Task.MULTIPLY:
                    yield True, op["operand"] + r0, self.buffer[op["operand"] + r0]
                    values = [
                        int(golden.multiply(golden.to_bfloat16(value), factor))
                        for value, factor in zip(values, self.buffer[op["operand"] + r0])
                    ]
                for offset, lanes in enumerate(self.vectors(op, values)):
                    self.buffer[row + offset] = lanes
                    yield False, row + offset, lanes

    def softmax_rows(self, op):
        for index in range(op["rows"]):
            values = [value for t in range(op["rows1"]) for value in self.sums[op["acc"] + index + t * op["rows1_stride"]]]
            pads = self.n - op["lanes"]
            results = softmax([values[: len(values) - pads]])[0].tolist() + [0] * pads
            for t in range(op["rows1"]):
                row = op["row"] + t * op["buffer_stride"] + index * (1 if op["format"] == Format.BFLOAT16 else 2)
                tile = [value << 16 for value in results[t * self.n :][: self.n]]
                for offset, lanes in enumerate(self.vectors({**op, "lanes": self.n}, tile)):
                    self.buffer[row + offset] = lanes
                    yield False, row + offset, lanes

    def vectors(self, op, values):
        """The one or two vectors of a row of results."""
        if op["function"] == Function.TABLE:
            values = [int(lookup(value, self.table)) << 16 for value in values]
        elif op["function"] == Function.RELU:
            values = [int(golden.relu(value)) for value in values]
        values = [value if c < op["lanes"] else 0 for c, value in enumerate(values)]
        if op["format"] == Format.BINARY32:
            halves = [value >> 16 * half & 0xFFFF for value in values for half in (0, 1)]
            return [halves[: self.n], halves[self.n :]]
        return [[int(golden.to_bfloat16(value)) for value in values]]


def largest(values):
    """In the order of sign and magnitude."""
    return max(values, key=lambda bits: -(bits & 0x7FFFFFFF) - 1 if bits >> 31 else bits)


def tag(rng, config):
    return {"slot": rng.randrange(config.in_flight), "pc": rng.getrandbits(32)}


def table_loads(rng, config, part):
    """Operations that fill the table, or one of them in `part`, drawn: what is not filled is 0 in Amaranth's simulator."""
    whole = TABLE_WORDS // config.n
    rows = min(whole // part, config.unified_buffer_depth)
    for word in rng.sample(range(0, whole, rows), whole // rows // part):
        yield {
            **idle(config),
            "tag": tag(rng, config),
            "task": Task.LOAD_TABLE,
            "rows": rows,
            "operand": 0,
            "word": word,
            **table_settings(rng),
            **({"single": ones(rows)} if config.pooling else {}),
        }


def table_settings(rng):
    """Binades that most numbers lie in or near."""
    return {
        "first": rng.choice((0, 240, rng.randrange(112, 131), rng.randrange(241))),
        "linear_low": rng.getrandbits(2),
        "linear_high": rng.getrandbits(2),
    }


def ones(*counts):
    return {name: int(count == 1) for name, count in zip(("left0", "left1", "across", "down"), (*counts, 1, 1, 1, 1))}


def idle(config):
    """Every field, as the decoder leaves it in operations that have none of it."""
    fields = {"function": Function.NONE, "format": Format.BFLOAT16, "rows": 1, "lanes": config.n, "row": 0, "acc": 0}
    if config.pooling or config.softmax:
        fields |= {"rows1": 1, "rows1_stride": 0, "buffer_stride": 0}
    if config.softmax:
        fields |= {"softmax": 0}
    if config.pooling:
        fields |= {"rows0_stride": 1, "window0": 1, "window0_stride": 0, "window1": 1, "window1_stride": 0, "single": ones()}
    if config.table_lanes:
        fields |= {"task": Task.RESULTS, "operand": 0, "word": 0, "first": 0, "linear_low": 0, "linear_high": 0}
    return fields


def random_operation(rng, config):
    """One that the decoder would let through: no row outside the memories."""
    op = {**idle(config), "tag": tag(rng, config), "lanes": rng.choice((config.n, rng.randrange(1, config.n + 1)))}
    kind = rng.random()
    depth, sums = config.unified_buffer_depth, config.accumulator_depth
    if config.table_lanes and kind < 0.3:
        rows = rng.choice((1, 2, rng.randrange(1, 6)))
        if kind < 0.1:
            op |= {"task": Task.LOAD_TABLE, "word": rng.randrange(TABLE_WORDS // config.n - rows + 1), **table_settings(rng)}
        else:
            op |= {"task": Task.MULTIPLY, "acc": rng.randrange(sums - rows + 1), "row": rng.randrange(depth - rows + 1)}
        op |= {"rows": rows, "operand": rng.randrange(depth - rows + 1)}
        if rng.random() < 0.3:  # a row depends on the one before
            op["operand"] = max(0, min(depth - rows, op["row"] - rng.randrange(3)))
        return op | ({"single": ones(rows)} if config.pooling else {})

    format_ = op["format"] = rng.choice((Format.BFLOAT16, Format.BINARY32))
    op["function"] = rng.choice([function for function in Function if exists(config, function)])
    wide = 1 if format_ == Format.BFLOAT16 else 2
    if config.pooling and kind < 0.7:
        while True:
            op |= {
                "rows": rng.choice((1, rng.randrange(1, 6))),
                "rows1": rng.choice((1, rng.randrange(1, 5))),
                "window0": rng.choice((1, 2, rng.randrange(1, 5))),
                "window1": rng.choice((1, 2, rng.randrange(1, 5))),
            }
            op |= {
                name: rng.randrange(6)
                for name in ("rows0_stride", "rows1_stride", "window0_stride", "window1_stride", "buffer_stride")
            }
            last_acc = (op["rows"] - 1) * op["rows0_stride"] + sum(
                (op[count] - 1) * op[f"{count}_stride"] for count in ("rows1", "window0", "window1")
            )
            last_row = (op["rows1"] - 1) * op["buffer_stride"] + op["rows"] * wide - 1
            if last_acc < sums and last_row < depth:
                op |= {"acc": rng.randrange(sums - last_acc), "row": rng.randrange(depth - last_row)}
                return op | {"single": ones(op["rows"], op["rows1"], op["window0"], op["window1"])}
    if config.softmax and rng.random() < 0.3:
        rows, tiles, stride = rng.choice((1, 2)), rng.choice((1, 2, 3)), rng.randrange(4)
        height = rows * wide + rng.randrange(3)
        return op | {
            "softmax": 1,
            "function": Function.NONE,
            "rows": rows,
            "rows1": tiles,
            "rows1_stride": stride,
            "buffer_stride": height,
            "acc": rng.randrange(sums - rows - (tiles - 1) * stride + 1),
            "row": rng.randrange(depth - tiles * height),
        }
    rows = op["rows"] = rng.choice((1, 1, 2, rng.randrange(1, sums + 1)))
    op |= {"row": rng.randrange(depth - rows * wide + 1), "acc": rng.randrange(sums - rows + 1)}
    return op | ({"single": ones(rows)} if config.pooling else {})


def rows_read(op):
    """Rows of the accumulators, one a cycle."""
    wide = 1 if op["format"] == Format.BFLOAT16 else 2
    return op["rows"] * op.get("rows1", 1) * (op.get("window0", 1) * op.get("window1", 1) + wide - 1)


def events_of(model, op):
    """`(read, row, lanes, end)` of an operation, where `end` is None but for the last: its slot, and whether it is a read."""
    events = list(model.events(op))
    ends = [None] * (len(events) - 1) + [(op["tag"]["slot"], events[-1][0])]
    return [(*event, end) for event, end in zip(events, ends)]


def check_done(ports, loads, ended):
    """`done` comes a cycle after the last vector of slot `ended`, or some cycles after the last one of a load, which it ends."""
    done = ports.get("port__done")
    if done and loads and ended is None:
        assert ports.get("port__done_slot") == loads.pop(0)
    else:
        assert done == (ended is not None), f"cycle {ports.cycle}: done is {done}"
    if ended is not None:
        slot = ports.get("port__done_slot")
        assert slot == ended, f"cycle {ports.cycle}: slot {slot}, not {ended}"


def check_vector(ports, expected, buffer):
    """Row, lanes and end of the vector that is written, or read from `buffer`."""
    is_read, row, lanes, end = expected
    found = ports.get("read"), ports.get("row"), buffer[row] if is_read else ports.lanes("vector", len(lanes))
    assert found == (is_read, row, lanes), f"cycle {ports.cycle}: {found}, not {(is_read, row, lanes)}"
    return row, lanes, end


async def check_rest(ports, ended):
    """Nothing comes after the last operation but its `done`."""
    ports.set(port__op__valid=0, grant=1)
    for cycle in range(4):
        await ports.settle()
        assert not ports.get("write") and not ports.get("read") and ports.get("port__done") == (cycle == 0 and ended is not None)
        await ports.tick()


async def operations(ports, rng, *, config, pending, model, grants, pace):
    """Operations. The buffer takes a vector with probability `grants`, operations come with probability `pace`.

    Returns `(cycles from the first operation to the last vector, vectors)`.
    """
    n, layout = config.n, activate_layout(config)
    buffer = [list(lanes) for lanes in model.buffer]  # the model's is always ahead of it
    due = []  # (read, row, lanes, slot if it is the operation's last)
    offered = read = start = asked = None
    held, written, last, quiet = False, 0, 0, 0
    ended = None  # the slot whose last vector was written a cycle ago
    loads = []  # slots of LOAD_TABLE operations whose last vector was read
    pending = list(pending)
    while pending or offered or due or loads:
        if offered is None and pending and rng.random() < pace:
            offered = pending.pop(0)
            due += events_of(model, offered)
            ports.set(port__op__payload=pack(layout, **offered))
            start = ports.cycle if start is None else start
        grant = int(rng.random() < grants)
        ports.set(port__op__valid=offered is not None, grant=grant)
        if read is not None:
            ports.set(sums=model.sums[read])
        # What the port gives stays only until someone else reads.
        ports.set(operand=buffer[asked] if asked is not None else [rng.getrandbits(16)] * n)
        await ports.settle()

        write, reads = ports.get("write"), ports.get("read")
        assert not (write and reads)
        check_done(ports, loads, ended)
        ended = asked = None
        if write or reads:
            assert due and not loads, f"cycle {ports.cycle}: a vector too many"
            row, lanes, slot = check_vector(ports, due[0], buffer)
            if write and not written and not held and model.quick:
                assert ports.cycle == start + 3, f"first vector after {ports.cycle - start} cycles"
        else:
            assert not held, f"cycle {ports.cycle}: a vector went away before it was granted"
        held = (write or reads) and not grant
        quiet = 0 if ports.get("moves") else quiet + 1
        assert quiet < 200, "stuck"
        if (write or reads) and grant:
            due.pop(0)
            if write:
                buffer[row] = lanes
                written, last = written + 1, ports.cycle
                ended = slot and slot[0]
            else:
                asked = row
                loads += [slot[0]] if slot else []
        if ports.get("acc_read"):
            assert (read := ports.get("acc_row")) is None or read < len(model.sums)
        if offered is not None and ports.get("port__op__ready"):
            offered = None
        await ports.tick()
        if offered is None:
            ports.set(port__op__payload=0)
    await check_rest(ports, ended)
    assert buffer == model.buffer
    return last - (start or 0), written


async def runs(ports, rng, *, count, part=1, **sizes):
    """At full speed, one row a cycle from the second on; then with waits on either side, and a reset in between."""
    config = Config(**sizes)
    model, total = Model(rng, config), 0
    model.quick = False
    if config.table_lanes:
        loads = table_loads(rng, config, part)
        await operations(ports, rng, config=config, pending=loads, model=model, grants=1, pace=1)
    for grants, pace in ((1, 1), (0.5, 1), (0.2, 0.3), (1, 0.2)):
        pending = [random_operation(rng, config) for _ in range(count)]
        model.quick = not config.table_lanes and not config.softmax and rows_read(pending[0]) == 1
        cycles, written = await operations(ports, rng, config=config, pending=pending, model=model, grants=grants, pace=pace)
        total += written
        if grants == pace == 1 and not config.table_lanes and not config.softmax:
            rows = sum(map(rows_read, pending))
            assert cycles == rows + 2 or cycles == rows + 3 and config.pooling, f"{rows} rows took {cycles} cycles"
        ports.set(
            port__op__valid=1,
            port__op__payload=pack(activate_layout(config), **interrupted(rng, config)),
            grant=rng.getrandbits(1),
        )
        for _ in range(rng.randrange(1, 5)):
            await ports.settle()
            await ports.tick()
        ports.set(port__op__valid=0)
        await ports.reset()
    return total


def interrupted(rng, config):
    """Any operation but one that changes the table, which a reset does not bring back."""
    while (op := random_operation(rng, config)).get("task") == Task.LOAD_TABLE:
        pass
    return op


async def functions(ports, rng, *, rows, **sizes):
    """Cycles that an ACTIVATE of so many rows takes with the function TABLE, of an empty table, and with NONE."""
    config = Config(**sizes)
    model, found = Model(rng, config), []
    model.quick = False
    for function in (Function.TABLE, Function.NONE):
        op = {**idle(config), "tag": tag(rng, config), "function": function, "rows": rows}
        op |= {"single": ones(rows)} if config.pooling else {}
        found.append((await operations(ports, rng, config=config, pending=[op], model=model, grants=1, pace=1))[0])
    return found


@cocotb.test()
async def random_operations(dut):
    job = arguments()
    config = Config(**{name: value for name, value in job.items() if name != "count"})
    report({"vectors": await play(dut, unit(config), runs, **job)})
