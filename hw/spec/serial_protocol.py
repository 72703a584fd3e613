"""The protocol of a board's serial line, for the bridge, the driver and the datasheet.

A request is the byte `REQUEST`, then 32-bit words, least significant byte first: header, address, data (of a WRITE), CRC-32.
The answer is the byte `ANSWER`, then: header, data (of a successful READ or IDENTIFY), CRC-32.

A header has an operation or a status (8 bits), a tag that the answer repeats (8 bits), and the number of data words (16 bits).
The CRC-32 is the CRC of Ethernet and zlib. It covers all bytes except the first byte and its own bytes.
"""

from amaranth.lib import enum

__all__ = [
    "REQUEST",
    "ANSWER",
    "Operation",
    "Status",
    "IDENTITY",
    "BRIDGE_IDENTIFIER",
    "BRIDGE_VERSION",
    "REGISTERS_BASE",
    "NOT_RECEIVED",
]

REQUEST = 0xA5
ANSWER = 0x5A
#: "TPUB" in ASCII, first letter in the high byte.
BRIDGE_IDENTIFIER = 0x54505542
BRIDGE_VERSION = 1
#: Address of the core's registers. The memory starts at 0.
REGISTERS_BASE = 1 << 31

#: The words of the answer to an IDENTIFY.
IDENTITY = {
    "identifier": "0x54505542, 'TPUB'",
    "version": "version of this protocol",
    "words": "maximum number of data words in a frame",
    "memory": "bytes of memory",
    "clock": "Hz of the core's clock",
}


class Operation(enum.Enum, shape=8):
    IDENTIFY = 1
    READ = 2
    WRITE = 3


class Status(enum.Enum, shape=8):
    """The outcomes of a request."""

    OK = 0
    REFUSED = 1
    BUS_ERROR = 2
    BUS_TIMEOUT = 3
    LINE = 4
    LENGTH = 5
    INCOMPLETE = 6
    CHECKSUM = 7


#: Outcomes of a request that did not arrive whole. It had no effect, and can be sent again.
NOT_RECEIVED = (Status.LINE, Status.LENGTH, Status.INCOMPLETE, Status.CHECKSUM)
