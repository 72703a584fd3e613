# amaranth: UnusedElaboratable=no
"""Tests of the serial bridge with the board's driver, bit by bit, covering transfers, damaged frames, and buses that do not
respond."""

import zlib

import pytest

from amaranth_tpu.hw.boards.serial_bridge import SerialBridge
from amaranth_tpu.hw.boards.uart import bit_step
from amaranth_tpu.hw.spec.serial_protocol import ANSWER, NOT_RECEIVED, REQUEST, Operation, Status
from amaranth_tpu.sim.host.serial_link import LinkError, SerialLink
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed
from serial_line import Line
from suites import slow

CLOCK, PERIOD, WORDS, SILENCE, PATIENCE = 1_000_000, 4, 8, 128, 64
IDENTITY = {"memory": 12345, "clock": CLOCK}


class Bus:
    """An AXI4-Lite subordinate with words in a dict. It stalls handshakes by `wait` cycles on average, fails at addresses in
    `bad`, and never responds if `dead`."""

    def __init__(self, ports, rng):
        self.ports, self.rng = ports, rng
        self.words, self.bad, self.wait, self.dead, self.log = {}, set(), 0, False, []
        self._taken, self._held, self._answer = {}, {}, None

    def cycle(self):
        get = self.ports.get
        if not (self._taken or self._held or self._answer or get("bus__awvalid") or get("bus__arvalid")):
            self.ports.set(bus__bvalid=0, bus__rvalid=0)
            return

        def willing():
            return not self.dead and self.rng.random() * (1 + self.wait) < 1

        answered = self._answer if willing() else None
        self.ports.set(**{f"bus__{channel}ready": willing() for channel in ("aw", "w", "ar")}, bus__bvalid=0, bus__rvalid=0)
        if answered:
            channel, address, *data = answered
            error = address in self.bad
            self.ports.set(**{f"bus__{channel}valid": 1, f"bus__{channel}resp": 2 * error})
            if channel == "r":
                self.ports.set(bus__rdata=self.words.get(address, 0))
            elif not error:
                (self.words[address],) = data
            self.log.append((channel, address))
            self._answer = None
        for channel, payload in (("aw", "awaddr"), ("w", "wdata"), ("ar", "araddr")):
            valid, value = get(f"bus__{channel}valid"), get(f"bus__{payload}")
            assert channel not in self._held or (valid, value) == (1, self._held[channel]), f"{channel} was taken back"
            self._held.pop(channel, None)
            if valid and not get(f"bus__{channel}ready"):
                self._held[channel] = value
            elif valid:
                assert self._answer is None, "two accesses at a time"
                self._taken[channel] = value
        if "ar" in self._taken:
            self._answer = ["r", self._taken.pop("ar")]
        if len(self._taken) == 2:
            assert get("bus__wstrb") == 15
            self._answer = ["b", self._taken.pop("aw"), self._taken.pop("w")]


def bench(test, **arguments):
    """Converts the coroutine `test` to a pytest test. It is called with the line, the link and the bus of a simulated bridge,
    and with `arguments`."""

    async def run(ports, rng):
        ports.limit = 1_000_000
        bus = Bus(ports, rng)
        line = Line(ports, period=PERIOD, clock=CLOCK, every=bus.cycle)
        link = SerialLink(line, baud=CLOCK // PERIOD, timeout=0.002, silence=0.0003)
        await test(line, link, bus, rng, **arguments)

    def wrapper():
        simulate(
            SerialBridge(
                step=bit_step(CLOCK, CLOCK // PERIOD), silence=SILENCE, patience=PATIENCE, words=WORDS, identity=IDENTITY
            ),
            run,
            seed=seed(),
        )

    wrapper.__name__, wrapper.__doc__ = test.__name__, test.__doc__
    return wrapper


def frame(operation, address=0, data=b"", *, tag=7, count=None):
    count = len(data) // 4 if count is None else count
    body = bytes([operation.value, tag]) + count.to_bytes(2, "little") + address.to_bytes(4, "little") + data
    return bytes([REQUEST]) + body + zlib.crc32(body).to_bytes(4, "little")


async def status_of(line, data):
    """Sends `data` and returns the status in the response, and the cycles from the last byte sent to the response."""
    await line.send(data)
    sent = line.ports.cycle
    answer = await line.receive(9, 0.004)
    assert len(answer) == 9 and answer[0] == ANSWER and answer[3:5] == b"\0\0", answer.hex()
    assert zlib.crc32(answer[1:5]).to_bytes(4, "little") == answer[5:]
    return Status(answer[1]), line.ports.cycle - sent


@bench
async def test_identify(line, link, bus, rng):
    found = await link.identify()
    assert found["memory"] == 12345 and found["clock"] == CLOCK and found["words"] == WORDS


async def transfers(line, link, bus, rng, waits):
    await link.identify()
    for wait in waits:
        bus.wait = wait
        data, address = rng.randbytes(4 * (2 * WORDS + 3)), rng.getrandbits(20) << 2
        seen = []
        await link.write(address, data, lambda done, total, seen=seen: seen.append((done, total)))
        assert seen == [(32, 76), (64, 76), (76, 76)]
        assert [bus.words[address + k] for k in range(0, len(data), 4)] == [
            int.from_bytes(data[k : k + 4], "little") for k in range(0, len(data), 4)
        ]
        assert await link.read(address, len(data)) == data
    await link.registers.write(0x24, 0x89ABCDEF)
    assert bus.log[-1] == ("b", 0x80000024) and await link.registers.read(0x24) == 0x89ABCDEF


@pytest.mark.parametrize("waits", [[2], *slow([0, 2, 4])])
def test_transfers(waits):
    bench(transfers, waits=waits)()


async def damaged_requests(line, link, bus, rng, places):
    """A request with a flipped bit, a lost or an extra byte, or a missing stop bit returns an error and writes nothing. The next
    request succeeds."""
    await link.identify()
    good = frame(Operation.WRITE, 0x40, bytes(range(1, 9)))
    for position in [0, len(good) - 1, *rng.sample(range(1, len(good) - 1), 4)][-places:]:
        flipped = bytearray(good)
        flipped[position] ^= 1 << rng.randrange(8)
        lost = good[:position] + good[position + 1 :]
        for name, sent in (("flipped", flipped), ("lost", lost)):
            status, cycles = await status_of(line, bytes(sent))
            assert status in NOT_RECEIVED and not bus.log, f"{name} {position}: {status}"
            assert cycles < SILENCE + 20 * 10 * PERIOD
        line.sending = lambda data, position=position: data[:position] + [None] + data[position + 1 :]
        status, _ = await status_of(line, good)
        line.sending = list
        assert status is Status.LINE and not bus.log
    assert (await status_of(line, good))[0] is Status.OK and len(bus.log) == 2


@pytest.mark.parametrize("places", [2, *slow(6)])
def test_damaged_requests(places):
    bench(damaged_requests, places=places)()


@bench
async def test_statuses(line, link, bus, rng):
    await link.identify()
    short = frame(Operation.READ, 4, count=1)
    for sent, expected in (
        (short[:-1], Status.INCOMPLETE),
        (short[:1], Status.INCOMPLETE),
        (b"\x00" + short, Status.LINE),
        (frame(Operation.READ, 4, count=WORDS + 1), Status.LENGTH),
        (frame(Operation.READ, 4, count=0xFFFF), Status.LENGTH),
        (short[:-1] + bytes([short[-1] ^ 1]), Status.CHECKSUM),
        (frame(Operation.READ, 4, count=0), Status.REFUSED),
        (frame(Operation.READ, 6, count=1), Status.REFUSED),
        (frame(Operation.WRITE, 4), Status.REFUSED),
        (frame(Status.CHECKSUM, 4, count=1), Status.REFUSED),
    ):
        assert (await status_of(line, sent))[0] is expected, sent.hex()
        assert line.ports.get("failed")
    assert not bus.log
    await link.read(4, 4)
    assert not line.ports.get("failed")


async def noise_is_no_request(line, link, bus, rng, first):
    """A valid request embedded in a broken one is not executed, because the line must be silent between requests."""
    await link.identify()
    good = frame(Operation.WRITE, 4, bytes(4))
    for broken, expected in (
        (b"\x11", Status.LINE),
        (good[:-1] + bytes([good[-1] ^ 1]), Status.CHECKSUM),
        (frame(Operation.READ, 4, count=WORDS + 1)[:9], Status.LENGTH),
    )[first:]:
        assert (await status_of(line, broken + good * 3))[0] is expected
        assert not bus.log and await line.receive(1, 0.003) == b"", expected
    await link.write(4, bytes(4))
    assert len(bus.log) == 1
    # The bridge answers noise. The driver must not take this for the answer to a later start, which would then be repeated.
    await line.send(b"\x11")
    while len(line.got) < 9:
        await line.tick()
    await link.registers.write(0x20, 1)
    assert bus.log[1:] == [("b", 0x80000020)]


@pytest.mark.parametrize("first", [2, *slow(0)])
def test_noise_is_no_request(first):
    bench(noise_is_no_request, first=first)()


async def silent_and_broken_lines(line, link, bus, rng, directions):
    """If one direction of the line is silent or corrupts bytes, the driver raises an error within its time limit, and the next
    transfer succeeds."""
    await link.identify()
    limit = 3 * (0.002 + 0.0003 * 3 + 100 * 10 * PERIOD / CLOCK) * CLOCK
    for direction in directions:
        for change, said in ((lambda data: [], "no answer within 0.002 s"), (lambda data: [data[0] ^ 0x10, *data[1:]], None)):
            start = line.ports.cycle
            setattr(line, direction, change)
            with pytest.raises(LinkError, match=r"write of 8 bytes at 0x40: .* \(3 attempts\)$") as caught:
                await link.write(0x40, bytes(8))
            setattr(line, direction, list)
            assert line.ports.cycle - start < limit
            assert said is None or said in str(caught.value)
            data = rng.randbytes(8)
            await link.write(0x40, data)
            assert await link.read(0x40, 8) == data


@pytest.mark.parametrize("directions", [["sending"], *slow(["sending", "receiving"])])
def test_silent_and_broken_lines(directions):
    bench(silent_and_broken_lines, directions=directions)()


@pytest.mark.slow
@bench
async def test_damage_now_and_then(line, link, bus, rng):
    """With one byte in a hundred damaged or lost in each direction, every transfer either moves the right bytes or raises an
    error."""
    await link.identify()

    def damage(data):
        out = []
        for byte in data:
            chance = rng.random()
            out += [] if chance < 0.003 else [byte ^ 1 << rng.randrange(8)] if chance < 0.007 else [byte]
        return out

    line.sending = line.receiving = damage
    memory, errors = {}, 0
    for _ in range(60):
        address, data = rng.randrange(4) << 5, rng.randbytes(32)
        try:
            await link.write(address, data)
            memory[address] = data
        except LinkError:
            memory.pop(address, None)
            errors += 1
        try:
            found = await link.read(address, 32)
            assert address not in memory or found == memory[address]
        except LinkError:
            errors += 1
    assert errors < 30


@bench
async def test_bus_errors(line, link, bus, rng):
    """A bus error at one word ends the serial request at that word. Later words are not written, and earlier words keep their
    new values."""
    await link.identify()
    bus.bad = {0x108}
    with pytest.raises(LinkError, match=r"^write of 32 bytes at 0x100: there is nothing at such an address") as caught:
        await link.write(0x100, bytes(range(32)))
    assert caught.value.status is Status.BUS_ERROR
    assert bus.log == [("b", 0x100), ("b", 0x104), ("b", 0x108)] and 0x108 not in bus.words
    with pytest.raises(LinkError, match="nothing at such an address"):
        await link.read(0x108, 4)
    assert await link.read(0x104, 4) == bytes(range(4, 8))


async def bus_without_an_answer(line, link, bus, rng, rounds):
    """If the bus does not respond, the request ends with a timeout. The late response is not mistaken for the response to a
    later access."""
    await link.identify()
    bus.words[0x20], bus.words[0x24] = 1, 2
    for _ in range(rounds):
        bus.dead = True
        start = line.ports.cycle
        for access in (link.read(0x20, 4), link.write(0x28, bytes(4)), link.read(0x24, 4)):
            with pytest.raises(LinkError, match="the board's bus did not answer$") as caught:
                await access
            assert caught.value.status is Status.BUS_TIMEOUT
        assert line.ports.cycle - start < 3 * (PATIENCE + 30 * 10 * PERIOD + 1000 + SILENCE)
        assert (await link.identify())["memory"] == 12345
        bus.dead = False
        assert await link.read(0x24, 4) == bytes([2, 0, 0, 0])
        await link.write(0x20, bytes([3, 0, 0, 0]))
        assert await link.read(0x20, 4) == bytes([3, 0, 0, 0])
        bus.words[0x20] = 1


@pytest.mark.parametrize("rounds", [1, *slow(2)])
def test_bus_without_an_answer(rounds):
    bench(bus_without_an_answer, rounds=rounds)()


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"words": 4}, "words must be 5 to 512, not 4"),
        ({"words": 513}, "words"),
        ({"silence": 63}, "silence must be at least patience"),
    ],
)
def test_impossible(changes, said):
    with pytest.raises(ValueError, match=said):
        SerialBridge(**{"step": 1000, "silence": SILENCE, "patience": PATIENCE, "identity": IDENTITY} | changes)
