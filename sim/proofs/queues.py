"""Proofs of queues and credit counters: no element is lost or overwritten, and the order is kept."""

from amaranth_tpu.hw.bus.weight_credits import WeightCredits
from amaranth_tpu.hw.control.operation_queue import OperationQueue
from amaranth_tpu.hw.lib.short_fifo import ShortFifo
from amaranth_tpu.hw.lib.skid_buffer import SkidBuffer
from amaranth_tpu.hw.ring.link_fifo import LinkFifo
from amaranth_tpu.hw.softmax.group_fifo import GroupFifo

from .induction import Proof, all_of, choose, count, queue_claims, selected

__all__ = ["QUEUES"]


def _bits(cycle, name, depth):
    return [cycle[name][place] for place in range(depth)]


def _is_thermometer(flags):
    return all_of(upper >> lower for lower, upper in zip(flags, flags[1:]))


def _in_order(rows, first):
    """Returns the rows of a circular buffer, from the row `first` on."""
    return [selected(rows, (first + place) & (len(rows) - 1)) for place in range(len(rows))]


def _address(cycle, name, depth):
    """Returns an address as a word; a memory of two rows has addresses of one bit."""
    return count([cycle[name]]) if depth == 2 else cycle[name]


class _Queue(Proof):
    """The proof of a queue of `depth` places."""

    title = ""

    def __init__(self, depth):
        self.depth, self.name = depth, f"{self.title} of {depth}"

    def queue(self, s, t, **ports):
        return queue_claims(s, t, contents=self.contents, level=self.level, **ports)


class _FlaggedQueue(_Queue):
    """The proof of a queue with a flag for each place. `data` is the name of the element in the ports' names."""

    data = ""

    def level(self, s):
        return count(_bits(s, "held", self.depth))

    def invariant(self, s):
        return [_is_thermometer(_bits(s, "held", self.depth))]

    def assume(self, s):
        return [s["w_en"] >> s["w_rdy"], s["r_en"] >> s["r_rdy"]]

    def claims(self, s, t):
        queue = self.queue(s, t, enters=s["w_en"], leaves=s["r_en"], data=s[f"w_{self.data}"])
        return queue | {
            "`w_rdy` exactly if a place is free": s["w_rdy"] == (self.level(s) < self.depth),
            "`r_rdy` exactly if an element is held, and it is offered": (s["r_rdy"] == (self.level(s) > 0))
            & (s["r_rdy"] >> (s[f"r_{self.data}"] == self.contents(s)[0])),
        }


class ShortFifos(_FlaggedQueue):
    title, data = "short FIFO", "data"

    def make(self):
        return ShortFifo(shape=3, depth=self.depth)

    def contents(self, s):
        return _in_order(s.rows("storage", self.depth), _address(s, "oldest", self.depth))

    def invariant(self, s):
        apart = (_address(s, "newest", self.depth) - _address(s, "oldest", self.depth)) & (self.depth - 1)
        return [*super().invariant(s), apart == (self.level(s) & (self.depth - 1))]


class OperationQueues(_FlaggedQueue):
    title, data = "operation queue", "slot"

    def make(self):
        return OperationQueue(slot=3, depth=self.depth)

    def contents(self, s):
        return [s["r_slot"], *(s[f"slot_{place}"] for place in range(1, self.depth))]


class SkidBuffers(_Queue):
    title = "skid buffer"

    def make(self):
        return SkidBuffer(payload=3)

    def contents(self, s):
        return [s["o__payload"], s["second"]]

    def level(self, s):
        return count([s["o__valid"], s["waiting"]])

    def invariant(self, s):
        return [s["waiting"] >> s["o__valid"], s["i__ready"] == ~s["waiting"]]

    def claims(self, s, t):
        enters, leaves = s["i__valid"] & s["i__ready"], s["o__valid"] & s["o__ready"]
        queue = self.queue(s, t, enters=enters, leaves=leaves, data=s["i__payload"])
        return queue | {
            "a free place is offered, and so is a held element": (s["i__ready"] == (self.level(s) < 2))
            & (s["o__valid"] == (self.level(s) > 0))
        }


class LinkFifos(_Queue):
    title, cycles = "link FIFO", 2

    def make(self):
        return LinkFifo(width=3, depth=self.depth)

    def held(self, s):
        read, write = _address(s, "read__addr", self.depth), _address(s, "write__addr", self.depth)
        apart = (write - read) & (self.depth - 1)
        return choose(s["held"] & (apart == 0), self.depth, apart)

    def places(self, s):
        """Returns the registers before the memory, in order, as (flag, payload)."""
        return [(s["o__valid"], s["o__payload"]), (s["spared"], s["spare"]), (s["fetched"], s["read__data"])]

    def level(self, s):
        return count(flag for flag, _ in self.places(s)) + self.held(s)

    def contents(self, s):
        registers, rows = self.places(s), _in_order(s.rows("memory", self.depth), _address(s, "read__addr", self.depth))
        found = []
        for place in range(self.depth):
            # The place-th element: registers that hold none are skipped.
            skipped, options = count([]), []
            for flag, payload in registers:
                options.append((flag & (skipped == place), payload))
                skipped = skipped + count([flag])
            word = selected(rows, count([]) + place - skipped)
            for chosen, payload in reversed(options):
                word = choose(chosen, payload, word)
            found.append(word)
        return found

    def invariant(self, s):
        whole = self.level(s) + count([s["left"]])
        return [
            s["level"] == whole,
            whole <= self.depth,
            ~s["held"] >> (_address(s, "read__addr", self.depth) == _address(s, "write__addr", self.depth)),
            s["i__ready"] >> (whole < self.depth),
            s["spared"] >> s["o__valid"],
        ]

    def claims(self, s, t, u):
        arrives, leaves = s["i__valid"] & s["i__ready"], s["o__valid"] & s["o__ready"]
        queue = self.queue(s, t, enters=arrives, leaves=leaves, data=s["i__payload"])
        kept = {text: ~s["flush"] >> fact for text, fact in queue.items()}
        return kept | {
            "what is offered is the first element": s["o__valid"] >> (s["o__payload"] == self.contents(s)[0]),
            # promise: ring-ready
            "READY exactly if a place is free, not counting one freed in the same cycle": t["i__ready"]
            == (t["level"] != self.depth),
            "a held element is offered within two cycles": ((self.level(s) > 0) & ~s["flush"] & ~t["flush"])
            >> (s["o__valid"] | t["o__valid"] | u["o__valid"]),
            "a flush discards all elements": s["flush"] >> (self.level(t) == 0),
            "an element that waits stays offered": (s["o__valid"] & ~s["o__ready"] & ~s["flush"])
            >> (t["o__valid"] & (t["o__payload"] == s["o__payload"])),
        }


class GroupFifos(_Queue):
    title, cycles = "group FIFO", 2

    def make(self):
        return GroupFifo(width=3, depth=self.depth)

    def level(self, s):
        return s["stored"]

    def contents(self, s):
        return _in_order(s.rows("memory", self.depth), s["read__addr"])

    def invariant(self, s):
        apart = (s["write__addr"] - s["read__addr"]) & (self.depth - 1)
        return [s["stored"] <= s["taken"], s["taken"] <= self.depth, apart == (s["stored"] & (self.depth - 1))]

    def assume(self, s):
        return [s["reserve"] >> s["space"], s["read"] >> (s["readable"] & s["advance"]), s["write"] >> (s["stored"] < s["taken"])]

    def claims(self, s, t, u):
        queue = self.queue(s, t, enters=s["write"], leaves=s["read"], data=s["i"])
        return queue | {
            "what is read is in `o` two steps later": (s["read"] & t["advance"]) >> (u["o"] == self.contents(s)[0]),
            "a stall holds it": ~s["advance"] >> ((t["o"] == s["o"]) & (t["read__data"] == s["read__data"])),
            "`space` exactly if a place is not taken": s["space"] == (s["taken"] < self.depth),
            "`readable` exactly if a group is stored": s["readable"] == (s["stored"] > 0),
        }


class Credits(Proof):
    """The proof of weight credits. Requested bursts wait, as in every stream."""

    def __init__(self, tiles, tile_beats):
        self.tiles, self.tile_beats, self.capacity = tiles, tile_beats, tiles * tile_beats
        self.name = f"weight credits, {tiles} tiles of {tile_beats} beats"

    def make(self):
        return WeightCredits(address_width=4, tiles=self.tiles, tile_beats=self.tile_beats, vector_beats=1)

    def ghosts(self):
        return {
            "stored": (12, 0, lambda s: s["stored"] + self.passed(s) - choose(s["freed"], self.tile_beats, 0)),
            "waited": (1, 0, lambda s: s["i__valid"] & ~s["i__ready"]),
            "asked": (5, 0, self.beats),
        }

    def beats(self, s):
        return s["i__payload"][4:9]

    def passed(self, s):
        return choose(self.passes(s), self.beats(s), 0)

    def passes(self, s):
        return s["o__valid"] & s["o__ready"]

    def invariant(self, s):
        room = s["room"] - s["taken"]
        return [
            s["room"] >= s["taken"],
            s["taken"] <= 16,
            s["stored"] + room == self.capacity,
            # Either condition of a burst leaves room for it beside the burst that is not yet subtracted.
            s["ample"] >> (room >= 16),
            (s["fits"] & s["i__valid"]) >> (self.beats(s) <= room),
            s["fits"] >> (~s["ample"] >> (s["taken"] == 0)),
        ]

    def assume(self, s):
        return [
            s["i__valid"] >> ((self.beats(s) >= 1) & (self.beats(s) <= 16)),
            s["freed"] >> (s["stored"] >= self.tile_beats),
            s["waited"] >> (s["i__valid"] & (self.beats(s) == s["asked"])),
        ]

    def claims(self, s, t):
        return {
            "beats requested and stored never exceed the FIFO": s["stored"] + self.passed(s) <= self.capacity,
            "a burst passes unchanged": self.passes(s) >> ((s["o__payload"] == s["i__payload"]) & s["i__ready"]),
            "nothing is taken without being passed on": (s["i__ready"] & s["i__valid"]) == self.passes(s),
        }


#: Proofs of the queues, at small sizes.
QUEUES = [
    *map(ShortFifos, (2, 4, 8)),
    *map(OperationQueues, (2, 4)),
    SkidBuffers(2),
    *map(LinkFifos, (4, 8)),
    *map(GroupFifos, (4, 8)),
    Credits(4, 16),
    Credits(2, 8),
]
