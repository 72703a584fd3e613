# amaranth: UnusedElaboratable=no
"""Tests that the dispatcher issues each instruction as soon as its dependencies have ended, and that SYNC and HALT wait for all
instructions."""

import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.control.description import decoded_layout
from amaranth_tpu.hw.control.dispatcher import Dispatcher, units_of
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.sim.rtl.ports import pack, simulate, unpack
from seeds import seed
from suites import all_but

SPACES = ("host", "buffer", "acc", "bias")
NAMES = {unit.value: unit.name.lower() for unit in Unit}


def conflict(a, b):
    """Returns True if two footprints overlap in a memory and at least one footprint writes to the overlap."""

    def shares(space):
        if space == "host" and a["region"] != b["region"]:
            return False
        x, y = a[space], b[space]
        uses = (x["writes"] and (y["reads"] or y["writes"])) or (x["reads"] and y["writes"])
        return uses and set(range(x["first"], x["last"] + 1)) & set(range(y["first"], y["last"] + 1))

    return any(map(shares, SPACES))


def random_footprint(rng, space, density):
    use = rng.choice((0, 1, 2)) if rng.random() < density else 0
    first = rng.randrange(space)
    return {"first": first, "last": min(space - 1, first + rng.randrange(3)), "reads": int(use == 1), "writes": int(use == 2)}


def random_instruction(rng, number, operations, units, spaces, *, space, density, control):
    """Returns a random decoded instruction for one of `units`. `operations` has the layout of each kind of operation, and
    `spaces` the depth of each memory."""
    unit = Unit.CONTROL if rng.random() < control else Unit[rng.choice([*units]).upper()]
    footprint = {
        "unit": unit.value,
        "region": rng.randrange(2),
        **{
            name: random_footprint(rng, min(space, places), density if unit is not Unit.CONTROL else 0) for name, places in spaces
        },
    }
    word = {"halt": 0, "pc": number, "footprint": footprint}
    for kind, layout in operations.items():
        word[kind] = {name: rng.getrandbits(field.width) for name, field in layout if name != "tag"}
        word[kind]["tag"] = {"slot": 0}
    return word


async def traffic(ports, rng, *, config, count, ends, ready, space, density, control, least=0):
    """Dispatches `count` random instructions and checks the cycle in which each issues. In each cycle, a running instruction
    ends with probability `ends`. No instruction ends until `least` units have been busy at once, except in cycles in which
    nothing can issue."""
    whole, layouts, units = decoded_layout(config), Dispatcher(config=config).layouts, units_of(config)
    decoded = {kind: whole[kind].shape for kind in units.values()}
    depths = (config.unified_buffer_depth, config.accumulator_depth, config.bias_depth)
    kinds = decoded, units, list(zip(SPACES, (1 << 32, *depths)))
    todo = [random_instruction(rng, number, *kinds, space=space, density=density, control=control) for number in range(count)]
    todo.append({**random_instruction(rng, count, *kinds, space=space, density=0, control=1), "halt": 1})
    footprints = [word["footprint"] for word in todo]
    given, running, ended = 0, {}, set()  # instructions accepted; slot -> (number, unit) in the units; numbers ended
    expected, together = {unit: [] for unit in units}, 0
    for number, footprint in enumerate(footprints):
        if footprint["unit"] != Unit.CONTROL.value:
            expected[NAMES[footprint["unit"]]].append(number)
    handed = {}  # slot -> number, for MATMULs that were issued but may be blocked

    waits_for = [
        {
            earlier
            for earlier in range(number)
            if footprints[earlier]["unit"] != footprint["unit"] and conflict(footprint, footprints[earlier])
        }
        for number, footprint in enumerate(footprints)
    ]
    queued = {unit: [] for unit in units}  # accepted but not issued
    # Cycles since the next instruction arrived, less one for each comparison; cycles since there is room for it.
    compared = room = 0
    # The head of each queue, of issued MATMULs too, and the cycles since its last dependency ended.
    free = dict.fromkeys([*units, "handed"], ([], 0))
    accepted_at, slot_of = {}, {}
    direct = None  # unit of an instruction that was accepted in the last cycle and bypasses its queue
    known, on_bus = set(), set()  # numbers of ended instructions; instructions on the bus count one cycle later

    def begins(slot, number, unit):
        assert waits_for[number] <= ended, f"{number} begins before {waits_for[number] - ended} have ended"
        for earlier in range(given, number):
            assert footprints[earlier]["unit"] != Unit.CONTROL.value, f"{number} overtakes SYNC {earlier}"
        running[slot] = number, unit

    idle = 0
    while True:
        offered = pack(whole, **todo[given]) if given < len(todo) else 0
        ports.set(i__valid=given < len(todo), i__payload=offered)
        done = {}
        for unit in units:
            # A unit ends its operations in order.
            mine = [slot for slot, (number, owner) in sorted(running.items(), key=lambda entry: entry[1][0]) if owner == unit]
            if mine and (together >= least or idle > 50) and rng.random() < ends:
                done[unit] = mine[0]
            ports.set(
                **{
                    f"{unit}__done": unit in done,
                    f"{unit}__done_slot": done.get(unit, rng.randrange(config.in_flight)),
                    f"{unit}__op__ready": rng.random() < ready,
                }
            )
        await ports.settle()
        assert not direct or ports.get(f"{direct}__op__valid"), f"{direct}: instruction {given - 1} does not bypass the queue"
        direct = None
        in_flight = given - len(ended) - sum(f["unit"] == Unit.CONTROL.value for f in footprints[:given])
        assert in_flight <= config.in_flight
        moved = bool(done)
        # An issued MATMUL begins when it is no longer blocked.
        blocked = ports.get("interlock__blocked")
        while handed and not blocked >> next(iter(handed)) & 1:
            slot = next(iter(handed))
            begins(slot, handed.pop(slot), "matmul")
            moved = True
        for unit, kind in units.items():
            if ports.get(f"{unit}__op__valid") and ports.get(f"{unit}__op__ready"):
                layout = layouts[unit]
                entry = unpack(layout, ports.get(f"{unit}__op__payload"))
                tag = unpack(layout["tag"].shape, entry["tag"])
                number = expected[unit].pop(0)
                assert tag["slot"] == slot_of[number], f"{unit}: instruction {number} out of order, or in another slot"
                right = {name: todo[number][kind][name] & (1 << field.width) - 1 for name, field in layout if name != "tag"}
                assert {name: entry[name] for name in right} == right, f"instruction {number} changed on its way"
                assert tag["slot"] not in {**running, **handed}, "a slot is used twice"
                if unit == "matmul":
                    handed[tag["slot"]] = number
                else:
                    begins(tag["slot"], number, unit)
                moved = True
                queued[unit].remove(number)
        # No instruction waits too long.
        firsts = {unit: queue[:1] if not ports.get(f"{unit}__op__valid") else [] for unit, queue in queued.items()}
        for unit, first in {**firsts, "handed": list(handed.values())[:1]}.items():
            if not first or not waits_for[first[0]] <= known:
                free[unit] = first, 0
            else:
                free[unit] = first, free[unit][1] + 1 if free[unit][0] == first else 1
            is_new = first and ports.cycle <= accepted_at[first[0]] + 3
            assert free[unit][1] <= (2 if is_new else 1), f"{unit}: instruction {first[0]} waits for nothing"
        together = max(together, len({unit for _, unit in running.values()}))
        unit = footprints[given]["unit"] if given < len(todo) else Unit.CONTROL.value
        if unit != Unit.CONTROL.value:
            name = NAMES[unit]
            if in_flight < config.in_flight and len(queued[name]) < Dispatcher.queue_depth:
                room += 1
            compared += 1
            assert compared <= 5 or room <= 3, f"instruction {given} is not accepted"
        if ports.get("i__ready") and given < len(todo):
            if unit != Unit.CONTROL.value:
                if not (name == "matmul" or waits_for[given] or queued[name] or ports.get(f"{name}__op__valid")):
                    direct = name
                queued[name].append(given)
                accepted_at[given] = ports.cycle
                assert ports.get("placed__valid") and ports.get("placed__pc") == given
                slot_of[given] = ports.get("placed__slot")
            if footprints[given]["unit"] == Unit.CONTROL.value:
                assert in_flight == 0, f"SYNC {given} passes with {in_flight} in flight"
            given, moved = given + 1, True
            unit = footprints[min(given, count)]["unit"]
            room, compared = (
                0,
                -sum(
                    footprints[number]["unit"] not in (unit, Unit.CONTROL.value) for number in range(given) if number not in ended
                ),
            )
        known |= on_bus
        on_bus = {running[slot][0] for unit, slot in done.items() if unit in ("load", "weights", "store")}
        for slot in done.values():
            ended.add(running.pop(slot)[0])
        known |= ended - on_bus
        if ports.get("halted"):
            assert given == count and not running and not handed and not any(expected.values())
            return together
        idle = 0 if moved else idle + 1
        assert idle < 1000, f"nothing moves: {given} given, {running} running"
        await ports.tick()


DENSE = dict(ends=0.5, ready=0.7, space=12, density=0.5, control=0.02)
SPARSE = dict(ends=0.05, ready=0.9, space=200, density=0.5, control=0.0)  # few conflicts
TIGHT = dict(ends=0.1, ready=0.3, space=3, density=0.9, control=0.1)


# promise: hazards
@pytest.mark.parametrize(
    "in_flight, ring, case",
    all_but([(4, 1, DENSE), (16, 0, SPARSE), (32, 0, TIGHT)], (4, 16, 32), (0, 1), (DENSE, SPARSE, TIGHT)),
    ids=lambda value: f"space{value['space']}" if isinstance(value, dict) else None,
)
def test_instructions_issue_in_the_order_of_their_hazards(in_flight, ring, case):
    config = Config(n=4, in_flight=in_flight, ring=ring, **PLAIN)
    least = 4 if case["space"] == 200 and in_flight > 4 else 0
    together = simulate(Dispatcher(config=config), traffic, seed=seed(), config=config, count=120, least=least, **case)
    assert together >= least, "units do not work side by side"
