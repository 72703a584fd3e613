"""Proofs of the units that move vectors: loads, stores, transposed loads, and the ports of the unified buffer and of UPDATE."""

from amaranth_tpu.hw.activation.update_unit import UpdateUnit, update_times
from amaranth_tpu.hw.array.buffer_port import BufferPort
from amaranth_tpu.hw.array.transposer import Transposer
from amaranth_tpu.hw.bus.read_unit import ReadUnit
from amaranth_tpu.hw.bus.store_unit import StoreUnit
from amaranth_tpu.hw.bus.transposed_loads import TransposedLoads
from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.operations import activate_layout, transfer_layout

from .induction import Proof, all_of, any_of, choose, count, queue_claims, selected

__all__ = ["MOVES"]


class Reads(Proof):
    """The proof that loads end in order, after all of their vectors, each in its row. It assumes that data arrives only for an
    operation at the head, which the manager's latency ensures."""

    name = "read unit"

    def __init__(self):
        self.transfer = transfer_layout(from_preset("plain", n=2, in_flight=4), Unit.LOAD)

    def make(self):
        return ReadUnit(transfer=self.transfer, bus_width=16, vector_width=32)

    def level(self, s):
        return count([s["present"], *(s["expected.held"][place] for place in range(8))])

    def contents(self, s):
        """Returns slot, vectors, row and kind of the operations, the oldest first."""
        rows = s.rows("expected.storage", 8)
        queued = [selected(rows, (s["expected.oldest"] + place) & 7) for place in range(8)]
        return [choose(s["present"], *pair) for pair in zip([s["head"], *queued], [*queued, queued[0]])]

    def invariant(self, s):
        held = [s["expected.held"][place] for place in range(8)]
        return [
            all_of(upper >> lower for lower, upper in zip(held, held[1:])),
            ((s["expected.newest"] - s["expected.oldest"]) & 7) == (count(held) & 7),
            s["present"] >> (s["final"] == (s["head"][2:15] == 1)),
            all_of((self.level(s) > place) >> (word[2:15] > 0) for place, word in enumerate(self.contents(s))),
        ]

    def assume(self, s):
        accepts = s["port__op__valid"] & s["port__op__ready"]
        return [s["host__answer__valid"] >> s["present"], accepts >> (s["port__op__payload"][34:47] > 0)]

    def claims(self, s, t):
        op = s["port__op__payload"]
        accepts = s["port__op__valid"] & s["port__op__ready"]
        slots = queue_claims(
            s,
            t,
            contents=lambda one: [word[0:2] for word in self.contents(one)],
            level=self.level,
            enters=accepts,
            leaves=s["port__done"],
            data=op[0:2],
        )
        write, left = s["vectors__write"], s["head"][2:15]
        moved = (t["head"][2:15] == left - 1) & (t["head"][15:27] == (s["head"][15:27] + 1)[0:12])
        kept = t["head"][2:27] == s["head"][2:27]
        entered = accepts >> all_of(
            (self.level(s) - count([s["port__done"]]) == place)
            >> ((word[2:15] == op[34:47]) & (word[15:27] == op[47:59]) & (word[27] == op[59]))
            for place, word in enumerate(self.contents(t))
        )
        return slots | {
            "an operation is requested exactly if it is taken": s["splitter.i__ready"] >> (t["host__request__valid"] == accepts),
            "an operation keeps its rows and their number": entered,
            "it is done exactly with its last vector": s["port__done"] == (write & (left == 1)),
            "`done` has the slot of the oldest operation": s["port__done"] >> (s["port__done_slot"] == self.contents(s)[0][0:2]),
            "a vector has the row of the oldest operation, and the next one the next row": write
            >> ((s["vectors__row"] == s["head"][15:27]) & ((left == 1) | moved)),
            "without a vector nothing moves": (s["present"] & ~write) >> (t["present"] & kept),
        }


class Stores(Proof):
    """The proof that a store reads its rows once, keeps the order of vectors, and has a place for each vector that it reads."""

    def __init__(self, ratio):
        self.ratio, self.name = ratio, f"store unit, vectors of {ratio} beats"
        self.transfer = transfer_layout(from_preset("plain", n=2, in_flight=4), Unit.STORE)

    def make(self):
        return StoreUnit(transfer=self.transfer, bus_width=32 // self.ratio, vector_width=32, outstanding=4)

    def _op(self, s, name):
        field = self.transfer[name]
        return s["port__op__payload"][field.offset : field.offset + field.width]

    def accepts(self, s):
        return s["port__op__valid"] & s["port__op__ready"]

    def reads(self, s):
        return s["buffer__read"] & s["buffer__grant"]

    def leaves(self, s):
        last = s["beat"][0] if self.ratio == 2 else any_of([True])
        return s["host__data__valid"] & s["host__data__ready"] & last

    def ghosts(self):
        """Returns the rows that are left to read, and the next one."""
        rows = lambda s: s["rows"] - count([self.reads(s)])  # noqa: E731
        row = lambda s: s["next_row"] + count([self.reads(s)])  # noqa: E731
        return {
            "rows": (13, 0, lambda s: choose(self.accepts(s), self._op(s, "vectors"), rows(s))),
            "next_row": (12, 0, lambda s: choose(self.accepts(s), self._op(s, "row"), row(s))),
        }

    def held(self, s):
        return [s["vectors.held"][place] for place in range(4)]

    def level(self, s):
        """Returns the number of vectors that have arrived and not left. A vector that bypassed the queue is stale in it."""
        return count(self.held(s)) - count([s["stale"]]) + count([s["come"]])

    def contents(self, s):
        rows = s.rows("vectors.storage", 4)
        queued = [selected(rows, (s["vectors.oldest"] + count([s["stale"]]) + place) & 3) for place in range(4)]
        here = count(self.held(s)) - count([s["stale"]])
        return [choose(here > place, word, s["held"]) for place, word in enumerate([*queued, queued[0]])]

    def invariant(self, s):
        held, owners = self.held(s), [s["owners.held"][place] for place in range(4)]
        apart = (s["vectors.newest"] - s["vectors.oldest"]) & 3
        places = s["places"] + self.level(s) + count([s["coming"], s["left"]])
        return [
            *(all_of(upper >> lower for lower, upper in zip(flags, flags[1:])) for flags in (held, owners)),
            apart == (count(held) & 3),
            ((s["owners.newest"] - s["owners.oldest"]) & 3) == (count(owners) & 3),
            s["stale"] >> (count(held) == 1),
            places == 4,
            s["reading"] == (s["rows"] > 0),
            s["reading"]
            >> ((s["rows_left"] == s["rows"]) & (s["final"] == (s["rows"] == 1)) & (s["buffer__row"] == s["next_row"])),
            s["buffer__read"] >> (s["reading"] & (s["places"] > 0)),
            *([] if self.ratio == 2 else [~s["beat"]]),
        ]

    def assume(self, s):
        return [self.accepts(s) >> (self._op(s, "vectors") > 0), s["host__answered"] >> s["owners.held"][0]]

    def claims(self, s, t):
        queue = queue_claims(
            s, t, contents=self.contents, level=self.level, enters=s["coming"], leaves=self.leaves(s), data=s["buffer__operand"]
        )
        first = self.contents(s)[0]
        beat = choose(s["beat"][0], first[16:32], first[0:16]) if self.ratio == 2 else first
        owner = selected(s.rows("owners.storage", 4), s["owners.oldest"])
        return queue | {
            "a beat on the bus belongs to the first vector": s["host__data__valid"] >> (s["host__data__payload"] == beat),
            "the queue has a place for a vector that arrives": s["come"] >> ~s["vectors.held"][3],
            "an operation reads its rows in order, once each": s["buffer__read"]
            >> ((s["rows"] > 0) & (s["buffer__row"] == s["next_row"])),
            "the next operation begins when all rows are read": self.accepts(s) >> (s["rows"] == 0),
            "an operation is done with the response to its last burst": (s["port__done"] == (s["host__answered"] & owner[2]))
            & (s["port__done_slot"] == owner[0:2]),
            "a row is read while a place is free": s["buffer__read"] >> (s["places"] > 0),
        }


class Port(Proof):
    """The proof that each granted access to the vector port of the unified buffer, and each load, reaches the memory once."""

    def __init__(self, ring, latency):
        self.clients, self.latency = ["results", *(["ring"] if ring else []), "store"], latency
        self.name = f"buffer port{' with a ring' * ring}, latency {latency}"

    def make(self):
        transfer = transfer_layout(from_preset("plain", n=2, in_flight=4), Unit.LOAD)
        return BufferPort(n=2, depth=16, transfer=transfer, ring="ring" in self.clients, latency=self.latency)

    def writes(self, s, client):
        """Returns the fact that a client asks to write. A read of the ring has priority over its write."""
        if client == "store":
            return any_of([])
        return s[f"{client}__write"] & ~(s["ring__read"] if client == "ring" else any_of([]))

    def asks(self, s, client):
        return self.writes(s, client) | s[f"{client}__read"]

    def invariant(self, s):
        return [s["results__grant"] == ~s["loading"]]

    def assume(self, s):
        return [~(s["results__read"] & s["results__write"])]

    def claims(self, s, t):
        loads, to = s["load__write"] & ~s["load__bias"], s if self.latency == 1 else t
        granted = {client: s[f"{client}__grant"] & self.asks(s, client) for client in self.clients}
        arrives, before = [], any_of([s["loading"]])
        for client, grant in granted.items():
            arrives.append((self.asks(s, client) & ~before) == grant)
            before |= self.asks(s, client)
            place = to["buffer__address"] == s[f"{client}__row"][0:4]
            arrives.append((grant & s[f"{client}__read"]) >> (to["buffer__read"] & ~to["buffer__write"] & place))
            if client != "store":
                data = to["buffer__vector"] == s[f"{client}__vector"]
                arrives.append((grant & self.writes(s, client)) >> (to["buffer__write"] & ~to["buffer__read"] & place & data))
        load = to["buffer__write"] & (to["buffer__address"] == s["row"][0:4]) & (to["buffer__vector"] == s["vector"])
        return {
            "a load is registered, and has priority over all others": (t["loading"] == loads)
            & (loads >> ((t["row"] == s["load__row"]) & (t["vector"] == s["load__vector"])))
            & (s["loading"] >> (load & ~any_of(granted.values()))),
            "at most one client is granted": count(granted.values()) <= 1,
            "a client is granted if no other of higher priority asks, and reaches the memory": all_of(arrives),
            "nothing else reaches the memory": (to["buffer__write"] | to["buffer__read"])
            >> (s["loading"] | any_of(granted.values())),
        }


class Transposed(Proof):
    """The proof that loads with and without transposition never leave in the same cycle, for tiles of 2 x 2."""

    name = "transposed loads"

    def __init__(self):
        self.transfer = transfer_layout(from_preset("vision", n=2, in_flight=4), Unit.LOAD)
        self.length = Transposer.latency + 1

    def make(self):
        return TransposedLoads(n=2, transfer=self.transfer)

    def begins(self, s):
        return s["load__op__valid"] & s["load__op__ready"]

    def transposes(self, s):
        return s["port__op__payload"][self.transfer["transpose"].offset]

    def last(self, s):
        """Returns the fact that the last vector of a tile enters the transposer."""
        return s["i__write"] & s["i__transpose"] & s["number"]

    def ghosts(self):
        """Returns the operations with and without transposition in the read unit, and the ages of the tiles in the transposer."""

        def following(transposed):
            def count_of(s):
                now = s["with_transpose"] if transposed else s["without"]
                kinds = [self.transposes(s), s["i__transpose"]]
                begins, ends = (kind if transposed else ~kind for kind in kinds)
                return now + count([self.begins(s) & begins]) - count([s["load__done"] & ends])

            return count_of

        def ages(s):
            older = choose(self.last(s), 1, 0)
            for place in range(self.length - 1):
                older = older + choose(s["tiles"][place], 2 << place, 0)
            return older

        return {"with_transpose": (6, 0, following(True)), "without": (6, 0, following(False)), "tiles": (self.length, 0, ages)}

    def assume(self, s):
        """Returns the rules of the read unit: at most nine operations, executed in order, and whole tiles."""
        kind, ends = s["i__transpose"], s["load__done"]
        return [
            self.begins(s) >> (s["with_transpose"] + s["without"] < 9),
            (s["i__write"] & ~kind) >> (s["without"] > 0),
            (s["i__write"] & kind) >> ((s["without"] == 0) & (s["with_transpose"] > 0)),
            ends >> s["i__write"],
            (ends & kind) >> s["number"],
        ]

    def invariant(self, s):
        tiles = [s["tiles"][age] for age in range(self.length)]
        ends = [s["ends.chain"][age] for age in range(self.length)]
        busy = s["with_transpose"] > 0
        return [
            s["open_"] == s["with_transpose"] + count(ends),
            s["with_transpose"] + s["without"] <= 9,
            *(tile >> (busy | any_of(ends[: age + 1])) for age, tile in enumerate(tiles)),
            *(end >> tile for end, tile in zip(ends, tiles)),
            *(~(one & other) for one, other in zip(tiles, tiles[1:])),
            s["number"] == s["transposer.number"],
            tiles[0] >> ~s["number"],
            s["number"] >> (busy & (s["without"] == 0)),
            s["transposer.last"] == tiles[0],
            s["transposer.reading"] == (tiles[1] | tiles[2]),
            s["transposer.read_number"] == tiles[2],
            s["transposer.found_valid"] == (tiles[2] | tiles[3]),
            s["transposer.o_valid"] == (tiles[3] | tiles[4]),
            (s["without"] > 0) >> ~any_of([*tiles, *ends]),
        ]

    def claims(self, s, t):
        out, direct = s["o__transpose"], s["i__write"] & ~s["i__transpose"]
        return {
            "at most one vector leaves in a cycle": ~(s["transposer.o_valid"] & direct),
            "a vector that arrives leaves, directly or through the transposer": s["o__write"] == (out | direct),
            "at most one operation ends in a cycle": ~(s["ends.chain"][self.length - 1] & s["load__done"] & ~s["i__transpose"]),
            "a transposing operation ends with its last vector": s["ends.chain"][self.length - 1] >> out,
            "an operation without transposition begins only if no other is open": (self.begins(s) & ~self.transposes(s))
            >> (s["open_"] == 0),
            "open operations are counted": s["open_"] <= 12,
            "an operation is passed on unchanged": self.begins(s) >> (s["load__op__payload"] == s["port__op__payload"]),
        }


class Updates(Proof):
    """The proof that UPDATE never reads two bias rows in a cycle, and is done after its last write."""

    def __init__(self, lanes, lead, latency):
        self.lanes, self.lead, self.latency = lanes, lead, latency
        self.times = update_times(2, lanes, lead, latency)
        self.name = f"update unit, {lanes} of 2 lanes, latencies {lead} and {latency}"
        self.layout = activate_layout(from_preset("transformer", n=4, update_lanes=2, in_flight=4))

    def make(self):
        return UpdateUnit(n=2, lanes=self.lanes, activate=self.layout, lead=self.lead, latency=self.latency)

    def steps(self, s):
        """Returns the registers of the steps; step k is k + 1 cycles after the address generator."""
        return [s[f"step_{place}"] for place in range(3 + self.times.result)]

    def invariant(self, s):
        """Returns the facts that a row begins only in even cycles, so that every step knows its parity."""
        even = [step[1] >> (s["cycle"] == (place % 2 == 0)) for place, step in enumerate(self.steps(s))]
        return even if self.lanes == 1 else [*even, *(~step[3] for step in self.steps(s))]

    def claims(self, s, t):
        steps, w = self.steps(s), self.times.w
        begins = s["running"] & ~s["cycle"]
        reads_w = steps[w - 1][0] & steps[w - 1][1]
        end = steps[-1]
        groups = 2 // self.lanes
        writes = [s["updates__write"][group] for group in range(groups)]
        return {
            "V and W are never read in the same cycle": ~(begins & reads_w),
            "the bias rows are read exactly for V and W": s["biases__read"] == (begins | reads_w),
            "a step writes one group of lanes": count(writes) == count([end[0]]),
            "an operation is done one cycle after its last write": t["port__done"] == (end[0] & end[2]),
            "an operation is taken only at the end of a row": s["port__op__ready"] >> s["cycle"],
        }


#: Proofs of the units that move vectors.
MOVES = [Reads(), Stores(1), Stores(2), Port(True, 1), Port(False, 2), Transposed(), Updates(1, 1, 1), Updates(2, 2, 3)]
