"""Exchanges between the cores of a ring, as instructions."""

from amaranth_tpu.hw.spec.isa import Opcode

from ...golden.ring import words_sent

__all__ = ["emit_ring", "ring_words"]


def emit_ring(emitter, mode, buffer, result, segment, stride):
    """Emits RING instructions for segments of any length, split into rounds that fit the ring unit."""
    most = emitter.config.ring_depth
    whole = segment // most
    for first, size, rounds in ((0, most, whole), (whole * most, segment % most, 1)):
        if size and rounds:
            fields = {"mode": mode, "segment": size, "stride": stride, "rounds": rounds}
            emitter.emit(Opcode.RING, {**fields, "buffer": buffer + first, "result": result + first})


def ring_words(ops, cores, n):
    """Returns the number of 32-bit words that each core sends in a program."""
    fields = [op.fields for op in ops if op.opcode is Opcode.RING]
    return sum(words_sent(one["mode"], cores, one["segment"] * one["rounds"], n) for one in fields)
