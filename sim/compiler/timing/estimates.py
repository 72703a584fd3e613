"""Estimates of the cycles of a job: of the array, and of the vector port."""

from amaranth_tpu.hw.cycles import result_cycles
from amaranth_tpu.hw.spec.isa import Opcode

__all__ = ["array_cycles", "is_array_busier", "results_cycles", "whole_cycles"]

_PER_ROW = {"plain": 1, "wide": 2, "pool": 1, "beside": 2}  # cycles of the activation unit for each row of a result


def array_cycles(one, job, config):
    """Returns an estimate of the cycles of the array in a job. `job` is None for other work than sums."""
    _, rows, _, columns = job or (0, 0, 0, 0)
    return sum(product.inputs for product in one.products) * columns * max(rows, config.tile_cycles)


def results_cycles(one, job, config):
    """Returns an estimate of the cycles in which the vector port is busy with a job's results, and with their STOREs."""
    _, rows, _, columns = job or (0, 0, 0, 0)
    cycles = 0
    for result in one.results:
        height, width = result.spread or (1, 1)
        made = rows * height * width
        if result.pool:
            made = rows // (result.pool.window[0] * result.pool.window[1])
            cycles += columns * (rows + made)
        elif result.softmax:
            fields = {"rows": rows, "tiles": columns, "lanes": one.shape.lanes(one.shape.tiles - 1)}
            opcode = Opcode.SOFTMAX if result.softmax is True else Opcode.NORMALIZE
            cycles += result_cycles(config, opcode, fields)[0] + rows * columns
        else:
            kind = "wide" if result.matrix.wide else "beside" if result.beside else "plain"
            cycles += columns * (_PER_ROW[kind] + result.matrix.halves) * made
        if result.function.is_table:
            cycles += columns * rows * (config.n // config.table_lanes - 1)
    return cycles


def whole_cycles(cycles, run, config):
    """Returns the sum of one of these estimates over all rows of the sums of a run."""
    return sum(cycles(one, (0, one.shape.rows, 0, one.shape.tiles), config) for one in run if one.products)


def is_array_busier(run, config):
    """Returns True if sums take the array longer than their results take the vector port."""
    return whole_cycles(array_cycles, run, config) > whole_cycles(results_cycles, run, config)
