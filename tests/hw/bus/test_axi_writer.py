# amaranth: UnusedElaboratable=no
"""Tests of the AXI write manager, covering bursts with their data, responses in order, and a flush that completes issued bursts
without writing."""

import pytest

from amaranth_tpu.hw.bus.axi_writer import AxiWriter
from amaranth_tpu.hw.bus.burst_splitter import burst_request
from amaranth_tpu.sim.rtl.ports import pack, simulate
from seeds import seed
from suites import slow

LAYOUT = burst_request(32)


async def traffic(ports, rng, *, cycles, takes, answers, feeds, flushes=0.0, held=0.0, strays=0.0, outstanding=4):
    """Checks random bursts for `cycles` cycles. `takes` and all later arguments are probabilities per cycle, except
    `outstanding`, the limit of bursts in flight. `strays` are responses with a foreign ID or before the ID is settled."""
    own, flush = rng.getrandbits(1), False
    offer, word = None, None
    addresses, beats, unanswered = [], [], 0  # AW due; W due: [data or None if it may stay unwritten, last]; responses due
    waiting = 0  # beats of the present burst that still lack data
    out, answered = (
        {"aw": 0, "w": 0},
        0,
    )  # bursts whose address was sent, bursts whose last beat was sent, and bursts with a response
    shown = {"aw": None, "w": None}
    told = (0, 0)  # `client.answered` and `client.error` in the next cycle
    draining, given_up, silent, full = True, 0, 0, False  # draining: until all responses arrived and the ID is settled
    for _ in range(cycles):
        flush = rng.random() < (held if flush else flushes)
        if offer is None and rng.random() < 0.7:
            offer = {"address": rng.getrandbits(24) << 3, "beats": rng.randrange(1, 17), "last": 1}
        if word is None and rng.random() < feeds:
            word = rng.getrandbits(64)
        ready = {"aw": rng.random() < takes, "w": rng.random() < takes}
        answer = min(out.values()) > answered and rng.random() < answers
        bad = rng.random() < 0.2
        stray = not answer and rng.random() < strays
        settled = not stray or rng.getrandbits(1)
        ports.set(
            control__flush=flush,
            client__burst__valid=offer is not None,
            client__burst__payload=pack(LAYOUT, **offer) if offer else 0,
            client__data__valid=word is not None,
            client__data__payload=word or 0,
            bus__awready=ready["aw"],
            bus__wready=ready["w"],
            bus__bvalid=answer or stray,
            bus__bid=own ^ (stray and settled),
            bus__bresp=2 * bad,
            own__id=own,
            own__settled=settled,
        )
        await ports.settle()
        now = ports.cycle
        assert unanswered <= outstanding and ports.get("control__quiet") == (unanswered == 0)
        assert (ports.get("client__answered"), ports.get("client__error")) == told, f"cycle {now}"
        told = (int(answer and not draining and not flush), int(answer and bad and not draining and not flush))
        assert ports.get("bus__bready") == 1

        found = {
            "aw": (ports.get("bus__awaddr"), ports.get("bus__awlen") + 1),
            "w": (ports.get("bus__wdata"), ports.get("bus__wstrb"), ports.get("bus__wlast")),
        }
        assert ports.get("bus__awvalid") == bool(addresses) and ports.get("bus__wvalid") == bool(beats), f"cycle {now}"
        for name, due in (("aw", addresses), ("w", beats)):
            if due:
                assert shown[name] in (None, found[name]), f"cycle {now}: {name} changed before it was taken"
                shown[name] = None if ready[name] else found[name]
        if addresses:
            assert found["aw"] == addresses[0]
            assert (ports.get("bus__awsize"), ports.get("bus__awburst"), ports.get("bus__awid")) == (3, 1, own)
        if beats:
            data, last = beats[0]
            assert found["w"][2] == last, f"cycle {now}: WLAST"
            assert found["w"][1] == (0 if data is None else 0xFF), f"cycle {now}: WSTRB {found['w'][1]:#x}"
            assert data is None or found["w"][0] == data, f"cycle {now}: WDATA"
        take, give = (
            ports.get("client__burst__ready") and offer is not None,
            ports.get("client__data__ready") and word is not None,
        )
        assert not give or not (flush or draining), f"cycle {now}: something new after a flush"

        # Events at the end of the cycle
        room = waiting and (not beats or ready["w"])
        assert give == bool(room and word is not None and not flush and not draining), f"cycle {now}: data {give}"
        stand_in = draining and room
        may = offer and not waiting and (not addresses or ready["aw"]) and not full and not draining
        assert take == bool(may), f"cycle {now}: burst {take}"
        if addresses and ready["aw"]:
            addresses.pop(0)
            out["aw"] += 1
        if beats and ready["w"]:
            out["w"] += beats.pop(0)[1]
        if give or stand_in:
            beats.append([None if stand_in else word, int(waiting == 1)])
            given_up += bool(stand_in)
            waiting -= 1
            word = None if give else word
        if take:
            addresses.append((offer["address"], offer["beats"]))
            waiting, offer = offer["beats"], None
        if flush:
            draining = True
        elif unanswered == 0 and settled:
            draining = False
        full = unanswered == outstanding  # a cycle late
        unanswered += take - answer
        answered += answer
        silent = 0 if take or give or stand_in or answer else silent + 1
        assert silent < 2000 or not offer, "nothing moves"
        await ports.tick()
    assert answered > 20
    return given_up


# promise: data-order, write-channels
@pytest.mark.parametrize(
    "rates",
    [
        dict(takes=1, answers=0.9, feeds=1),
        dict(takes=0.9, answers=0.03, feeds=0.9),
        *slow(dict(takes=0.4, answers=0.3, feeds=0.4), dict(takes=0.5, answers=0.5, feeds=0.3, flushes=0.01)),
        dict(takes=0.4, answers=0.5, feeds=0.9, flushes=0.02, held=0.95),
        dict(takes=0.9, answers=0.4, feeds=0.9, strays=0.4),
    ],
    ids=str,
)
def test_random(rates):
    given_up = simulate(AxiWriter(address_width=32, data_width=64, outstanding=4), traffic, seed=seed(), cycles=3000, **rates)
    assert bool(given_up) == ("flushes" in rates)


async def resets(ports, rng, *, count):
    ports.set(
        client__burst__valid=1,
        client__burst__payload=pack(LAYOUT, address=0x1000, beats=2, last=1),
        client__data__valid=1,
        bus__awready=1,
        bus__wready=1,
    )
    taken = 0
    for _ in range(count):
        await ports.reset()
        settles = rng.randrange(4)
        for cycle in range(settles + rng.randrange(2, 30)):
            ports.set(own__settled=cycle >= settles)
            await ports.settle()
            takes = ports.get("client__burst__ready")
            assert not (takes or ports.get("bus__awvalid")) or cycle > settles, "a burst before the ID is settled"
            taken += takes
            await ports.tick()
    return taken


def test_resets():
    assert simulate(AxiWriter(address_width=32, data_width=64, outstanding=4), resets, seed=seed(), count=50) > 50
