"""Bench of the activation unit against the golden model.

Operations, accumulator contents and stalls of the buffer port are random, and of all kinds.
"""

import cocotb

from amaranth_tpu.hw.activation.result_units import result_units
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.cycles import results_register
from amaranth_tpu.hw.spec.isa import FunctionCode, Task

from ..rtl.bench_side import arguments, report
from ..rtl.ports import play
from .activation_model import ActivationModel
from .activation_operations import (
    idle,
    interrupted,
    ones,
    payload,
    random_operation,
    rows_read,
    table_loads,
    tag,
    use_loaded_entries,
)


def events_of(model, op):
    """Lists the vectors that an operation reads and writes, as `(read, row, lanes, overtakes, end)`.

    `overtakes` is the largest number of vectors of earlier rows that may still be unwritten when an operand is read. `end` is the
    operation's slot for its last vector, and None for other vectors.
    """
    events = list(model.events(op))
    ends = [None] * (len(events) - 1) + [op["tag"]["slot"]]
    overtakes = 1 if op.get("select") else 8 if op.get("task") == Task.MULTIPLY else 0
    return [(*event, overtakes, end) for event, end in zip(events, ends)]


def next_event(ports, due):
    """Returns the index in `due`, the expected vectors, of the vector that is at the buffer port.

    SELECT and MULTIPLY may read before the vectors of earlier rows are written, unless they read one of these rows.
    """
    if not ports.get("buffer__read"):
        return 0
    place = next((place for place, (is_read, *_) in enumerate(due) if is_read), None)
    assert place is not None and place <= due[place][3], f"cycle {ports.cycle}: reads before all is written"
    for _, row, _, _, end in due[:place]:
        assert end is None, f"cycle {ports.cycle}: reads before the operation before has ended"
        assert row != due[place][1], f"cycle {ports.cycle}: reads row {row} before it is written"
    return place


def check_done(ports, loads, ended):
    """Checks the output `done`. It must be 1 one cycle after the last vector of slot `ended` was written, or a few cycles after
    the last vector of a LOAD_TABLE was read."""
    done = ports.get("port__done")
    if done and loads and ended is None:
        assert ports.get("port__done_slot") == loads.pop(0)
    else:
        assert done == (ended is not None), f"cycle {ports.cycle}: done is {done}"
    if ended is not None:
        slot = ports.get("port__done_slot")
        assert slot == ended, f"cycle {ports.cycle}: slot {slot}, not {ended}"


def check_vector(ports, expected, buffer):
    """Checks the vector at the buffer port, which is written, or read from `buffer`. Returns its row, lanes and end."""
    is_read, row, lanes, _, end = expected
    found = (
        ports.get("buffer__read"),
        ports.get("buffer__row"),
        buffer[row] if is_read else ports.lanes("buffer__vector", len(lanes)),
    )
    assert found == (is_read, row, lanes), f"cycle {ports.cycle}: {found}, not {(is_read, row, lanes)}"
    return row, lanes, end


async def check_rest(ports, ended):
    """Checks that after the last operation no output except `done` is set."""
    ports.set(port__op__valid=0, buffer__grant=1)
    for cycle in range(4):
        await ports.settle()
        assert (
            not ports.get("buffer__write")
            and not ports.get("buffer__read")
            and ports.get("port__done") == (cycle == 0 and ended is not None)
        )
        await ports.tick()


async def operations(ports, rng, *, config, pending, model, grants, pace):
    """Simulates operations one after the other. `grants` is the probability of a grant by the buffer, and `pace` the probability
    that the next operation is offered, both per cycle.

    Returns `(cycles from the first operation to the last vector, vectors written, cycles in which a vector was not granted)`.
    """
    n = config.n
    buffer = [list(lanes) for lanes in model.buffer]  # the model's buffer already has the results of all offered operations
    due = []  # expected vectors, from events_of
    offered = read = start = asked = None
    held, written, waited, last, quiet = False, 0, 0, 0, 0
    ended = None  # slot whose last vector was written one cycle ago
    loads = []  # slots of LOAD_TABLE operations whose last vector was read
    pending = list(pending)
    while pending or offered or due or loads:
        if offered is None and pending and rng.random() < pace:
            offered = pending.pop(0)
            due += events_of(model, offered)
            ports.limit = ports.cycle + 20_000
            ports.set(port__op__payload=payload(config, offered))
            start = ports.cycle if start is None else start
        grant = int(rng.random() < grants)
        ports.set(port__op__valid=offered is not None, buffer__grant=grant)
        if read is not None:
            ports.set(sums__data=model.sums[read])
        # The read data of the buffer is valid only until another unit reads.
        ports.set(buffer__operand=buffer[asked] if asked is not None else [rng.getrandbits(16)] * n)
        await ports.settle()

        write, reads = ports.get("buffer__write"), ports.get("buffer__read")
        assert not (write and reads)
        check_done(ports, loads, ended)
        ended = asked = None
        if write or reads:
            assert due and not loads, f"cycle {ports.cycle}: a vector too many"
            place = next_event(ports, due)
            row, lanes, slot = check_vector(ports, due[place], buffer)
            if write and not written and not held and model.quick:
                assert ports.cycle == start + 3 + results_register(config), f"first vector after {ports.cycle - start} cycles"
        else:
            assert not held, f"cycle {ports.cycle}: a vector went away before it was granted"
        held = (write or reads) and not grant
        waited += held
        quiet = 0 if ports.get("moves") else quiet + 1
        assert quiet < 200, "stuck"
        if (write or reads) and grant:
            due.pop(place)
            if write:
                buffer[row] = lanes
                written, last = written + 1, ports.cycle
                ended = slot
            else:
                asked = row
                loads += [slot] if slot is not None else []
        if ports.get("sums__read"):
            assert (read := ports.get("sums__row")) is None or read < len(model.sums)
        if offered is not None and ports.get("port__op__ready"):
            offered = None
        await ports.tick()
        if offered is None:
            ports.set(port__op__payload=0)
    await check_rest(ports, ended)
    assert buffer == model.buffer
    return last - (start or 0), written, waited


async def runs(ports, rng, *, count, part=1, **sizes):
    """Tests the unit at full throughput, which is one row per cycle after the first row. Then tests it with stalls on both
    sides, and with a reset."""
    config = Config(**sizes)
    model, total = ActivationModel(rng, config), 0
    model.quick = False
    if config.table_lanes:
        loads = table_loads(rng, config, part)
        await operations(ports, rng, config=config, pending=loads, model=model, grants=1, pace=1)
    for grants, pace in ((1, 1), (0.5, 1), (0.2, 0.3), (1, 0.2)):
        pending = [random_operation(rng, config) for _ in range(count)]
        if config.table_lanes:
            use_loaded_entries(rng, model)
            pending.insert(0, function_of_rows(rng, config, FunctionCode.TABLE, config.accumulator_depth))
        model.quick = not config.table_lanes and not config.softmax and rows_read(pending[0]) == 1
        cycles, written, _ = await operations(ports, rng, config=config, pending=pending, model=model, grants=grants, pace=pace)
        total += written
        if grants == pace == 1 and not config.table_lanes and not config.softmax:
            rows = sum(map(rows_read, pending))
            least = rows + 2 + results_register(config)
            assert cycles == least or cycles == rows + 3 and config.pooling, f"{rows} rows took {cycles} cycles"
        ports.set(
            port__op__valid=1, port__op__payload=payload(config, interrupted(rng, config)), buffer__grant=rng.getrandbits(1)
        )
        for _ in range(rng.randrange(1, 5)):
            await ports.settle()
            await ports.tick()
        ports.set(port__op__valid=0)
        await ports.reset()
    return total


def function_of_rows(rng, config, function, rows):
    """Returns an ACTIVATE of the first `rows` rows."""
    op = {**idle(config), "tag": tag(rng, config), "function": function, "rows": rows}
    return op | ({"single": ones(rows)} if config.pooling else {})


async def functions(ports, rng, *, rows, **sizes):
    """Measures the cycles of an ACTIVATE of `rows` rows, with the function TABLE (the table is empty) and with NONE. Returns
    both."""
    config = Config(**sizes)
    model, found = ActivationModel(rng, config), []
    model.quick = False
    for function in (FunctionCode.TABLE, FunctionCode.NONE):
        op = function_of_rows(rng, config, function, rows)
        found.append((await operations(ports, rng, config=config, pending=[op], model=model, grants=1, pace=1))[0])
    return found


async def paces(ports, rng, *, programs, grants=1, **sizes):
    """Measures lists of operations without stalls by the buffer. Returns, for each list, the cycles from its first operation to
    its last vector.

    `programs` are lists of dicts, with the fields that differ from `idle`.
    """
    config, found = Config(**sizes), []
    model = ActivationModel(rng, config)
    model.quick = False
    for program in programs:
        pending = [{**idle(config), "tag": tag(rng, config), **changes} for changes in program]
        cycles, _, waited = await operations(ports, rng, config=config, pending=pending, model=model, grants=grants, pace=1)
        found.append(cycles - waited)
    return found


@cocotb.test()
async def random_operations(dut):
    job = arguments()
    config = Config(**{name: value for name, value in job.items() if name != "count"})
    report({"vectors": await play(dut, result_units(config), runs, **job)})
