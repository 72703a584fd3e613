"""What goes over a board's serial line, described once: bridge, driver and datasheet read it here.

A request is the byte `REQUEST`, then 32-bit words, least significant byte first: head, address, data (of a WRITE), CRC-32.
The answer is the byte `ANSWER`, then: head, data (of a READ or an IDENTIFY that went well), CRC-32.

A head is an operation or a status (8 bits), a tag that the answer gives back (8), and a count of data words (16). The
CRC-32 is the one of Ethernet and zlib, over every byte but the first and its own.
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
#: The core's registers lie from here on, the memory from 0.
REGISTERS_BASE = 1 << 31

#: The words of the answer to an IDENTIFY.
IDENTITY = {
    "identifier": "0x54505542, 'TPUB'",
    "version": "version of this protocol",
    "words": "the most data words of a frame",
    "memory": "bytes of memory",
    "clock": "Hz of the core's clock",
}


class Operation(enum.Enum, shape=8):
    IDENTIFY = 1
    READ = 2
    WRITE = 3


class Status(enum.Enum, shape=8):
    """How a request ended."""

    OK = 0
    REFUSED = 1
    BUS_ERROR = 2
    BUS_TIMEOUT = 3
    LINE = 4
    LENGTH = 5
    INCOMPLETE = 6
    CHECKSUM = 7


#: The request did not arrive whole, and had no effect: it can be sent again.
NOT_RECEIVED = (Status.LINE, Status.LENGTH, Status.INCOMPLETE, Status.CHECKSUM)
