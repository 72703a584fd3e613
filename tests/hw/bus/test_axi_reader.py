# amaranth: UnusedElaboratable=no
"""Tests of the AXI read manager, covering data in order for each client, limits, priorities, errors and flushes."""

import pytest

from amaranth_tpu.hw.bus.axi_reader import CLIENTS, AxiReader
from amaranth_tpu.hw.bus.burst_splitter import MAX_BURST, burst_request
from amaranth_tpu.sim.rtl.ports import pack, simulate
from seeds import seed
from suites import slow

LAYOUT = burst_request(32)


async def traffic(
    ports, rng, *, cycles, takes, answers, errors=0.0, flushes=0.0, strays=0.0, outstanding=8, load_limit=3 * MAX_BURST
):
    """Checks random requests for `cycles` cycles. `takes` and `answers` are the probabilities of ARREADY and RVALID. `strays` is
    the probability of a beat with a foreign ID, or of a beat before the ID is settled."""
    own = rng.getrandbits(1)
    ports.set(own__id=own, own__settled=1)
    offers = dict.fromkeys(CLIENTS)
    granted, bus, held = [], [], None  # granted, not yet on the bus; on the bus: [client, beats left, discarded]
    draining = True  # from a reset or a flush until all responses have arrived and the ID is settled
    counts = dict.fromkeys(CLIENTS, 0)
    most = 0
    asked_load = 0  # beats of a load that was granted in the previous cycle: counted as the longest burst
    came = None
    for _ in range(cycles):
        flush = rng.random() < flushes
        for client in CLIENTS:
            if offers[client] is None and rng.random() < (0.05 if client == "fetch" else 0.5):
                offers[client] = {"address": rng.getrandbits(24) << 3, "beats": rng.randrange(1, 17), "last": 1}
            request = offers[client]
            ports.set(
                **{
                    f"{client}__request__valid": request is not None,
                    f"{client}__request__payload": pack(LAYOUT, **request) if request else 0,
                }
            )
        urgent, arready = rng.getrandbits(1), rng.random() < takes
        beat = bus[0] if bus and rng.random() < answers else None
        data, bad = rng.getrandbits(64), rng.random() < errors
        stray = beat is None and rng.random() < strays
        settled = not stray or rng.getrandbits(1)
        ports.set(
            urgent=urgent,
            control__flush=flush,
            bus__arready=arready,
            bus__rvalid=beat is not None or stray,
            bus__rdata=data,
            bus__rid=own ^ (stray and settled),
            own__settled=settled,
            bus__rresp=(2 if bad else 0) if beat else rng.getrandbits(2),
            bus__rlast=beat[1] == 1 if beat else rng.getrandbits(1),
        )
        await ports.settle()
        now = ports.cycle

        # Address channel: holds the last granted request until it is accepted, and never exceeds the limit of requests.
        pending = len(granted) + len(bus)
        most = max(most, pending)
        load_beats = sum(entry[1] for entry in granted + bus if entry[0] == "load")
        assert pending <= outstanding and load_beats <= load_limit
        assert ports.get("control__quiet") == (pending == 0), f"cycle {now}: quiet with {pending} under way"
        assert ports.get("control__moves") == (bool(granted and arready) or beat is not None or stray), f"cycle {now}: moves"
        assert ports.get("bus__arvalid") == bool(granted), f"cycle {now}: ARVALID"
        if granted:
            found = ports.get("bus__araddr"), ports.get("bus__arlen") + 1
            assert found == (granted[0][3]["address"], granted[0][1]) and held in (None, found), f"cycle {now}: {found}"
            assert (ports.get("bus__arsize"), ports.get("bus__arburst"), ports.get("bus__arid")) == (3, 1, own)
            held = None if arready else found

        # Data reaches its client a cycle later as a data strobe or an error strobe; discarded beats reach no client.
        due, came = came, (beat and (beat[0], beat[2] or flush, bad, data))
        strobes = tuple({name: ports.get(f"{name}__answer__{strobe}") for name in CLIENTS} for strobe in ("valid", "error"))
        for kind, strobe in enumerate(strobes):
            for name in CLIENTS:
                right = due is not None and due[:2] == (name, False) and bool(kind) == due[2]
                assert strobe[name] == right, f"cycle {now}: {name} {('data', 'error')[kind]} is {strobe[name]}"
        assert ports.get("bus__rready") == 1 and (due is None or ports.get(f"{due[0]}__answer__data") == due[3])

        # Grants: none after a flush while responses are outstanding, else the first permitted client in the order of priority.
        taken = [name for name in CLIENTS if offers[name] and ports.get(f"{name}__request__ready")]
        order = ["fetch", "weights", "load"] if urgent else ["fetch", "load", "weights"]
        loads_fit = load_beats + (MAX_BURST - asked_load if asked_load else 0) + MAX_BURST <= load_limit
        able = [name for name in order if offers[name] and (name != "load" or loads_fit)]
        may = able and not draining and pending < outstanding and (not granted or arready)
        assert taken == (able[:1] if may else []), f"cycle {now}: granted {taken}, not {able[:1] if may else []}"

        if granted and arready:
            bus.append(granted.pop(0))
        if beat is not None:
            beat[1] -= 1
            counts[beat[0]] += 1
            if not beat[1]:
                bus.pop(0)
        if flush:
            draining = True
            for entry in granted + bus:
                entry[2] = True
        elif pending == 0 and settled:
            draining = False
        asked_load = offers["load"]["beats"] if taken == ["load"] else 0
        if taken:
            granted.append([taken[0], offers[taken[0]]["beats"], flush, offers[taken[0]]])
            offers[taken[0]] = None
        await ports.tick()
    assert counts["fetch"] and counts["load"] + counts["weights"], f"a client got nothing: {counts}"
    return most


@pytest.mark.parametrize(
    "rates",
    [
        dict(takes=1, answers=0.9),
        dict(takes=0.3, answers=0.3),
        *slow(dict(takes=0.9, answers=0.02, cycles=6000)),
        dict(takes=0.5, answers=0.7, errors=0.2, flushes=0.02),
        dict(takes=0.9, answers=0.4, strays=0.5, flushes=0.01),
    ],
    ids=str,
)
def test_random(rates):
    most = simulate(
        AxiReader(address_width=32, data_width=64, outstanding=8, load_limit=3 * MAX_BURST),
        traffic,
        seed=seed(),
        **{"cycles": 2500, **rates},
    )
    assert most == 8 or rates["answers"] > 0.1, "never as much under way as may be"


async def resets(ports, rng, *, count):
    request = pack(LAYOUT, address=0x1000, beats=16, last=1)
    for client in CLIENTS:
        ports.set(**{f"{client}__request__valid": 1, f"{client}__request__payload": request})
    ports.set(bus__arready=1)
    asked = 0
    for _ in range(count):
        await ports.reset()
        settles = rng.randrange(4)
        for cycle in range(settles + rng.randrange(2, 30)):
            ports.set(own__settled=cycle >= settles)
            await ports.settle()
            taken = any(ports.get(f"{client}__request__ready") for client in CLIENTS)
            assert not (taken or ports.get("bus__arvalid")) or cycle > settles, "a request before the ID is settled"
            asked += taken
            await ports.tick()
    return asked


def test_resets():
    assert simulate(AxiReader(address_width=32, data_width=64), resets, seed=seed(), count=50) > 50
