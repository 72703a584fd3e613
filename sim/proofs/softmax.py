"""Proofs of the lanes of softmax: credits and order of the divider bank, and of the groups on their way through the lanes."""

from amaranth_tpu.hw.softmax.divider_bank import DividerBank
from amaranth_tpu.hw.softmax.sum_control import SumControl

from .induction import Proof, any_of, choose, count, queue_claims, selected

__all__ = ["SOFTMAX"]


class Dividers(Proof):
    """The proof that a bank of dividers returns its results in order, and that its places suffice."""

    def __init__(self, dividers):
        self.dividers, self.name = dividers, f"divider bank of {dividers}"

    def make(self):
        return DividerBank(width=20, count=self.dividers)

    def working(self, s):
        return count(s["used"][place] for place in range(self.dividers))

    def level(self, s):
        return self.working(s) + count([s["sums.o__valid"], s["sums.waiting"]])

    def first(self, s):
        """Returns the index of the divider whose result leaves next."""
        return selected(range(self.dividers), _place(s["end"], self.dividers))

    def contents(self, s):
        totals = [s[f"total_{place}"] for place in range(self.dividers)]
        found = []
        for place in range(self.dividers + 2):
            index = self.first(s) + place
            turned = selected(totals * 2, index) if place < self.dividers else totals[0]
            waiting = choose(self.working(s) == place, s["sums.o__payload"], s["sums.second"])
            found.append(choose(self.working(s) > place, turned, waiting))
        return found

    def invariant(self, s):
        size, facts = self.dividers, []
        for end in range(size):
            for used in range(size + 1):
                turn = (s["end"] == 1 << end) & (self.working(s) == used)
                mask = sum(1 << (end + place) % size for place in range(used))
                facts.append(turn >> ((s["used"] == mask) & (s["begin"] == 1 << (end + used) % size)))
        return [
            *facts,
            any_of(s["end"] == 1 << place for place in range(size)),
            s["taken"] <= size + 2,
            self.level(s) <= s["taken"],
            s["sums.waiting"] >> s["sums.o__valid"],
            # A place is reserved before its sum arrives, so a waiting sum has left when the next one arrives.
            (s["sums.waiting"] & (self.working(s) < size)) >> (self.level(s) == s["taken"]),
        ]

    def assume(self, s):
        return [s["reserve"] >> s["space"], s["valid"] >> (self.level(s) < s["taken"])]

    def claims(self, s, t):
        leaves, sums = s["o__valid"] & s["o__ready"], s["valid"]
        data = choose(s["infinite"], s["total"] | (1 << 20), s["total"])
        queue = queue_claims(s, t, contents=self.contents, level=self.level, enters=sums, leaves=leaves, data=data)
        return queue | {
            "a sum with a reserved place is never lost": sums >> ~s["sums.waiting"],
            "`space` exactly if a place is not taken": s["space"] == (s["taken"] < self.dividers + 2),
            "a result is of the first sum": s["o__valid"]
            >> ((self.working(s) > 0) & (s["o__payload"][23] == self.contents(s)[0][20])),
        }


def _place(one_hot, size):
    """Returns the index of the bit that is set."""
    found = count([])
    for place in range(1, size):
        found = choose(one_hot[place], place, found)
    return found


class Lanes(Proof):
    """The proof that no group is lost on its way through the lanes, where it may stay for a left shift. The next group is read so
    late that it never reaches the stage of the shift too early."""

    name = "sum control of softmax"
    #: Stages before the shift.
    stages = 4

    def make(self):
        return SumControl(groups=2, tiles=4)

    def groups(self, s):
        """Returns the registers of groups in flight, the youngest first."""
        return [
            *(s[f"group_{stage}"] for stage in range(1, self.stages + 1)),
            s["held"],
            *(s[f"powered_{i}"] for i in range(3)),
            s["powered"],
        ]

    def ghosts(self):
        """Returns the places for powers, and for sums, that are taken by groups in flight."""
        written = lambda s: count([s["powered"][0] & s["powered"][4]])  # noqa: E731
        summed = lambda s: count([s["added"][0] & s["added"][3] & s["added"][2]])  # noqa: E731
        return {
            "kept": (8, 0, lambda s: s["kept"] + count([s["keeps"]]) - written(s)),
            "open_sums": (8, 0, lambda s: s["open_sums"] + count([s["adds"]]) - summed(s)),
        }

    def invariant(self, s):
        early = [s[f"group_{stage}"][0] for stage in range(1, self.stages + 1)]
        lefts = [s[f"left_{stage}"] for stage in range(1, self.stages + 1)]
        facts = []
        for old, valid in enumerate(early):
            facts.append(valid >> (s["pause"] + old + 1 > lefts[old]))
            facts += [(early[young] & valid) >> (lefts[old] < old - young) for young in range(old)]
            facts.append((valid & s["held"][0]) >> (s["steps"] + old < self.stages))
        late = [s["held"][0] >> (s["pause"] + self.stages + 1 > s["steps"])]
        flying = self.groups(s)
        sums = [group[0] & group[3] & group[2] for group in (*flying, s["added"])]
        kept = s["kept"] == count(group[0] & group[4] for group in flying)
        return [*facts, *late, kept, s["open_sums"] == count(sums)]

    def claims(self, s, t):
        last = s[f"group_{self.stages}"]
        return {
            "a group is read only if it is there, with a place for its powers and its sum": s["read"]
            >> (s["readable"] & (s["keeps"] >> s["may_keep"]) & (s["adds"] >> s["may_add"])),
            "no group reaches the shift before the last one has left it": (last[0] & s["held"][0]) >> (s["steps"] == 0),
            "a group that reaches the shift stays for its steps": last[0]
            >> ((t["held"] == last) & (t["steps"] == s[f"left_{self.stages}"])),
            "every place that is taken for powers is written, once": s["kept"] <= len(self.groups(s)),
            "every place that is taken for a sum is used, once": s["open_sums"] <= len(self.groups(s)) + 1,
            "a row gives its scale back with its last group": s["scale__ready"] >> (~s["active"] | s["read"]),
        }


#: Proofs of the lanes of softmax.
SOFTMAX = [Dividers(3), Dividers(2), Lanes()]
