"""What each stage of a graph costs and how exact it is: expected, measured in the RTL, and against binary32 inference."""

from dataclasses import dataclass, replace

import numpy as np

from hw.isa import Opcode, encode
from hw.registers import STALLS

from .graph_golden import run_graph
from .memory_map import tiles_of
from .timing import MATMUL, simulate

__all__ = ["Layer", "expected_layers", "measured_layers", "layer_errors", "first_stages"]


@dataclass(frozen=True)
class Layer:
    """One stage over one batch.

    Parameters
    ----------
    name, kind : str
    shape : (int, int, int)
        Height, width and channels of its result.
    tiling : str
    macs : int
        Useful multiplications.
    compute_cycles : int
        Cycles of its passes.
    cycles : int
        By which it prolongs the run of the stages before it.
    utilisation : float
    read_beats, write_beats : int
    stalls : dict or None
        Cycles in which the array took no row, by reason. Only of a measured one.
    """

    name: str
    kind: str
    shape: tuple
    tiling: str
    macs: int
    compute_cycles: int
    cycles: int
    utilisation: float
    read_beats: int
    write_beats: int
    stalls: dict | None = None

    @property
    def bound(self):
        """What it takes most of its time for."""
        if self.stalls:
            reason, cycles = max(self.stalls.items(), key=lambda entry: entry[1])
            if cycles > self.cycles - sum(self.stalls.values()):
                return reason
        beats = self.read_beats + self.write_beats
        return "bus" if beats > self.compute_cycles else "array"


def _kind(stage):
    """In words."""
    parts = []
    for term in stage.terms:
        size = "x".join(map(str, term.kernel))
        identity = term.kernel == (1, 1) and term.groups == stage.channels
        name = "scale" if identity else "depthwise" if term.groups == stage.channels > 1 else "conv" if stage.size != (1, 1) \
            else "dense"
        parts.append(name if name in ("dense", "scale") else f"{name} {size}")
    words = [" + ".join(dict.fromkeys(parts))]
    if stage.pool:
        words.append("max " + "x".join(map(str, stage.pool.window)))
    function = stage.function if isinstance(stage.function, str) else stage.function.name
    if function != "none":
        words.append(function)
    if stage.softmax:
        words.append("softmax")
    if stage.times:
        words.append("product")
    return ", ".join(words)


def _tiling(plan, stage, config):
    height, width = stage.result_size
    columns = tiles_of(stage.channels, config.n)
    parts = [f"{plan.samples} x {plan.rows}x{plan.columns} of {height}x{width}"]
    if columns > 1:
        parts.append(f"{columns} column tiles" + (f" by {plan.together}" if plan.together > 1 else ""))
    if len(plan.blocks) > 1:
        parts.append(f"{len(plan.blocks)} blocks")
    return ", ".join(parts)


def first_stages(program, count):
    """The program of the first `count` stages: the same images, with the other instructions left out."""
    step = program.config.instruction_bytes
    kept = [program.model[i * step:(i + 1) * step] for i, op in enumerate(program.ops) if op.stage < count]
    size = program.instructions * step
    words = b"".join([*kept, encode(Opcode.HALT).to_bytes(step, "little")])
    return replace(program, model=words.ljust(size, b"\0") + program.model[size:], instructions=len(kept) + 1,
                   ops=tuple(op for op in program.ops if op.stage < count))


def _beats(program, stage):
    config = program.config
    vectors = {Opcode.LOAD: 1, Opcode.LOAD_BIAS: 2, Opcode.LOAD_WEIGHTS: config.n}
    mine = [op for op in program.ops if op.stage == stage]
    read = sum(op.rows * vectors.get(op.opcode, 0) for op in mine) * config.beats_per_vector
    return (read + len(mine) * config.instruction_bytes // config.bus_bytes,
            sum(op.rows for op in mine if op.opcode is Opcode.STORE) * config.beats_per_vector)


def _layers(program, totals, stalls=None):
    """Layers from what the first 1, 2, 3 ... stages take."""
    schedule, config = program.memory.schedule, program.config
    layers = []
    for number, (stage, plan) in enumerate(zip(schedule.stages, program.plan)):
        cycles = totals[number] - (totals[number - 1] if number else 0)
        own = stalls and {name: stalls[number][name] - (stalls[number - 1][name] if number else 0) for name in STALLS}
        macs = program.batch * schedule.graph.macs(stage)
        read, write = _beats(program, number)
        layers.append(Layer(
            stage.name, _kind(schedule.graph.stages[number]), (*stage.result_size, stage.channels), _tiling(plan, stage, config),
            macs, sum(op.passes * max(op.rows, config.n) for op in program.ops if op.stage == number and op.unit == MATMUL),
            cycles, macs / max(1, cycles) / config.n ** 2, read, write, own))
    return layers


def expected_layers(program):
    """Layers by the timing model."""
    return _layers(program, [simulate(first_stages(program, count + 1).ops, program.config).cycles
                             for count in range(len(program.plan))])


def measured_layers(program, run):
    """Layers in the RTL; `run(program)` gives the counters of a run of one batch, as :meth:`sim.driver.Driver.counters` does."""
    counters = [run(first_stages(program, count + 1)) for count in range(len(program.plan))]
    return _layers(program, [one["cycles"] for one in counters],
                   [{name: one[f"stall_{name}"] for name in STALLS} for one in counters])


def layer_errors(graph, model, samples, shape):
    """`{stage name: {"value", "largest", "rms", "scale"}}`: the golden model against binary32 inference by onnxruntime.

    `largest` and `rms` are of the difference, `scale` is the root mean square of the value itself. `samples` are float32
    (batch, input size); `shape` is that of one sample. Stages whose result is no value of the ONNX model are left out.
    """
    import onnx
    import onnxruntime

    proto = onnx.load(model)
    wanted = {stage.value: stage for stage in graph.stages if stage.value}
    known = {entry.name for entry in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in known)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    entry = session.get_inputs()[0]
    fixed = entry.shape[0] if isinstance(entry.shape[0], int) else len(samples)
    inputs = np.ascontiguousarray(samples, np.float32).reshape(-1, *shape)
    parts = [session.run(list(wanted), {entry.name: inputs[first:first + fixed]})
             for first in range(0, len(inputs) - fixed + 1, fixed)]
    _, kept = run_graph(graph, samples[:len(parts) * fixed], keep=True)
    errors = {}
    for index, stage in enumerate(wanted.values()):
        reference = np.concatenate([part[index] for part in parts]).astype(np.float64)
        ours = kept[stage.output].astype(np.float64).transpose(0, 3, 1, 2).reshape(reference.shape)
        difference = ours - reference
        errors[stage.name] = {"value": stage.value, "largest": float(np.abs(difference).max()),
                              "rms": float(np.sqrt(np.mean(difference ** 2))), "scale": float(np.sqrt(np.mean(reference ** 2)))}
    return errors
