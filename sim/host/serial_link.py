"""The host side of a board's serial line: requests and answers of :mod:`hw.spec.serial_protocol`, over any transport."""

import struct
import zlib

from amaranth_tpu.hw.spec.registers import REGISTER
from amaranth_tpu.hw.spec.serial_protocol import (
    ANSWER,
    BRIDGE_IDENTIFIER,
    BRIDGE_VERSION,
    IDENTITY,
    NOT_RECEIVED,
    REGISTERS_BASE,
    REQUEST,
    Operation,
    Status,
)

__all__ = ["LinkError", "SerialLink", "RegisterPort"]

_HEAD = struct.Struct("<BBH")
_TEXTS = {
    Status.REFUSED: "the board does not support this request",
    Status.BUS_ERROR: "there is nothing at such an address on the board",
    Status.BUS_TIMEOUT: "the board's bus did not answer",
    Status.LINE: "a byte reached the board damaged",
    Status.LENGTH: "the request was too long for the board",
    Status.INCOMPLETE: "only a part of the request reached the board",
    Status.CHECKSUM: "the request reached the board damaged",
}


class LinkError(RuntimeError):
    """An error for a failed transfer. The message is one line. `status` is the board's answer, or None without a readable
    answer."""

    def __init__(self, message, status=None):
        super().__init__(message)
        self.status = status


class SerialLink:
    """Access to a board's memory and to the registers of its core, over a serial line, by frames with checksums.

    One request is in flight at a time. A request that the board reports as not received is sent again, up to `retries` times. If
    repeating a request is not safe, the report must have the tag of the request: the board also answers noise. A request with a
    missing or damaged answer is sent again if repeating it is safe. After a failure, the link stays silent until the board is
    certainly ready for the next transfer.

    Parameters
    ----------
    transport : object
        Object with three async methods. `send(data)` sends bytes. `receive(count, seconds)` returns the bytes received within
        that time, at most `count`. `drop(seconds)` discards input until the line has been silent for `seconds`; it returns False
        if that takes too long.
    baud : int
        Bits per second on the line. A byte takes ten bits.
    timeout : float
        Seconds to wait for an answer, in addition to the time that request and answer take on the line.
    silence : float
        Seconds of silence after which the board discards an incomplete frame.
    retries : int
        Number of additional attempts.
    """

    def __init__(self, transport, *, baud, timeout=1.0, silence=0.1, retries=2):
        self._transport = transport
        self._baud, self._timeout, self._silence, self._retries = baud, timeout, silence, retries
        self._tag = 0
        self._words = 1  # largest number of words in a frame, until the board reports its own
        self._settled = False
        self.registers = RegisterPort(self)

    async def identify(self):
        """Returns the words of :data:`hw.spec.serial_protocol.IDENTITY`, as a dict by name. Raises LinkError if no such board
        answers."""
        data = await self._exchange(Operation.IDENTIFY, "identification", answer=len(IDENTITY))
        found = dict(zip(IDENTITY, struct.unpack(f"<{len(IDENTITY)}I", data)))
        if found["identifier"] != BRIDGE_IDENTIFIER:
            raise LinkError(f"no amaranth-tpu there: its identifier is {found['identifier']:#010x}")
        if found["version"] != BRIDGE_VERSION:
            raise LinkError(
                f"the board uses version {found['version']} of the serial protocol, this driver version {BRIDGE_VERSION}"
            )
        self._words = found["words"]
        return found

    async def read(self, address, size, progress=None):
        """Reads `size` bytes of the board's memory starting at `address`, both multiples of 4. `progress` is called with `(done,
        total)` bytes."""
        data = b""
        while len(data) < size:
            words, place = min(self._words, (size - len(data)) // 4), address + len(data)
            data += await self._exchange(
                Operation.READ, f"read of {4 * words} bytes at {place:#x}", place, count=words, answer=words
            )
            if progress:
                progress(len(data), size)
        return data

    async def write(self, address, data, progress=None, again=True):
        """Writes `data` to the board's memory starting at `address`. Address and size must be multiples of 4. `again` tells if
        repeating the write is safe."""
        step = 4 * self._words
        for first in range(0, len(data), step):
            part, place = data[first : first + step], address + first
            await self._exchange(
                Operation.WRITE, f"write of {len(part)} bytes at {place:#x}", place, part, count=len(part) // 4, again=again
            )
            if progress:
                progress(first + len(part), len(data))

    async def _exchange(self, operation, what, address=0, data=b"", *, count=0, answer=0, again=True):
        """Sends a request and returns the data of its answer, `answer` words. `what` names the request in messages. Raises
        LinkError."""
        attempts = 0
        while attempts <= self._retries:
            attempts += 1
            if not self._settled and not await self._transport.drop(self._silence):
                raise LinkError(f"{what}: the line is never silent; is another device at its other end?")
            self._settled = False
            self._tag = (self._tag + 1) % 256
            body = _HEAD.pack(operation.value, self._tag, count) + address.to_bytes(4, "little") + data
            frame = bytes([REQUEST]) + body + zlib.crc32(body).to_bytes(4, "little")
            await self._transport.send(frame)
            status, found = await self._answer(answer, len(frame), again)
            if status is Status.OK:
                self._settled = True
                return found
            if status not in NOT_RECEIVED and not (status is None and again):
                break
        tried = f" ({attempts} attempts)" if attempts > 1 else ""
        raise LinkError(f"{what}: {found if status is None else _TEXTS[status]}{tried}", status)

    def _seconds(self, size):
        return self._timeout + 10 * size / self._baud

    async def _answer(self, words, sent, again):
        """Receives an answer of `words` words. Returns `(status, data)`. For an unreadable answer, returns None and the
        reason."""
        head = await self._transport.receive(1 + _HEAD.size, self._seconds(sent + 1 + _HEAD.size))
        if not head:
            return None, f"no answer within {self._timeout:g} s"
        if len(head) < 1 + _HEAD.size:
            return None, "only a part of the answer came"
        code, tag, count = _HEAD.unpack(head[1:])
        if head[0] != ANSWER or count > max(self._words, words):
            return None, "the bytes received are not an answer"
        rest = await self._transport.receive(4 * count + 4, self._seconds(4 * count + 4))
        if len(rest) < 4 * count + 4:
            return None, "only a part of the answer came"
        data, checksum = rest[:-4], rest[-4:]
        if zlib.crc32(head[1:] + data) != int.from_bytes(checksum, "little"):
            return None, "the answer came damaged"
        if code not in [status.value for status in Status]:
            return None, "the bytes received are not an answer"
        status = Status(code)
        if status in NOT_RECEIVED and (again or tag == self._tag):
            return status, b""
        if status in NOT_RECEIVED:  # the answer to a request whose head was damaged, or to noise; the request may have its own
            return await self._answer(words, 0, again)
        if tag != self._tag or count != (words if status is Status.OK else 0):
            return None, "an answer came to something else"
        return status, data


class RegisterPort:
    """A port for :class:`sim.host.driver.Driver`, which accesses the core's registers over a :class:`SerialLink`."""

    def __init__(self, link):
        self._link = link

    async def read(self, offset):
        return int.from_bytes(await self._link.read(REGISTERS_BASE + offset, 4), "little")

    async def write(self, offset, value):
        # Repeat a start only if the board reports that this request was not received.
        await self._link.write(REGISTERS_BASE + offset, value.to_bytes(4, "little"), again=offset != REGISTER["control"].offset)
