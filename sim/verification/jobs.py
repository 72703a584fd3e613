"""Random jobs for the bench of cores: programs with many hazards, refused words, bus errors, dead buses, aborts and resets, and
the comparison of their results with the C model."""

from dataclasses import dataclass, replace

import numpy as np

from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Fault, Opcode, Region, records, space_depth
from amaranth_tpu.hw.spec.registers import REGISTER, registers_of, stalls_of

from ..golden.c_machine import CCore, CMachineRing
from ..rtl.number_classes import numbers
from .bench import NEVER, CoreJob, Job, run_jobs
from .programs import SIZES, Hazards
from .spoils import lacks_tiles, other_rings, refusal, spoiled_region

__all__ = ["KINDS", "Mismatch", "Session", "Trial"]

#: Kinds of jobs, with the weights with which they are drawn.
KINDS = {
    "clean": 8, "refused": 18, "bad region": 2, "bus error": 3, "dead bus": 1,
    "abort": 1, "restart": 1, "reset": 1, "other rings": 2,
}  # fmt: skip
_QUIET, _FLUSH = 1 << REGISTER["status"].fields["quiet"][0], 1 << REGISTER["ring"].fields["flush"][0]
_ENDED = ("status", "fault_cause", "fault_pc", "cycles", "busy")


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
    """Random jobs for cores that start after power-up.

    Parameters
    ----------
    seed : int
    config : Config
    cores : int
        More than 1 needs `ring`.
    """

    def __init__(self, seed, config, cores=1):
        self.seed, self.config, self.cores = seed, config, cores
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

    def _places(self, sizes):
        """Returns the address of each region's contents, in different parts of the address space, and its distance from the
        region's base."""
        bus, share, places = self.config.bus_bytes, (1 << self.config.address_width) // len(sizes), {}
        for number, name in enumerate(self.rng.permutation(list(sizes))):
            room = (share - sizes[name]) // bus
            place = number * share + int(self.rng.choice([0, room, self.below(room + 1)])) * bus
            most = min(place // 32, (1 << 27) - sizes[name] // 32) + 1
            places[str(name)] = place, 32 * self.below(min(most, 1 << self.below(28)))
        return places

    def _image(self, program):
        words = [word if isinstance(word, int) else encode(word[0], **word[1]) for word in program]
        return b"".join(word.to_bytes(self.config.instruction_bytes, "little") for word in words)

    def draw(self):
        """Draws the next job, and appends its :class:`Trial`."""
        number = len(self.trials)
        kinds = {kind: weight for kind, weight in KINDS.items() if self.cores > 1 or kind != "other rings"}
        kind = "clean" if number == 0 else str(self.rng.choice(list(kinds), p=np.array([*kinds.values()]) / sum(kinds.values())))
        small, bases = self._window()
        sizes = self._sizes(small)
        program = self._program(number, small, bases, sizes)
        if kind != "clean":
            program = [word for word in program if word[0] is not Opcode.LOAD_TABLE]
        if kind == "refused":  # without the initialisation, because its results are undefined
            program = program[-1 - self.below(6 if self.chance(0.5) else 30) :]
        sizes["MODEL"] = self.config.instruction_bytes * (len(program) + 1)
        places = self._places(sizes)
        shifts = {name: shift for name, (_, shift) in places.items()}
        bases = {name: place - shift for name, (place, shift) in places.items()}
        ends, most = {name: shifts[name] + size for name, size in sizes.items()}, 1 << self.config.address_width
        # Sizes need not be whole beats.
        ends |= {name: min(end + self.below(32), most - bases[name]) for name, end in ends.items() if name != "MODEL"}
        causes = {"bus error": ("BUS_READ", "BUS_WRITE"), "dead bus": ("TIMEOUT",)}.get(kind, ())
        faults = {None, *((cause, None) for cause in causes)}
        near, program = self._image(program), relocated(program, shifts)
        if kind == "refused":
            cause, place = refusal(self, program, ends)
            faults = {(cause, shifts["MODEL"] + place * self.config.instruction_bytes)}
            if lacks_tiles(program):
                faults.add(("TIMEOUT", None))
        elif kind == "bad region":
            place = spoiled_region(self, program, bases, ends)
            faults = {None if place is None else ("ADDRESS", shifts["MODEL"] + place * self.config.instruction_bytes)}
        if self.cores > 1 and kind != "clean":  # a core that stops also ends the runs of the others
            faults = {None, *((cause.name, None) for cause in Fault)}
        image = self._image(program).ljust(sizes["MODEL"], b"\0")
        contents = [{name: self._numbers(size) for name, size in sizes.items() if name != "MODEL"} for _ in range(self.cores)]
        job = Job(
            cores=[],
            seed=self.below(1 << 32),
            latency=400 if self.chance(0.04) else int(self.rng.choice([1, 2, 5, 25, 60])),
            pause=float(self.rng.choice([0, 0.1, 0.4])),
            link_latency=self.below(4),
        )
        for rank, own in enumerate(contents):
            if kind == "other rings" and rank == self.cores - 1:
                image = self._image(other_rings(self, program)).ljust(sizes["MODEL"], b"\0")
            core = CoreJob([(places[name][0], data, True) for name, data in own.items()])
            core.segments.append((places["MODEL"][0], image, False))
            self._script(core, kind, rank, places, sizes, bases, ends)
            job.cores.append(core)
        self.is_dead = kind in ("dead bus", "reset")
        self.trials.append(
            Trial(kind, program, shifts["MODEL"], job, faults, self._expected(contents, near) if kind == "clean" else None)
        )

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

    # ---- scripts

    def _script(self, core, kind, rank, places, sizes, bases, ends):
        if self.is_dead or self.chance(0.05):
            core.reset(2 + self.below(3), alone=False)
        core.write("control", 2)
        core.poll("status", _QUIET)
        core.write("interrupt", 3)
        self._try_registers(core)
        for name, base in bases.items():
            for part, value in (("base_low", base & NEVER), ("base_high", base >> 32), ("size", ends[name])):
                core.write(f"{name.lower()}_{part}", value)
        core.write("pc", places["MODEL"][1])
        core.write("timeout", 30_000 + self.below(1 << 30) if kind == "clean" else 5000)
        if self.config.ring:
            position = REGISTER["ring"].pack(rank=rank, size=self.cores, flush=0)
            core.barrier()
            core.write("ring", position | _FLUSH)
            core.idle(100)
            core.barrier()
            core.write("ring", position)
            core.barrier()
        core.idle(self.below(60))
        if kind == "dead bus":
            core.hang_after = self.below(60)
        elif kind == "bus error":
            name = str(self.rng.choice(list(places)))
            first = places[name][0] + self.below(sizes[name])
            core.errors = (first, first + int(self.rng.choice([0, sizes[name] // 2])))
        core.write("control", 1)
        if kind in ("abort", "restart", "reset"):
            core.idle(self.below(3000))
        if kind in ("abort", "restart"):
            core.write("control", 2)
        elif kind == "reset":
            core.reset(1 + self.below(3), alone=True)
        if kind == "restart":
            core.write("control", 1)
        if kind not in ("abort", "reset"):
            core.wait(500_000, looks=self.below(3) and self.below(20))
        for name in (*_ENDED, *(f"stall_{name}" for name in stalls_of(self.config))):
            core.read(name)

    def _try_registers(self, core):
        """Writes and reads registers that keep values. The C model does the same."""
        others = ("interrupt", "ring")
        kept = [one for one in registers_of(self.config) if one.access == "rw" and one.name not in others]
        if self.chance(0.2):  # no register is there
            core.script.append(("write", 0x100 + 4 * self.below(64), self.below(1 << 32), 15))
        core.expected = []
        for register in self.rng.choice(kept, self.below(4)):
            value, other, strobe = self.below(1 << 32), self.below(1 << 32), self.below(16)
            mask = sum(255 << 8 * byte for byte in range(4) if strobe >> byte & 1)
            core.write(register.name, value)
            core.write(register.name, other, strobe)
            core.read(register.name)
            self.registers.write(register.name, value & ~mask | other & mask)
            core.expected.append(self.registers.read(register.name))

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
        return result.reads[-len(_ENDED) - len(stalls_of(self.config)) :]

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
