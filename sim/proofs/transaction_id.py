"""Proof of the transaction ID, whose state survives resets."""

from amaranth import Module, ResetInserter
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_tpu.hw.bus.transaction_id import TransactionId, id_port

from .induction import Proof, choose

__all__ = ["TRANSACTION_IDS"]


class _Restarted(wiring.Component):
    """The generator with an input `restart`, which is a reset in any cycle."""

    restart: In(1)
    asked: In(1)
    o: Out(id_port())

    def elaborate(self, platform):
        m = Module()
        m.submodules.inner = ResetInserter(self.restart)(generator := TransactionId())
        m.d.comb += generator.asked.eq(self.asked)
        connect(m, generator.o, flipped(self.o))
        return m


class TransactionIds(Proof):
    """The proof that the ID of requests differs from the last request's ID before the last reset, whatever resets come when."""

    name, cycles = "transaction ID", 4

    def make(self):
        return _Restarted()

    def requests(self, s):
        return s["asked"] & s["o__settled"]

    def ghosts(self):
        """Returns the last request's ID, if there was one, and if one came since the last restart."""
        return {
            "before": (1, None, lambda s: choose(self.requests(s), s["o__id"], s["before"])),
            "any": (1, 0, lambda s: s["any"] | self.requests(s)),
            "since": (1, 0, lambda s: ~s["restart"] & (s["since"] | self.requests(s))),
        }

    def assume(self, s):
        return [s["asked"] >> s["o__settled"]]

    def invariant(self, s):
        step = s["inner.step"]
        last, following = (row[0] for row in s.rows("inner.kept", 2))
        return [
            s["any"] >> (s["before"] == ~last),
            (step == 1) >> following,
            (step == 2) >> (s["any"] >> (following ^ last)),
            (step == 3) >> (following == last),
            s["since"] == (step == 3),
            s["since"] >> s["any"],
            s["o__settled"] >> (step[1] & (s["o__id"] == ~following)),
        ]

    def claims(self, *run):
        s, t = run[:2]
        resets = [one["restart"] for one in run]
        return {
            # promise: old-responses
            "the first request after a reset has another ID than the last request before": (
                self.requests(s) & s["any"] & ~s["since"]
            )
            >> (s["o__id"] ^ s["before"]),
            "all requests between two resets have one ID": (self.requests(s) & s["since"]) >> (s["o__id"] == s["before"]),
            "an ID stays until a reset": (s["o__settled"] & ~s["restart"]) >> (t["o__settled"] & (t["o__id"] == s["o__id"])),
            "the ID is valid three cycles after a reset, and not earlier": (resets[0] & ~resets[1] & ~resets[2] & ~resets[3])
            >> (run[4]["o__settled"] & ~run[3]["o__settled"]),
        }


#: The proof of the transaction ID.
TRANSACTION_IDS = [TransactionIds()]
