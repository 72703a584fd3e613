# amaranth: UnusedElaboratable=no
"""Tests that the fetch unit delivers every word of region MODEL in order, and does not read outside the region."""

import pytest

from amaranth_tpu.hw.bus.burst_splitter import burst_request
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.control.fetch_unit import FetchUnit
from amaranth_tpu.hw.spec.operations import instruction_layout
from amaranth_tpu.sim.rtl.ports import simulate, unpack
from seeds import seed
from suites import all_but

BASE = 0x1F80  # near the end of a page


async def fetch(ports, rng, *, size, pc, bus_bytes, step, takes, answers, fail=None, base=BASE):
    """Fetches from byte `pc` to the end of a region of `size` bytes. The beat at offset `fail` gets an error response.

    Returns the number of instructions and the offsets of the failed instructions.
    """
    memory = {offset: rng.getrandbits(8) for offset in range(-64, size + 256)}
    ports.set(region__base=base, region__size=size, pc=pc)
    for _ in range(2):
        await ports.reset()
    due, taken, failed, overruns = [], [], [], 0
    requested, ahead = 0, 0  # bytes; most instructions that are requested and not taken
    while overruns < 5:
        ready, accepts = rng.random() < takes, rng.random() < 0.7
        beat = due.pop(0) if due and rng.random() < answers else None
        ports.set(
            o__ready=ready,
            host__request__ready=accepts,
            host__answer__valid=beat is not None and beat != fail,
            host__answer__error=beat is not None and beat == fail,
            host__answer__data=rng.getrandbits(32) if beat is None else sum(memory[beat + i] << 8 * i for i in range(bus_bytes)),
        )
        await ports.settle()
        if ports.get("host__request__valid") and accepts:
            request = unpack(burst_request(32), ports.get("host__request__payload"))
            first = request["address"] - base
            assert pc <= first and first + request["beats"] * bus_bytes <= size, f"reads {first:#x} of {size:#x} bytes"
            assert request["address"] % 4096 + request["beats"] * bus_bytes <= 4096
            due += range(first, first + request["beats"] * bus_bytes, bus_bytes)
            requested += request["beats"] * bus_bytes
        ahead = max(ahead, requested // step - len(taken))
        if ports.get("o__valid") and ready:
            found = unpack(instruction_layout(), ports.get("o__payload"))
            assert found["pc"] == pc + step * len(taken)
            if found["overrun"]:
                assert found["pc"] + step > size or pc % bus_bytes or base % bus_bytes, "the end comes too early"
                overruns += 1
            else:
                assert not overruns and found["pc"] + step <= size
                if found["failed"]:
                    failed.append(found["pc"])
                else:
                    assert found["word"] == sum(memory[found["pc"] + i] << 8 * i for i in range(32)), f"word at {found['pc']:#x}"
                taken.append(found["pc"])
        await ports.tick()
    assert ahead <= 8 and (ahead == 8 or takes > 0.1 or len(taken) < 40), f"{ahead} instructions are prefetched"
    return len(taken), failed


RATES = [(1, 1), (0.1, 0.9), (1, 0.1)]
FAST = [((4, 32), RATES[0]), ((4, 32), RATES[2]), ((128, 128), RATES[1])]


# promise: word-bytes
@pytest.mark.parametrize("bus, rates", all_but(FAST, [(4, 32), (8, 32), (32, 32), (64, 64), (128, 128)], RATES))
def test_words_of_the_region_arrive_in_order(bus, rates):
    (bus_bytes, step), (takes, answers) = bus, rates
    assert step == Config(n=64, bus_width=8 * bus_bytes).instruction_bytes
    for size, pc in (
        (40 * step, 0),
        (7 * step + step // 2, 2 * step),
        (3 * step, 3 * step),
        (step - 1, 0),
        (0, 0),
        (2 * step, 1 << 20),
    ):
        unit = FetchUnit(address_width=32, bus_width=8 * bus_bytes, instruction_bytes=step)
        count = simulate(unit, fetch, seed=seed(), size=size, pc=pc, bus_bytes=bus_bytes, step=step, takes=takes, answers=answers)
        assert count == (max(0, size - pc) // step, [])


# promise: misaligned
@pytest.mark.parametrize("base, pc", [(BASE, 4), (BASE, 33), (BASE + 4, 0)])
def test_unaligned_start_is_the_end(base, pc):
    unit = FetchUnit(address_width=32, bus_width=64, instruction_bytes=32)
    assert simulate(unit, fetch, seed=seed(), size=640, pc=pc, base=base, bus_bytes=8, step=32, takes=1, answers=1) == (0, [])


def test_read_error_marks_only_its_instruction():
    """A read error faults the instruction that contains the failed beat, but not the instructions before and after it."""
    unit = FetchUnit(address_width=32, bus_width=64, instruction_bytes=32)
    assert simulate(unit, fetch, seed=seed(), size=640, pc=32, bus_bytes=8, step=32, takes=0.5, answers=0.5, fail=136) == (
        19,
        [128],
    )
