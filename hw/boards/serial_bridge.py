"""The serial bridge from frames on a serial line to accesses on a bus. A host reaches the core through it by a USB cable."""

from amaranth import Array, Cat, Const, Module, Mux, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.crc.catalog import CRC32_ISO_HDLC
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..bus.axi import OKAY, axi4_lite_signature
from ..lib.memories import NO_COLLISIONS
from ..spec.serial_protocol import ANSWER, BRIDGE_IDENTIFIER, BRIDGE_VERSION, IDENTITY, REQUEST, Operation, Status
from .uart import UartReceiver, UartTransmitter

__all__ = ["SerialBridge"]


class SerialBridge(wiring.Component):
    """A bridge from :mod:`hw.spec.serial_protocol` to AXI4-Lite. It takes one request at a time and answers every request.

    A request has no effect before its checksum is verified. A request is broken if it has a byte without a stop bit, a count
    above `words`, a wrong checksum or a wrong first byte, or if it stops in the middle. The bridge answers a broken request with
    its status after the line has been silent for `silence` cycles, and then accepts the next request. Bytes that arrive while a
    request is executed and answered are lost.

    Data words are read or written in order, at successive addresses 4 bytes apart. The request ends with the first access that
    gets an error response, or no response within `patience` cycles. An access that timed out stays on the bus, as AXI requires,
    and its response is discarded. A later access waits for that response, with the same time limit.

    Parameters
    ----------
    step : int
        From :func:`hw.boards.uart.bit_step`.
    silence, patience : int
        Cycles, rounded up to a power of two.
    words : int
        Most data words of a frame: 5, as IDENTIFY returns, to 512.
    identity : dict
        Words `memory` and `clock` of the answer to IDENTIFY.

    Members
    -------
    rx : 1, in
    tx : 1, out
        The serial line.
    bus : AXI4-Lite, out
        One access at a time.
    busy : 1, out
        A request is being received, executed or answered.
    failed : 1, out
        The last request was answered with an error.
    """

    def __init__(self, *, step, silence, identity, patience=1 << 12, words=256):
        if not len(IDENTITY) <= words <= 512:
            raise ValueError(f"words must be {len(IDENTITY)} to 512, not {words!r}")
        if silence < patience:
            raise ValueError(f"silence must be at least patience ({patience}), not {silence!r}")
        self.step = step
        self.silence = silence
        self.patience = patience
        self.words = words
        self.identity = {"identifier": BRIDGE_IDENTIFIER, "version": BRIDGE_VERSION, "words": words, **identity}
        assert list(self.identity) == list(IDENTITY)
        super().__init__(
            {
                "rx": In(1, init=1),
                "tx": Out(1, init=1),
                "bus": Out(axi4_lite_signature(address_width=32)),
                "busy": Out(1),
                "failed": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.receiver = receiver = UartReceiver(step=self.step)
        m.submodules.transmitter = transmitter = UartTransmitter(step=self.step)
        # Two halves: block RAMs of 16 bits can include the registers after them.
        halves = [Memory(shape=16, depth=self.words, init=[], attrs=NO_COLLISIONS) for _ in range(2)]
        m.submodules.buffer_low, m.submodules.buffer_high = halves
        m.d.comb += [receiver.line.eq(self.rx), self.tx.eq(transmitter.line)]

        # The current frame. Bytes of both directions shift through `word`. Registers that need no reset have none, to save area.
        identifying, reading, writing = (Signal(reset_less=True, name=name) for name in ("identifying", "reading", "writing"))
        tag = Signal(8, reset_less=True)
        count, position = (Signal(range(self.words + 1), reset_less=True, name=name) for name in ("count", "position"))
        address, word = (Signal(32, reset_less=True, name=name) for name in ("address", "word"))
        place, status = Signal(2, reset_less=True), Signal(Status)
        fetched = Signal(2)  # the buffer's output belongs to `position`: at the memory, in the register after it
        summed = Signal()  # `word` is the checksum of the answer

        # The checksum takes one bit a cycle, as bytes are many cycles apart.
        checksum, restart = CRC32_ISO_HDLC(data_width=1).create(), Signal()
        m.submodules.checksum = ResetInserter(restart)(checksum)
        unsummed, bits = Signal(8, reset_less=True), Signal(range(9))
        summing = Signal()
        m.d.comb += [summing.eq(bits != 0), checksum.data.eq(unsummed[0]), checksum.valid.eq(summing)]
        with m.If(summing):
            m.d.sync += [unsummed.eq(unsummed >> 1), bits.eq(bits - 1)]

        # One timer for all time limits; it counts unless it is cleared.
        timer = Signal(ceil_log2(self.silence) + 1, reset_less=True)
        silent, impatient = Signal(), Signal()
        m.d.comb += [silent.eq(timer[-1]), impatient.eq(timer[ceil_log2(self.patience)])]
        m.d.sync += timer.eq(timer + 1)

        bus, outstanding = self.bus, Signal()
        m.d.comb += [bus.araddr.eq(bus.awaddr), bus.wstrb.eq(0b1111), bus.bready.eq(1), bus.rready.eq(1)]
        for ready, valid in ((bus.awready, bus.awvalid), (bus.wready, bus.wvalid), (bus.arready, bus.arvalid)):
            with m.If(ready):
                m.d.sync += valid.eq(0)
        # The response, one cycle after it was on the bus.
        answered, refused, found = Signal(), Signal(reset_less=True), Signal(32, reset_less=True)
        m.d.sync += [
            answered.eq(bus.bvalid | bus.rvalid),
            refused.eq(Mux(reading, bus.rresp, bus.bresp) != OKAY),
            found.eq(bus.rdata),
        ]
        with m.If(answered):
            m.d.sync += outstanding.eq(0)

        identity = Array(Const(value, 32) for value in self.identity.values())
        keep, kept, read = Signal(), Signal(32), Signal(32, reset_less=True)
        for half, memory in enumerate(halves):
            write_port, read_port = memory.write_port(), memory.read_port()
            m.d.comb += [
                write_port.en.eq(keep),
                write_port.addr.eq(position),
                write_port.data.eq(kept.word_select(half, 16)),
                read_port.en.eq(1),
                read_port.addr.eq(position),
            ]
            m.d.sync += read.word_select(half, 16).eq(read_port.data)
        with m.If(identifying):
            m.d.comb += kept.eq(identity[position[: ceil_log2(len(IDENTITY))]])
        with m.Elif(reading):
            m.d.comb += kept.eq(found)
        with m.Else():
            m.d.comb += kept.eq(word)
        m.d.sync += fetched.eq(Cat(1, fetched))

        # Both directions move words byte by byte.
        receiving, complete, byte = Signal(), Signal(), Signal(8)
        moved = Signal()
        m.d.comb += byte.eq(Mux(receiving, receiver.data, word[:8]))
        m.d.sync += complete.eq(moved & (place == 3))
        with m.If(moved):
            m.d.sync += [word.eq(Cat(word[8:], receiver.data)), place.eq(place + 1), unsummed.eq(byte), bits.eq(8)]

        def end(reason, state="ANSWER"):
            m.d.sync += [status.eq(reason), timer.eq(0)]
            m.next = state

        def receive():
            """Adds the logic that receives a word of the request, or ends the request on an error. Returns the condition that the
            word is complete."""
            m.d.comb += [receiving.eq(1), moved.eq(receiver.valid)]
            with m.If(~receiver.idle):
                m.d.sync += timer.eq(0)
            with m.If(receiver.error):
                end(Status.LINE, "DRAIN")
            with m.Elif(silent):
                end(Status.INCOMPLETE)
            return complete

        def advance():
            m.d.sync += [position.eq(position + 1), fetched.eq(0)]

        last = Signal()  # valid together with `fetched`
        m.d.sync += last.eq(position + 1 == count)
        m.d.comb += [self.busy.eq(1), self.failed.eq(status != Status.OK)]
        with m.FSM():
            with m.State("LISTEN"):
                m.d.comb += self.busy.eq(0)
                m.d.comb += restart.eq(1)
                m.d.sync += [timer.eq(0), place.eq(0), position.eq(0), summed.eq(0)]
                with m.If(receiver.valid & (receiver.data == REQUEST)):
                    m.next = "HEAD"
                with m.Elif(receiver.valid | receiver.error):
                    end(Status.LINE, "DRAIN")

            with m.State("HEAD"):
                with m.If(receive()):
                    m.d.sync += [tag.eq(word[8:16]), count.eq(word[16:])]
                    m.d.sync += [
                        flag.eq(word[:8] == operation)
                        for flag, operation in (
                            (identifying, Operation.IDENTIFY),
                            (reading, Operation.READ),
                            (writing, Operation.WRITE),
                        )
                    ]
                    m.next = "ADDRESS"
                    with m.If(word[16:] > self.words):
                        end(Status.LENGTH, "DRAIN")

            with m.State("ADDRESS"):
                with m.If(receive()):
                    m.d.sync += address.eq(word)
                    m.next = "CHECK"
                    with m.If(writing & (count != 0)):
                        m.next = "DATA"

            with m.State("DATA"):
                with m.If(receive()):
                    m.d.comb += keep.eq(1)
                    advance()
                    with m.If(last):
                        m.next = "CHECK"

            with m.State("CHECK"):
                with m.If(receive()):
                    m.next = "JUDGE"

            with m.State("JUDGE"):
                m.d.sync += [position.eq(0), fetched.eq(0), timer.eq(0)]
                with m.If(~summing):
                    with m.If(~checksum.match_detected):
                        end(Status.CHECKSUM, "DRAIN")
                    with m.Elif(identifying):
                        m.d.sync += count.eq(len(IDENTITY))
                        m.next = "IDENTIFY"
                    with m.Elif((reading | writing) & (count != 0) & (address[:2] == 0)):
                        m.next = "ACCESS"
                    with m.Else():
                        end(Status.REFUSED)

            with m.State("DRAIN"):
                with m.If(~receiver.idle):
                    m.d.sync += timer.eq(0)
                with m.Elif(silent):
                    m.next = "ANSWER"

            with m.State("IDENTIFY"):
                with m.If(fetched.all()):
                    m.d.comb += keep.eq(1)
                    advance()
                    with m.If(last):
                        end(Status.OK)

            with m.State("ACCESS"):
                with m.If(~outstanding & fetched.all()):
                    m.d.sync += [bus.awaddr.eq(address), bus.wdata.eq(read), outstanding.eq(1), timer.eq(0)]
                    with m.If(reading):
                        m.d.sync += bus.arvalid.eq(1)
                    with m.Else():
                        m.d.sync += [bus.awvalid.eq(1), bus.wvalid.eq(1)]
                    m.next = "WAIT"
                with m.Elif(impatient):
                    end(Status.BUS_TIMEOUT)

            with m.State("WAIT"):
                with m.If(answered):
                    m.d.comb += keep.eq(reading)
                    m.d.sync += [address[2:].eq(address[2:] + 1), timer.eq(0)]
                    advance()
                    m.next = "ACCESS"
                    with m.If(refused):
                        end(Status.BUS_ERROR)
                    with m.Elif(last):
                        end(Status.OK)
                with m.Elif(impatient):
                    end(Status.BUS_TIMEOUT)

            with m.State("ANSWER"):
                m.d.comb += [restart.eq(1), transmitter.i.payload.eq(ANSWER), transmitter.i.valid.eq(1)]
                with m.If(writing | (status != Status.OK)):
                    m.d.sync += count.eq(0)
                m.d.sync += [position.eq(0), fetched.eq(0), place.eq(0)]
                with m.If(transmitter.i.ready):
                    m.next = "ANSWER_HEAD"

            with m.State("ANSWER_HEAD"):
                m.d.sync += word.eq(Cat(status, tag, count))
                m.next = "SEND"

            with m.State("SEND"):
                m.d.comb += [
                    transmitter.i.payload.eq(word[:8]),
                    transmitter.i.valid.eq(~complete),
                    moved.eq(transmitter.i.valid & transmitter.i.ready),
                ]
                with m.If(complete):
                    m.next = "SUM"
                    with m.If(position != count):
                        m.next = "SEND_DATA"
                    with m.Elif(summed):
                        m.next = "LISTEN"

            with m.State("SEND_DATA"):
                m.d.sync += word.eq(read)
                with m.If(fetched.all()):
                    advance()
                    m.next = "SEND"

            with m.State("SUM"):
                with m.If(~summing):
                    m.d.sync += [word.eq(checksum.crc), summed.eq(1)]
                    m.next = "SEND"
        return m
