"""Proofs of the blocks that tiles pass: the weight FIFO, and the transposer."""

from amaranth_tpu.hw.array.transposer import Transposer
from amaranth_tpu.hw.array.weight_fifo import WeightFifo

from .induction import Proof, all_of, choose, count, queue_claims, selected

__all__ = ["TILES"]


class WeightFifos(Proof):
    """The proof that each lane reads all words in order, and that no word is overwritten before the last lane has read it. The
    writer counts credits: a vector takes one, and `freed` returns two."""

    name, tiles, cycles = "weight FIFO, 2 tiles of 2 vectors", 2, 2

    def make(self):
        return WeightFifo(n=2, tiles=self.tiles, skew=1)

    def ghosts(self):
        words = lambda lane: lambda s: s[f"words_{lane}"] + self.written(s) - count([self.steps(s)[lane]])  # noqa: E731
        return {
            "taken": (8, 0, lambda s: s["taken"] + self.written(s) - choose(s["freed"], 2, 0)),
            "open_tiles": (8, 0, lambda s: s["open_tiles"] + count([self.first(s)]) - count([s["freed"]])),
            "words_0": (8, 0, words(0)),
            "words_1": (8, 0, words(1)),
        }

    def first(self, s):
        """Returns a fact: the first word of a tile is read."""
        return s["available"] & (~s["loaded"] | s["tiles__switch"])

    def steps(self, s):
        """Returns for each lane a fact: it reads a word."""
        return [s["shifting"], s["lane_0.step_o"]]

    def written(self, s):
        return count([s["vectors__write"]])

    def place(self, s, lane):
        """Returns the address that a lane reads."""
        return (s[f"lane_{lane}.position"] + count([s[f"lane_{lane}.stepped"]])) & 3

    def assume(self, s):
        return [s["vectors__write"] >> (s["taken"] < 2 * self.tiles), s["tiles__switch"] >> s["loaded"]]

    def invariant(self, s):
        rest, stepped = count([s["remaining"]]), s["lane_0.step_o"]
        lasts = [s["lane_0.last_o"], s["lane_1.last_o"]]
        half = count([s["write_address"][0]])
        return [
            s["under_way"] == s["remaining"],
            s["loaded"] >> ~s["under_way"],
            s["available"] >> ((s["count"] > 0) & ~s["under_way"]),
            s["count"] <= self.tiles,
            s["count"] + s["count"] + half + rest == s["words_0"],
            s["words_1"] == s["words_0"] + count([stepped]),
            s["taken"] == s["words_0"] + s["open_tiles"] + s["open_tiles"] - rest,
            s["open_tiles"] == count([s["under_way"], *lasts]),
            s["taken"] <= 2 * self.tiles,
            stepped == (s["under_way"] | lasts[0]),
            *((s["write_address"] - self.place(s, lane) & 3) == (s[f"words_{lane}"] & 3) for lane in range(2)),
        ]

    def claims(self, s, t, u):
        found = {}
        for lane in range(2):
            rows, data = lambda one, lane=lane: one.rows(f"lane_{lane}.memory", 4), s["vectors__vector"]
            queue = queue_claims(
                s,
                t,
                contents=lambda one, lane=lane, rows=rows: [
                    selected(rows(one), self.place(one, lane) + place & 3) for place in range(4)
                ],
                level=lambda one, lane=lane: one[f"words_{lane}"],
                enters=s["vectors__write"],
                leaves=self.steps(s)[lane],
                data=data[16 * lane : 16 * lane + 16],
            )
            first = selected(rows(s), self.place(s, lane))
            found |= {f"lane {lane}: {text}": fact for text, fact in queue.items()}
            found |= {
                f"lane {lane}: a step sends the first word to the array": self.steps(s)[lane]
                >> (u["edge__w"][16 * lane : 16 * lane + 16] == first)
            }
        return found | {
            "a word is read only if it was written": s["shifting"] >> (s["words_0"] > 0),
            # promise: tile-shift
            "a tile begins only if the tile before it is active, or becomes active": self.first(s)
            >> (~s["under_way"] & (~s["loaded"] | s["tiles__switch"])),
            "`coming` exactly in the cycle before a whole tile is in the array": s["tiles__coming"]
            == (s["loaded"] | s["remaining"]),
            # promise: tile-order
            "a tile is marked once, with its first word": u["edge__mark"][0] == (s["shifting"] & ~s["under_way"]),
        }


class Transposers(Proof):
    """The proof that a tile leaves as it entered, or transposed, without a pause."""

    name, cycles = "transposer of 2 x 2", 2

    def make(self):
        return Transposer(n=2)

    def ghosts(self):
        """Returns the words of the tile that arrives, `new`, and the words that leave, `old`, by vector and place."""

        def enters(vector, place):
            taken = lambda s: s["i_valid"] & (s["number"] == bool(vector))  # noqa: E731
            return lambda s: choose(taken(s), _word(s["i"], place), s[f"new_{vector}{place}"])

        def leaves(vector, place):
            def following(s):
                (turns,) = s.found(r"transpose\$\d+")  # the register, which has the name of the port
                whole = choose(turns, s[f"new_{place}{vector}"], s[f"new_{vector}{place}"])
                return choose(s["last"], whole, s[f"old_{vector}{place}"])

            return following

        kinds = {"new": enters, "old": leaves}
        return {f"{kind}_{v}{r}": (16, None, make(v, r)) for kind, make in kinds.items() for v in (0, 1) for r in (0, 1)}

    def holds(self, s, tile, vector):
        """Returns a fact: the memory has a vector of a tile."""
        facts = []
        for column in range(2):
            rows = s.rows(f"column_{column}.memory", 2)
            address = count([s["diagonal"] ^ bool(vector)]) if column else vector
            facts.append(selected(rows, count([]) + address) == s[f"{tile}_{vector}{column ^ vector}"])
        return all_of(facts)

    def invariant(self, s):
        begun, entered = s["stored"] & s["stored_number"], s["stored"] & ~s["stored_number"]
        stored = [
            (s["stored"] & (s["stored_number"] == bool(vector)))
            >> all_of(_word(s["words"], place ^ vector) == s[f"new_{vector}{place}"] for place in range(2))
            for vector in range(2)
        ]
        return [
            *stored,
            s["stored"] >> (s["number"] ^ s["stored_number"]),
            s["last"] == begun,
            begun >> (~s["reading"] | s["read_number"]),
            (s["reading"] & ~s["read_number"]) >> (~begun & (s["number"] == s["stored"])),
            s["read_number"] >> s["reading"],
            # The first vector of the next tile is in the memory, unless it arrives there in this cycle.
            (begun | (s["number"] & ~entered)) >> self.holds(s, "new", 0),
            (s["reading"] & ~s["read_number"]) >> self.holds(s, "old", 0),
            s["reading"] >> self.holds(s, "old", 1),
        ]

    def claims(self, s, t, u):
        result = choose(s["read_number"], 1, 0)
        expected = [selected([s[f"old_{vector}{place}"] for vector in range(2)], result) for place in range(2)]
        return {
            "the vectors of a tile, or of the transposed tile, leave in order": s["reading"]
            >> (u["o_valid"] & all_of(_word(u["o"], place) == word for place, word in enumerate(expected))),
            "nothing else leaves": u["o_valid"] == s["reading"],
            "the first vector is read two cycles after the last one entered": (s["i_valid"] & s["number"])
            >> (u["reading"] & ~u["read_number"]),
            "the others follow without a pause": (s["reading"] & ~s["read_number"]) >> (t["reading"] & t["read_number"]),
        }


def _word(vector, place):
    return vector[16 * place : 16 * place + 16]


#: Proofs of the blocks that tiles pass.
TILES = [WeightFifos(), Transposers()]
