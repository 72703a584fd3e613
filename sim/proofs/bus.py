"""Proofs of the AXI managers, the splitter of bursts and the AXI4-Lite subordinate, by the rules of Arm IHI 0022."""

from amaranth_tpu.hw.bus.axi_reader import CLIENTS, LOAD_LIMIT, OUTSTANDING_READS, AxiReader
from amaranth_tpu.hw.bus.axi_writer import AxiWriter
from amaranth_tpu.hw.bus.burst_splitter import MAX_BURST, BurstSplitter

from .induction import Proof, all_of, any_of, choose, count, queue_claims, selected

__all__ = ["MANAGERS"]

#: Bits of an address, of a beat, of an address within a beat, and of the count of a transfer's beats.
_ADDRESS, _DATA, _LOW, _BEATS = 12, 16, 1, 8


def burst(payload):
    """Returns the address and the beats of a burst."""
    return payload[0:_ADDRESS], payload[_ADDRESS : _ADDRESS + 5]


def stays(s, t, valid, ready, *payload):
    """Returns the rule of every channel: what is offered stays, with the same payload, until it is taken."""
    return (s[valid] & ~s[ready]) >> (t[valid] & all_of(t[name] == s[name] for name in payload))


#: Ghosts of an ID that stays once it is settled.
_ID = {"was_settled": (1, 0, lambda s: s["own__settled"]), "was_id": (1, 0, lambda s: s["own__id"])}


def _keeps_id(s):
    return s["was_settled"] >> (s["own__settled"] & (s["own__id"] == s["was_id"]))


def _valid_bursts(s, *requests):
    """Returns the assumption that the clients' bursts have 1 to 16 beats."""
    found = [(s[f"{request}__valid"], burst(s[f"{request}__payload"])[1]) for request in requests]
    return all_of(valid >> ((beats >= 1) & (beats <= MAX_BURST)) for valid, beats in found)


def _constants(s, prefix):
    """Returns the fact that the fields of an address channel that never change have their values."""
    values = {"size": 1, "burst": 1, "lock": 0, "cache": 3, "prot": 0, "qos": 0}
    return all_of((s[f"bus__{prefix}{name}"] == value) for name, value in values.items())


class ReadManager(Proof):
    def __init__(self, outstanding, load_limit):
        self.outstanding, self.load_limit = outstanding, load_limit
        self.name = f"AXI read manager, {outstanding} bursts"

    def make(self):
        limits = {"outstanding": self.outstanding, "load_limit": self.load_limit}
        return AxiReader(address_width=_ADDRESS, data_width=_DATA, **limits)

    def ghosts(self):
        return _ID | {
            "in_flight": (8, 0, lambda s: s["in_flight"] + count([self.asked(s)]) - count([self.last(s)])),
            "load_beats": (10, 0, lambda s: s["load_beats"] + self.granted_beats(s) - count([self.is_load_beat(s)])),
        }

    def answers(self, s):
        return s["bus__rvalid"] & (s["bus__rid"] == s["own__id"]) & s["own__settled"]

    def grants(self, s):
        return [s[f"{client}__request__valid"] & s[f"{client}__request__ready"] for client in CLIENTS]

    def asked(self, s):
        return s["bus__arvalid"] & s["bus__arready"]

    def contents(self, s):
        rows, first = s.rows("owners.storage", self.outstanding), s["owners.r_port__addr"]
        return [selected(rows, (first + place) & (self.outstanding - 1)) for place in range(self.outstanding)]

    def owner(self, s):
        return selected(s.rows("owners.storage", self.outstanding), s["owners.r_port__addr"])

    def is_load_beat(self, s):
        return self.answers(s) & (self.owner(s) == CLIENTS.index("load"))

    def last(self, s):
        return self.answers(s) & s["bus__rlast"]

    def granted_beats(self, s):
        return choose(self.grants(s)[CLIENTS.index("load")], burst(s["load__request__payload"])[1], 0)

    def assume(self, s):
        requests = [f"{client}__request" for client in CLIENTS]
        return [
            _keeps_id(s),
            _valid_bursts(s, *requests),
            self.answers(s) >> (s["in_flight"] > 0),
            self.is_load_beat(s) >> (s["load_beats"] > 0),
        ]

    def invariant(self, s):
        apart = (s["owners.w_port__addr"] - s["owners.r_port__addr"]) & (self.outstanding - 1)
        level = s["owners.level"]
        return [
            apart == (level & (self.outstanding - 1)),
            level <= self.outstanding,
            s["room"] == (level < self.outstanding),
            level == s["in_flight"] + count([s["bus__arvalid"]]),
            s["loads"] + s["taken"] == s["load_beats"],
            s["load_beats"] <= self.load_limit,
            s["taken"] <= MAX_BURST,
            s["loads"] <= self.load_limit,
            ~s["loads_full"] >> (s["load_beats"] <= self.load_limit - MAX_BURST),
            (~s["draining"] | s["bus__arvalid"]) >> s["was_settled"],
        ]

    def claims(self, s, t):
        grant, chosen = any_of(self.grants(s)), choose(self.grants(s)[0], 0, choose(self.grants(s)[1], 1, 2))
        address, beats = zip(*(burst(s[f"{client}__request__payload"]) for client in CLIENTS))
        mine = [self.answers(s) & (self.owner(s) == index) & ~s["draining"] & ~s["control__flush"] for index in range(3)]
        told = [
            (t[f"{client}__answer__valid"] == (mine[index] & (s["bus__rresp"] == 0)))
            & (t[f"{client}__answer__error"] == (mine[index] & (s["bus__rresp"] != 0)))
            for index, client in enumerate(CLIENTS)
        ]
        wants = s["fetch__request__valid"] | s["weights__request__valid"] | (s["load__request__valid"] & ~s["loads_full"])
        free = (~s["bus__arvalid"] | s["bus__arready"]) & (s["owners.level"] < self.outstanding) & ~s["draining"]
        queue = queue_claims(
            s, t, contents=self.contents, level=lambda one: one["owners.level"], enters=grant, leaves=self.last(s), data=chosen
        )
        return {f"owners: {text}": fact for text, fact in queue.items()} | {
            "a request stays until it is accepted": stays(
                s, t, "bus__arvalid", "bus__arready", "bus__araddr", "bus__arlen", "bus__arid"
            ),
            # promise: always-ready
            "constant fields of the address": _constants(s, "ar") & s["bus__rready"],
            "one client at most is granted": count(self.grants(s)) <= 1,
            "a granted burst is on the bus in the next cycle, unchanged": grant
            >> (
                t["bus__arvalid"]
                & (t["bus__araddr"] == selected(address, chosen))
                & (t["bus__arlen"] + 1 == selected(beats, chosen))
            ),
            "no other burst is on the bus": t["bus__arvalid"] >> (grant | (s["bus__arvalid"] & ~s["bus__arready"])),
            # promise: outstanding
            "requested bursts in flight are at most the limit": s["in_flight"] + count([s["bus__arvalid"]]) <= self.outstanding,
            "beats of loads in flight are at most the limit": s["load_beats"] <= self.load_limit,
            # promise: old-responses
            "a beat reaches the client of its request, and no other": all_of(told),
            "the data of a beat": all_of(
                t[f"{client}__answer__valid"] >> (t[f"{client}__answer__data"] == s["bus__rdata"]) for client in CLIENTS
            ),
            # promise: quiet
            "quiet exactly if no burst is requested or in flight": s["control__quiet"]
            == (~s["bus__arvalid"] & (s["in_flight"] == 0)),
            "after a flush no burst is granted until the bus is quiet": (s["draining"] >> ~grant)
            & (s["control__flush"] >> t["draining"])
            & ((s["draining"] & ~s["control__quiet"]) >> t["draining"]),
            # promise: fault-reads
            "after a flush no response reaches a client": s["draining"]
            >> ~any_of(t[f"{client}__answer__{name}"] for client in CLIENTS for name in ("valid", "error")),
            "a client that may ask is granted if the bus is free": (free & wants) >> grant,
        }


class WriteManager(Proof):
    def __init__(self, outstanding):
        self.outstanding, self.name = outstanding, f"AXI write manager, {outstanding} bursts"

    def make(self):
        return AxiWriter(address_width=_ADDRESS, data_width=_DATA, outstanding=self.outstanding)

    def ghosts(self):
        """Returns the bursts without a response whose address, and whose last beat, was sent; and the beats that the data channel
        owes for the oldest burst, and for a burst that was taken before the last beat of that one left."""

        def sent(s, *names):
            return count([s[f"bus__{names[0]}"] & all_of(s[f"bus__{name}"] for name in names[1:])]) - count([self.answers(s)])

        return _ID | {
            "addresses": (8, 0, lambda s: s["addresses"] + sent(s, "awvalid", "awready")),
            "ends": (8, 0, lambda s: s["ends"] + sent(s, "wvalid", "wready", "wlast")),
            "due": (6, 0, self.due),
            "due_behind": (6, 0, self.due_behind),
        }

    def answers(self, s):
        return s["bus__bvalid"] & (s["bus__bid"] == s["own__id"]) & s["own__settled"]

    def takes(self, s):
        return s["client__burst__valid"] & s["client__burst__ready"]

    def sends(self, s):
        return s["bus__wvalid"] & s["bus__wready"]

    def enters(self, s, t):
        """Returns the fact that a beat enters the register of the data channel."""
        return t["bus__wvalid"] & (~s["bus__wvalid"] | s["bus__wready"])

    def beats(self, s):
        return burst(s["client__burst__payload"])[1]

    def remains(self, s):
        return s["due"] - count([self.sends(s)])

    def assume(self, s):
        return [_keeps_id(s), _valid_bursts(s, "client__burst"), self.answers(s) >> ((s["addresses"] > 0) & (s["ends"] > 0))]

    def invariant(self, s):
        on_bus, active = count([s["bus__wvalid"]]), s["active"]
        left = choose(active, s["left"], 0)
        return [
            s["pending"] == s["addresses"] + count([s["bus__awvalid"]]),
            s["pending"] == s["ends"] + count([active, s["bus__wvalid"] & s["bus__wlast"]]),
            s["pending"] <= self.outstanding,
            (~active & ~s["full"]) >> (s["pending"] < self.outstanding),
            active >> ((s["left"] >= 1) & (s["left"] <= MAX_BURST)),
            s["due"] + s["due_behind"] == left + on_bus,
            (s["due_behind"] > 0) >> ((s["due"] == 1) & active & s["bus__wvalid"] & s["bus__wlast"]),
            s["bus__wvalid"] >> (s["bus__wlast"] == (s["due"] == 1)),
            (s["bus__wvalid"] & s["bus__wlast"]) >> (s["due_behind"] == left),
            (s["bus__wvalid"] & ~s["bus__wlast"]) >> active,
            (~s["draining"] | s["bus__awvalid"]) >> s["was_settled"],
            s["due"] <= MAX_BURST,
        ]

    def claims(self, s, t):
        address, length = burst(s["client__burst__payload"])
        gives = s["client__data__valid"] & s["client__data__ready"]
        told = self.answers(s) & ~s["draining"] & ~s["control__flush"]
        return {
            "an address stays until it is accepted": stays(
                s, t, "bus__awvalid", "bus__awready", "bus__awaddr", "bus__awlen", "bus__awid"
            ),
            # promise: fault-writes
            "a beat stays until it is accepted": stays(
                s, t, "bus__wvalid", "bus__wready", "bus__wdata", "bus__wstrb", "bus__wlast"
            ),
            # promise: always-ready
            "constant fields of the address": _constants(s, "aw") & s["bus__bready"],
            "a burst is on the bus in the next cycle, unchanged": self.takes(s)
            >> (t["bus__awvalid"] & (t["bus__awaddr"] == address) & (t["bus__awlen"] + 1 == length)),
            "no other address is on the bus": t["bus__awvalid"] >> (self.takes(s) | (s["bus__awvalid"] & ~s["bus__awready"])),
            # promise: data-order
            "each burst has its number of beats, and WLAST in the last": s["bus__wvalid"]
            >> ((s["due"] > 0) & (s["bus__wlast"] == (s["due"] == 1))),
            # promise: data-order
            "a client's beat is on the bus in the next cycle, with all strobes": gives
            >> (self.enters(s, t) & (t["bus__wdata"] == s["client__data__payload"]) & (t["bus__wstrb"] == (1 << _DATA // 8) - 1)),
            # promise: fault-writes
            "any other beat has no strobes, and only after a flush": (self.enters(s, t) & ~gives)
            >> ((t["bus__wstrb"] == 0) & s["draining"]),
            # promise: writes-after-fault
            "after a flush the client's beats and bursts are not taken": (s["draining"] >> ~(gives | self.takes(s)))
            & (s["control__flush"] >> ~gives),
            "it drains until the bus is quiet": (s["control__flush"] | (s["draining"] & ~s["control__quiet"])) >> t["draining"],
            # promise: outstanding
            "bursts in flight are at most the limit": s["addresses"] + count([s["bus__awvalid"]]) <= self.outstanding,
            # promise: quiet
            "quiet exactly if no burst is requested or in flight": s["control__quiet"]
            == (~s["bus__awvalid"] & ~s["bus__wvalid"] & ~s["active"] & (s["addresses"] == 0)),
            # promise: old-responses
            "a response reaches the client, but none after a flush": (t["client__answered"] == told)
            & (t["client__error"] == (told & (s["bus__bresp"] != 0))),
            "a burst that may be taken is": (
                s["client__burst__valid"] & ~s["active"] & ~s["full"] & ~s["bus__awvalid"] & ~s["draining"]
            )
            >> self.takes(s),
        }

    def due(self, s):
        new = self.takes(s) & (self.remains(s) == 0)
        return choose(new, self.beats(s), choose(self.remains(s) == 0, s["due_behind"], self.remains(s)))

    def due_behind(self, s):
        return choose(self.takes(s) & (self.remains(s) != 0), self.beats(s), choose(self.remains(s) == 0, 0, s["due_behind"]))


class Splitter(Proof):
    def __init__(self, longest):
        self.longest, self.name = longest, f"burst splitter, blocks of {longest}"

    def make(self):
        return BurstSplitter(address_width=_ADDRESS, bus_bytes=1 << _LOW, beats_width=_BEATS, longest=self.longest)

    def ghosts(self):
        """Returns the place of the next beat of a transfer, and the number of its beats that are left."""
        return {"at": (_ADDRESS - _LOW, 0, self.next_place), "to_go": (_BEATS + 1, 0, self.next_left)}

    def next_place(self, s):
        moved = choose(self.sends(s), s["at"] + self.beats(s), s["at"])
        return choose(self.accepts(s), s["i__payload"][_LOW:_ADDRESS], moved)

    def next_left(self, s):
        left = choose(self.sends(s), s["to_go"] - self.beats(s), s["to_go"])
        return choose(self.accepts(s), s["i__payload"][_ADDRESS : _ADDRESS + _BEATS], left)

    def beats(self, s):
        return s["o__payload"][_ADDRESS : _ADDRESS + 5]

    def first(self, s):
        return s["o__payload"][_LOW:_ADDRESS]

    def in_block(self, s):
        return self.first(s) & (self.longest - 1)

    def accepts(self, s):
        return s["i__valid"] & s["i__ready"]

    def sends(self, s):
        return s["o__valid"] & s["o__ready"]

    def smaller(self, one, other):
        return choose(one <= other, one, other)

    def whole(self, s):
        """Returns the greatest length of the burst that is due."""
        return self.smaller(s["to_go"], count([]) + self.longest - self.in_block(s))

    def is_last(self, s):
        return s["o__payload"][_ADDRESS + 5]

    def invariant(self, s):
        behind = s["to_go"] - self.beats(s)
        after = count([]) + s["end"] + 1
        return [
            s["i__ready"] == ~s["o__valid"],
            s["o__valid"] == (s["to_go"] != 0),
            s["o__valid"] >> ((self.first(s) == s["at"]) & (self.beats(s) == self.whole(s)) & (self.is_last(s) == (behind == 0))),
            (s["o__valid"] & ~self.is_last(s))
            >> ((s["behind"] >= 1) & (after <= self.longest) & (behind == _times(s["behind"] - 1, self.longest) + after)),
            (s["o__valid"] & ~self.is_last(s)) >> (((self.first(s) + self.beats(s)) & (self.longest - 1)) == 0),
        ]

    def assume(self, s):
        return [s["i__valid"] >> ((s["i__payload"][_ADDRESS : _ADDRESS + _BEATS] != 0) & (s["i__payload"][0:_LOW] == 0))]

    def claims(self, s, t):
        return {
            "bursts follow each other without a gap, from the transfer's address": s["o__valid"]
            >> ((s["o__payload"][0:_LOW] == 0) & (self.first(s) == s["at"])),
            # promise: burst-length
            "a burst is not empty, and not beyond its transfer": s["o__valid"]
            >> ((self.beats(s) >= 1) & (self.beats(s) <= s["to_go"])),
            # promise: burst-length, burst-blocks
            "no burst crosses a block": s["o__valid"] >> (self.in_block(s) + self.beats(s) <= self.longest),
            # promise: burst-blocks
            "a burst ends with its block or its transfer": s["o__valid"] >> (self.beats(s) == self.whole(s)),
            "`last` marks the end of the transfer": s["o__valid"] >> (self.is_last(s) == (self.beats(s) == s["to_go"])),
            "a transfer is taken exactly if none is left": s["i__ready"] == (s["to_go"] == 0),
            "a burst stays until it is taken": stays(s, t, "o__valid", "o__ready", "o__payload"),
        }


def _times(word, factor):
    """Returns a word times a power of two."""
    total = word
    while factor > 1:
        total, factor = total + total, factor // 2
    return total


#: Proofs of the managers, at the limits of a core and at smaller ones.
MANAGERS = [
    *(ReadManager(4, 32), ReadManager(OUTSTANDING_READS, LOAD_LIMIT)),
    *(WriteManager(4), WriteManager(16)),
    *(Splitter(16), Splitter(2)),
]
