"""Bench of a board's memory: random traffic at its two ports against a bytearray, and the speed of reads.

It runs on :class:`hw.boards.board_memory.BoardMemory` in Amaranth's simulator, and on
:class:`hw.boards.sdram_memory.SdramMemory` with a model of the chip in cocotb.
"""

import random

import cocotb

from amaranth_tpu.sim.rtl.bench_side import arguments, report
from amaranth_tpu.sim.rtl.ports import CocotbPorts

OKAY, DECERR = 0, 3


def start(ports):
    for prefix in ("read__ar", "write__aw"):
        ports.set(**{f"{prefix}{name}": 0 for name in ("valid", "id", "addr", "len", "size", "burst")})
    ports.set(write__wvalid=0, write__bready=0, read__rready=0)
    ports.set(**{f"lite__{name}": 0 for name in ("awvalid", "wvalid", "arvalid", "bready", "rready")})


def place(rng, size, beat):
    """Returns address and number of beats of a random burst within one 4 KiB page; one address in ten is outside the memory."""
    beats = rng.choice((1, 1, 2, rng.randrange(1, 17)))
    page = rng.randrange(0, size, 4096) if rng.random() < 0.9 else rng.choice((size, 1 << 31, size + 4096))
    return page + rng.randrange(0, 4096 // beat - beats + 1) * beat, beats


async def traffic(ports, rng, *, size, beat, least, asks, takes, always_ready):
    """Runs random accesses at all ports until each access kind in `least` has occurred at least `least[kind]` times. `asks` and
    `takes` are the probabilities of the manager's valid and ready. A byte that is written while it is read has an undefined
    value, so the AXI4-Lite port avoids bytes that AXI bursts access."""
    start(ports)
    memory = bytearray(rng.randbytes(size))
    lite, counts = None, dict.fromkeys(least, 0)

    async def write_burst(address, data):
        words = [int.from_bytes(data[k : k + beat], "little") for k in range(0, len(data), beat)]
        ports.set(write__awvalid=1, write__awaddr=address, write__awlen=len(words) - 1)
        ports.set(write__wvalid=1, write__bready=1, write__wstrb=(1 << beat) - 1)
        answered = False
        while words or not answered:
            ports.set(write__wvalid=bool(words), write__wdata=words[0] if words else 0, write__wlast=len(words) == 1)
            await ports.settle()
            asked, taken = (ports.get(f"write__{name}ready") for name in ("aw", "w"))
            answered |= ports.get("write__bvalid")
            await ports.tick()
            if asked:
                ports.set(write__awvalid=0)
            if taken and words:
                words.pop(0)
        ports.set(write__bready=0)

    for address in range(0, size, 16 * beat):
        await write_burst(address, memory[address : address + 16 * beat])

    reads, expected = [], []  # bursts to request; expected beats: (id, data or None, last)
    write, data, answer = None, [], None
    while any(counts[kind] < least[kind] for kind in least):
        cycle = ports.cycle
        if not reads and not expected and write is None and answer is None and lite is None:
            kind = rng.choice(("read", "write"))
            if kind == "read":
                reads = [(*place(rng, size, beat), rng.getrandbits(1)) for _ in range(rng.randrange(1, 6))]
                for address, beats, ident in reads:
                    for k in range(beats):
                        word = memory[address + k * beat : address + (k + 1) * beat] if address < size else None
                        expected.append((ident, word, k == beats - 1))
                spans = [(address, address + beats * beat) for address, beats, _ in reads]
            else:
                address, beats = place(rng, size, beat)
                write = [address, beats, rng.getrandbits(1), False]
                data = [(rng.randbytes(beat), rng.choice(((1 << beat) - 1, 0, rng.getrandbits(beat)))) for _ in range(beats)]
                spans = [(address, address + beats * beat)]
                for k, (word, strobe) in enumerate(data):
                    for b in range(beat):
                        if address < size and strobe >> b & 1:
                            memory[address + k * beat + b] = word[b]
            lite_address = rng.randrange(0, size, 4) + (rng.random() < 0.1) * size
            if not any(low <= lite_address < high for low, high in spans) and rng.random() < 0.7:
                lite = [rng.random() < 0.5, lite_address, rng.randbytes(4), rng.getrandbits(4), 0]

        # Valid stays high until the handshake.
        ask, take = (lambda: rng.random() < asks), (lambda: rng.random() < takes)
        if reads and not ports.get("read__arvalid") and ask():
            ports.set(read__arvalid=1, read__araddr=reads[0][0], read__arlen=reads[0][1] - 1, read__arid=reads[0][2])
        if write and not write[3] and not ports.get("write__awvalid") and ask():
            ports.set(write__awvalid=1, write__awaddr=write[0], write__awlen=write[1] - 1, write__awid=write[2])
        if data and not ports.get("write__wvalid") and ask():
            ports.set(
                write__wvalid=1,
                write__wdata=int.from_bytes(data[0][0], "little"),
                write__wstrb=data[0][1],
                write__wlast=len(data) == 1,
            )
        if lite and lite[4] == 0 and ask():
            lite[4] = 1
            if lite[0]:
                ports.set(
                    lite__awvalid=1,
                    lite__wvalid=1,
                    lite__awaddr=lite[1],
                    lite__wstrb=lite[3],
                    lite__wdata=int.from_bytes(lite[2], "little"),
                )
                for b in range(4):
                    if lite[3] >> b & 1 and lite[1] < size:
                        memory[lite[1] + b] = lite[2][b]
            else:
                ports.set(lite__arvalid=1, lite__araddr=lite[1])
        ports.set(read__rready=always_ready or take(), write__bready=take(), lite__bready=take(), lite__rready=take())
        await ports.settle()
        get = ports.get
        done = {}
        if get("read__arvalid") and get("read__arready"):
            reads.pop(0)
            done["read__arvalid"] = 0
        if get("read__rvalid"):
            assert expected, f"cycle {cycle}: data that nobody asked for"
            ident, word, last = expected[0]
            found = get("read__rid"), get("read__rlast"), get("read__rresp")
            assert found == (ident, last, OKAY if word is not None else DECERR), f"cycle {cycle}: {found}"
            assert word is None or get("read__rdata").to_bytes(beat, "little") == word, f"cycle {cycle}"
            if get("read__rready"):
                expected.pop(0)
                counts["read"] += 1
        if write and get("write__awvalid") and get("write__awready"):
            write[3], answer = True, (write[2], OKAY if write[0] < size else DECERR)
            done["write__awvalid"] = 0
        if data and get("write__wvalid") and get("write__wready"):
            data.pop(0)
            counts["write"] += 1
            done["write__wvalid"] = 0
        if get("write__bvalid"):
            assert not data and (get("write__bid"), get("write__bresp")) == answer
            if get("write__bready"):
                write = answer = None
        if lite:
            for channel in ("aw", "w", "ar"):
                if get(f"lite__{channel}valid") and get(f"lite__{channel}ready"):
                    done[f"lite__{channel}valid"] = 0
            inside = lite[1] < size
            for channel in "br":
                assert not get(f"lite__{channel}valid") or get(f"lite__{channel}resp") == (OKAY if inside else DECERR)
            if lite[0] and get("lite__bvalid") and get("lite__bready"):
                lite, counts["lite_write"] = None, counts["lite_write"] + 1
            elif not lite[0] and get("lite__rvalid"):
                assert not inside or get("lite__rdata").to_bytes(4, "little") == memory[lite[1] : lite[1] + 4], f"cycle {cycle}"
                if get("lite__rready"):
                    lite, counts["lite_read"] = None, counts["lite_read"] + 1
        else:
            assert not get("lite__rvalid") and not get("lite__bvalid")
        await ports.tick()
        ports.set(**done)


async def stream(ports, rng, *, beats, bursts):
    """Reads `bursts` back-to-back bursts. Returns the cycles from the first address to the first beat, and from the first to the
    last beat."""
    start(ports)
    ports.set(read__rready=1, read__arvalid=1, read__arlen=beats - 1, read__araddr=0)
    asked, taken, came = None, 0, []
    while len(came) < bursts * beats:
        await ports.settle()
        if ports.get("read__arvalid") and ports.get("read__arready"):
            asked = ports.cycle if asked is None else asked
            taken += 1
        if ports.get("read__rvalid"):
            came.append(ports.cycle)
        await ports.tick()
        ports.set(read__arvalid=taken < bursts)
    return came[0] - asked, came[-1] - came[0] + 1


async def _start(dut):
    ports = CocotbPorts(dut)
    start(ports)
    ports.set(clk=0)
    await ports.settle()
    await ports.reset()
    return ports, random.Random(cocotb.RANDOM_SEED)


def _chip(ports):
    return {name: ports.get(name) for name in ("errors", "refreshes", "activations")}


@cocotb.test()
async def random_traffic(dut):
    ports, rng = await _start(dut)
    await traffic(ports, rng, **arguments())
    report(_chip(ports) | {"cycles": ports.cycle})


@cocotb.test()
async def read_stream(dut):
    ports, rng = await _start(dut)
    job = arguments()
    await stream(ports, rng, beats=1, bursts=1)  # waits for the chip's initialisation
    latency, cycles = await stream(ports, rng, **job)
    report(_chip(ports) | {"latency": latency, "cycles": cycles})
