"""The ports of the memories on the chip: unified buffer, accumulators, biases and weight FIFO."""

from amaranth.lib.wiring import In, Out, Signature

__all__ = [
    "loads_port",
    "vectors_port",
    "weight_edge",
    "sums_edge",
    "pass_port",
    "tiles_port",
    "sums_port",
    "bias_port",
    "bias_rows_port",
    "updates_port",
    "part_port",
    "client_port",
    "memory_port",
]


def loads_port(transfer, vector_width):
    """Returns the signature of a port for vectors from host memory, as seen from the unit that reads them. There is no
    backpressure.

    Parameters
    ----------
    transfer : layout
        :func:`hw.spec.operations.transfer_layout`.
    vector_width : int
        Bits of a vector.

    Members
    -------
    write : 1, out
        `vector` is valid.
    row, bias, half, transpose, weight_format : out
        As in the operation; present if the layout has them. `row` is the row of the vector in the unified buffer, or, with
        `bias`, twice its bias row, plus 1 for the second vector of a whole row.
    last : 1, out
        The vector is the last one of its operation; present with `weight_format`.
    vector : vector_width, out
    """
    names = ("row", "bias", "half", "transpose", "weight_format")
    kinds = {name: Out(transfer[name].shape) for name in names if name in transfer.members}
    last = {"last": Out(1)} if "weight_format" in kinds else {}
    return Signature({"write": Out(1), **kinds, **last, "vector": Out(vector_width)})


def vectors_port(n, weight_rows=1):
    """Returns the signature of the port that writes vectors of weights to the weight FIFO, as seen from the writer. There is no
    backpressure.

    Members
    -------
    write : weight_rows, out
        Vectors that are valid: of 2, the lower one has the weights of an even column, the upper one of the next column.
    vector : 16 n weight_rows, out
        Lane 0 of each vector lowest.
    """
    return Signature({"write": Out(weight_rows), "vector": Out(16 * n * weight_rows)})


def weight_edge(rows, weight_rows=1):
    """Returns the signature of the left edge of the array for weights, as seen from the weight FIFO. Row r is r cell latencies
    later than row 0.

    Members
    -------
    w : 16 rows weight_rows, out
        Row 0 lowest. Of 2 words of a row, the upper one is for odd columns, and one cycle later than the lower one.
    mark : rows, out
        The (lower) word is the first of its tile.
    switch : rows, out
        Make the shadow tile active.
    """
    return Signature({"w": Out(16 * rows * weight_rows), "mark": Out(rows), "switch": Out(rows)})


def sums_edge(n):
    """Returns the signature of the upper and the lower edge of the array, as seen from the accumulators. Column c is c cycles
    later than column 0.

    Members
    -------
    top : 32 n, out
        Binary32 sums that enter the array, column 0 lowest.
    bottom : 32 n, in
        Sums that leave the array.
    """
    return Signature({"top": Out(32 * n), "bottom": In(32 * n)})


def pass_port(row, bias_row):
    """Returns the signature of the port for the sums of passes in the accumulators, as seen from the matrix multiply unit.

    Parameters
    ----------
    row, bias_row : shapes

    Members
    -------
    read_row : row, out
        The row that enters the array.
    start : 1, out
        Start from the biases of `bias_row`, not from the sums of `read_row`.
    bias_row : bias_row, out
    write : 1, out
        Write the sums that leave the array to `write_row`.
    write_row : row, out
    """
    return Signature({"read_row": Out(row), "start": Out(1), "bias_row": Out(bias_row), "write": Out(1), "write_row": Out(row)})


def tiles_port():
    """Returns the signature of the port for tiles of weights in the array, as seen from the matrix multiply unit.

    Members
    -------
    coming : 1, in
        The shadow registers hold a complete tile from the next cycle on.
    switch : 1, out
        Make that tile active.
    """
    return Signature({"coming": In(1), "switch": Out(1)})


def sums_port(row, n):
    """Returns the signature of a port for rows of sums in the accumulators, as seen from the unit that reads them.

    Members
    -------
    read : 1, out
    row : row, out
    data : 32 n, in
        The sums, one cycle after `read`, held until the next read.
    """
    return Signature({"read": Out(1), "row": Out(row), "data": In(32 * n)})


def bias_port(bias_row, n, *, halves):
    """Returns the signature of the port that writes biases, as seen from the writer.

    Members
    -------
    write : 1, out
    row : bias_row, out
    data : 32 n, out
        With `halves`: `write` has 2 n bits, a write enable for the lower and the upper half of each lane; `row` has two rows,
        the first for the lower n/2 lanes; `data` has 16 bits a lane.
    """
    if halves:
        return Signature({"write": Out(2 * n), "row": Out(2 * bias_row), "data": Out(16 * n)})
    return Signature({"write": Out(1), "row": Out(bias_row), "data": Out(32 * n)})


def bias_rows_port(bias_row, n):
    """Returns the signature of the port that reads bias rows, as seen from the update unit.

    Members
    -------
    read : 1, out
    row : bias_row, out
    data : 32 n, in
        One cycle after `read`, held until the next read.
    """
    return Signature({"read": Out(1), "row": Out(bias_row), "data": In(32 * n)})


def updates_port(row, n, groups):
    """Returns the signature of the port that writes rows of the update memory, as seen from the update unit.

    Members
    -------
    write : groups, out
        Group of lanes that is written.
    row : row, out
    data : 48 n / groups, out
        For each lane V', the upper half of W', and the lower half of W'.
    """
    return Signature({"write": Out(groups), "row": Out(row), "data": Out(48 * n // groups)})


def part_port(row, n):
    """Returns the signature of the port that reads the update memory, as seen from the store unit.

    Members
    -------
    read : 1, out
    row : row, out
    part : 2, out
        An :class:`.UpdatePart`.
    vector : 16 n, in
        One cycle after `read`.
    """
    return Signature({"read": Out(1), "row": Out(row), "part": Out(2), "vector": In(16 * n)})


def client_port(row, n, *, writes=True):
    """Returns the signature of a client's port to the vector port of the unified buffer, as seen from the client. Several units
    share the vector port.

    Members
    -------
    write : 1, out
        Request to write `vector` to `row`. `write` and `vector` exist with `writes`.
    read : 1, out
        Request to read `row`.
    row : row, out
    vector : 16 n, out
    grant : 1, in
        The request is granted in this cycle.
    operand : 16 n, in
        Read data, one cycle after `grant`, or the read latency of the port (:attr:`hw.config.Config.port_latency`).
    """
    written = {"write": Out(1), "vector": Out(16 * n)} if writes else {}
    return Signature({**written, "read": Out(1), "row": Out(row), "grant": In(1), "operand": In(16 * n)})


def memory_port(address, n):
    """Returns the signature of the vector port of the unified buffer, as seen from its arbiter. The port either reads or writes
    in a cycle.

    Members
    -------
    write, read : 1, out
    address : address, out
    vector : 16 n, out
        Write data.
    operand : 16 n, in
        Read data, one cycle after `read`, held until the next read.
    """
    return Signature({"write": Out(1), "read": Out(1), "address": Out(address), "vector": Out(16 * n), "operand": In(16 * n)})
