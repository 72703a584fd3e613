"""Random jobs for the bench of cores: programs with many hazards, refused words, bus errors, dead buses, aborts and resets, and
the comparison of their results with the C model."""

from dataclasses import dataclass, replace

import numpy as np

from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Fault, Opcode, Region, records, space_depth
from amaranth_tpu.hw.spec.registers import stalls_of

from ..golden.c_machine import CCore, CMachineRing
from ..rtl.number_classes import numbers
from .bench import CoreJob, Job, run_jobs
from .directed import Directed
from .events import expected_events, program_events
from .host_script import ENDED, write_script
from .layout import lay_out
from .programs import SIZES, Hazards, initialisation, revelation
from .spoils import lacks_tiles, other_rings, refusal, refused_part, spoiled_region, transfer_alone, wide_word

__all__ = ["KINDS", "Mismatch", "Session", "Trial"]

#: Programs from which the one with the most missed events is chosen.
_DRAWS = 3
#: Kinds of jobs, with the weights with which they are drawn.
KINDS = {
    "clean": 8, "refused": 18, "bad region": 2, "bus error": 3, "dead bus": 1,
    "abort": 1, "restart": 1, "reset": 1, "other rings": 2, "bad ring": 1,
}  # fmt: skip


class Mismatch(AssertionError):
    """A core differs from the C model. The message names the seed and the job."""


@dataclass
class Trial:
    """One job, and its expected results.

    `program` : list of (Opcode, fields), or of words. `faults` : accepted `(cause, pc)`; None stands for DONE, and a pc of None
    for any. `after` : expected contents of the regions of each core; None if they are undefined. `first_pc` : place of the first
    instruction.
    """

    kind: str
    program: list
    first_pc: int
    job: Job
    faults: set
    after: list | None


def relocated(program, bases):
    """Returns a program with its rows in each memory moved to `bases`, by name of the memory, and its offsets by name of the
    region."""
    moved = []
    for opcode, fields in program:
        record = INSTRUCTIONS[opcode]
        places = {span.base: bases.get(span.space, 0) for span in record.spans}
        if record.transfer:
            places["offset"] = bases.get(fields["region"].name, 0)
        moved.append((opcode, fields | {name: fields.get(name, 0) + base for name, base in places.items()}))
    return moved


class Session:
    """Random jobs for cores that start after power-up. They are steered to events that no job has reached.

    Parameters
    ----------
    seed : int
    config : Config
    cores : int
        More than 1 needs `ring`.
    missed : set of events, optional
        Events to reach, see :mod:`.events`. Default: all.
    directed : sequence of Directed
        The first jobs. The others are random.
    """

    def __init__(self, seed, config, cores=1, missed=None, directed=()):
        self.seed, self.config, self.cores = seed, config, cores
        self.missed, self.directed = set(expected_events(config) if missed is None else missed), list(directed)
        self.rng = np.random.default_rng(seed)
        self.ring, self.registers = CMachineRing(config, [{}] * cores), CCore(config)
        self.trials, self.is_dead = [], True

    def below(self, bound):
        return int(self.rng.integers(0, bound))

    def chance(self, probability):
        return bool(self.rng.random() < probability)

    def _window(self):
        """Returns the core with smaller memories, so that instructions often access the same rows, and the first row of each."""
        config = self.config
        if self.chance(0.06):
            return config, {"buffer": 0, "acc": 0, "bias": 0, "update": 0}
        rows, sums, biases = (32, 16, 16) if self.chance(0.7) else (256, 64, 16)
        sizes = {"unified_buffer_depth": rows, "accumulator_depth": sums, "bias_depth": biases}
        small = replace(config, **{name: min(size, getattr(config, name)) for name, size in sizes.items()})
        bases = {}
        for space in ("buffer", "acc", "bias", "update"):
            room = space_depth(config, space) - space_depth(small, space)
            bases[space] = int(self.rng.choice([0, room, self.below(room + 1)]))
        return small, bases

    def _sizes(self, small):
        n, rows, biases = self.config.n, small.unified_buffer_depth, small.bias_depth
        stored = rows + 2 * small.accumulator_depth + 5 * biases
        least = {"INPUT": 2 * n * max(rows, 2 * biases), "OUTPUT": 2 * n * stored, "SCRATCH": 0}
        return {name: max(size, least[name]) + 64 * self.below(4) for name, size in SIZES.items()}

    def _loosened(self, program):
        """Replaces strides that no iteration uses by random numbers."""
        for opcode, fields in program:
            record = records(self.config)[opcode]
            loops = {loop for span in record.spans for loop in span.loops if loop[1] not in record.counts}
            loops |= {(span.rows[0], span.step) for span in record.spans if span.step in record.widths}
            for count, stride in sorted(loops):
                if fields.get(count) == 1 and self.chance(0.5):
                    fields[stride] = self.below(1 << record.widths[stride])
        return program

    def _program(self, number, small, bases, sizes):
        hazards = Hazards(self.rng, small, known_table=number > 0, sizes=sizes)
        hazards.long = 0.15
        hazards.has_table = not self.config.table_lanes or number % 8 > 0
        drawn = hazards.make(30 + self.below(60), self.cores)
        return self._loosened(relocated([(opcode, dict(fields)) for opcode, fields in drawn], bases))

    def _best_program(self, number, small, bases, sizes, end):
        """Returns the program, of a few random ones, that reaches the most missed events. They then count as reached."""
        programs = [self._program(number, small, bases, sizes) for _ in range(_DRAWS)]
        reached = [self.missed.intersection(program_events(self.config, one, self.cores, end)) for one in programs]
        best = max(range(_DRAWS), key=lambda index: len(reached[index]))
        self.missed -= reached[best]
        return programs[best]

    def _given_program(self, directed, sizes):
        hazards = Hazards(self.rng, self.config, sizes=sizes)
        hazards.cores = self.cores
        body = directed.body(hazards)
        ends = (initialisation, revelation) if directed.kind == "clean" else (lambda *_: [], lambda *_: [(Opcode.HALT, {})])
        return [*ends[0](self.config, sizes), *body, *ends[1](self.config, sizes)]

    def _image(self, program):
        words = [word if isinstance(word, int) else encode(word[0], **word[1]) for word in program]
        return b"".join(word.to_bytes(self.config.instruction_bytes, "little") for word in words)

    def _drawn(self, given, number, small, bases, sizes):
        """Returns the program of a job before its faults, and the target of the fault, if it has one."""
        end = "done" if given.kind == "clean" else "ended early"
        if given.body:
            program = self._given_program(given, sizes)
            self.missed -= set(program_events(self.config, program, self.cores, end))
        elif given.kind in ("refused", "bus error"):
            program = self._program(number, small, bases, sizes)
        else:
            program = self._best_program(number, small, bases, sizes, end)
        if given.kind != "clean":
            program = [word for word in program if word[0] is not Opcode.LOAD_TABLE]
        if given.kind == "refused":  # without the initialisation, because its results are undefined
            return refused_part(self, program)
        if given.kind == "bus error":
            return transfer_alone(self, program)
        if given.kind == "bad ring":
            program.insert(self.below(len(program)), (Opcode.RING, {"segment": 1, "rounds": 1}))
        return program, None

    def _spoil(self, given, program, layout, target):
        """Adds the fault of a job to its program or its regions. Returns the accepted faults."""
        kind = given.kind
        if kind == "refused":
            ends = layout.ends
            cause, place = wide_word(self, program, ends, given.wide) if given.wide else refusal(self, program, ends, target)
            faults = {(cause, layout.pc(place)), *([("TIMEOUT", None)] if lacks_tiles(program) else [])}
        elif kind == "bad region":
            place = spoiled_region(self, program, layout.bases, layout.ends, *given.spoil)
            faults = {None if place is None else ("ADDRESS", layout.pc(place))}
        elif kind == "bad ring":
            return {("RING", layout.pc(next(place for place, word in enumerate(program) if word[0] is Opcode.RING)))}
        else:
            causes = {"bus error": ("BUS_READ", "BUS_WRITE"), "dead bus": ("TIMEOUT",)}.get(kind, ())
            faults = {None, *((cause, None) for cause in causes), *([("TIMEOUT", None)] if given.silent else [])}
        if self.cores > 1 and kind != "clean":  # a core that stops also ends the runs of the others
            faults = {None, *((cause.name, None) for cause in Fault)}
        return faults

    def draw(self):
        """Draws the next job, and appends its :class:`Trial`."""
        number = len(self.trials)
        given = self.directed.pop(0) if self.directed else Directed(self._kind(number))
        kind = given.kind
        small, rows = (self.config, {}) if given.body else self._window()
        sizes = self._sizes(small)
        sizes |= {name: max(size, sizes[name]) for name, size in given.sizes.items()}
        program, target = self._drawn(given, number, small, rows, sizes)
        sizes["MODEL"] = self.config.instruction_bytes * (len(program) + 1)
        layout = lay_out(self, sizes)
        near, program = self._image(program), relocated(program, layout.shifts)
        faults = self._spoil(given, program, layout, target)
        image = self._image(program).ljust(sizes["MODEL"], b"\0")
        contents = [
            {name: given.contents(name, size) or self._numbers(size) for name, size in sizes.items() if name != "MODEL"}
            for _ in range(self.cores)
        ]
        job = Job(
            cores=[],
            seed=self.below(1 << 32),
            latency=given.latency if given.body else 400 if self.chance(0.04) else int(self.rng.choice([1, 2, 5, 25, 60])),
            pause=0.0 if given.body else float(self.rng.choice([0, 0.1, 0.4])),
            link_latency=self.below(4),
        )
        for rank, own in enumerate(contents):
            if kind == "other rings" and rank == self.cores - 1:
                image = self._image(other_rings(self, program)).ljust(sizes["MODEL"], b"\0")
            core = CoreJob([(layout.places[name][0], data, True) for name, data in own.items()])
            core.segments.append((layout.places["MODEL"][0], image, False))
            write_script(self, core, given, rank, layout, target)
            job.cores.append(core)
        self.is_dead = kind in ("dead bus", "reset") or given.silent is not None
        after = self._expected(contents, near) if kind == "clean" else None
        self.trials.append(Trial(kind, program, layout.shifts["MODEL"], job, faults, after))

    def _kind(self, number):
        kinds = {kind: weight for kind, weight in KINDS.items() if self.cores > 1 or kind != "other rings"}
        if not self.config.ring:
            del kinds["bad ring"]
        return str(self.rng.choice(list(kinds), p=np.array([*kinds.values()]) / sum(kinds.values()))) if number else "clean"

    def _numbers(self, size):
        """Returns bfloat16 of all classes, or binary32 close to 1 and -1, whose sums cancel in many bits."""
        if self.chance(0.3):
            count = size // 4
            upper = self.rng.choice([0x3F80, 0xBF80], count) + self.rng.choice([0, 0, 0, 1, 2, 0x7F, -0x80], count)
            lower = self.rng.choice([0, 0, 1, 2, 3, 0x40, 0x3C00, 0x8000], count)
            return (upper << 16 | lower).astype("<u4").tobytes()
        return numbers(self.rng, size // 2, self.rng.choice([0.02, 0.06, 0.3]), 16).astype("<u2").tobytes()

    def _expected(self, contents, image):
        for machine, own in zip(self.ring.machines, contents):
            machine.regions = {Region.MODEL: image} | {Region[name]: bytearray(data) for name, data in own.items()}
        self.ring.run()
        return [[bytes(machine.regions[Region[name]]) for name in contents[0]] for machine in self.ring.machines]

    # ---- results

    def run(self, coverage=None, quick=False):
        """Runs all trials on the RTL and compares them. Returns the results of the bench. Raises Mismatch. The parameters are
        described at :func:`.run_jobs`."""
        results = run_jobs(self.config, [trial.job for trial in self.trials], coverage=coverage, quick=quick)
        for number, (trial, found) in enumerate(zip(self.trials, results)):
            for rank, (core, result) in enumerate(zip(trial.job.cores, found)):
                if error := self._error(trial, core, result, rank):
                    raise Mismatch(f"seed {self.seed}, job {number} ({trial.kind}), core {rank} of {self.cores}: {error}")
        return results

    def _ended(self, result):
        return result.reads[-len(ENDED) - len(stalls_of(self.config)) :]

    def fault_of(self, result):
        """Returns the cause and the pc with which a core ended; None without a fault."""
        _, cause, pc, *_ = self._ended(result)
        return (Fault(cause).name, pc) if cause else None

    def _error(self, trial, core, result, rank):
        _, *reads = result.reads
        tried = reads[: len(core.expected)]
        if tried != core.expected:
            return f"registers read {tried}, not {core.expected}"
        status, cause, pc, cycles, *parts = self._ended(result)
        if sum(parts) != cycles:
            return f"{sum(parts)} cycles are accounted for, of {cycles}"
        if trial.kind in ("abort", "reset"):
            return None if status & 7 == 0 else f"status {status:#x} after a reset"
        fault = self.fault_of(result)
        if status & 7 != (4 if cause else 2):
            return f"status {status:#x} with cause {cause}"
        if fault not in trial.faults and (not fault or (fault[0], None) not in trial.faults):
            return f"{fault or 'no fault'}, expected {trial.faults}"
        if trial.after is not None:
            for name, one, two in zip("INPUT OUTPUT SCRATCH".split(), result.contents, trial.after[rank]):
                if one != two:
                    wrong = np.flatnonzero(np.frombuffer(one, np.uint8) != np.frombuffer(two, np.uint8))
                    return f"{len(wrong)} bytes of {name} differ, the first at {wrong[0]:#x}"
        return None
