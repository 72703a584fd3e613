"""Two short tables of selected figures of the longer tables: the README's, and rates per second in the results."""

from ..show.documents import put_table, table_rows
from ..show.markdown import markdown_table
from .common import Json, Write, app, publish

__all__ = ["seconds_rows", "summary", "summary_rows"]

#: Headings of the table.
HEAD = ["measurement", "here", "for comparison"]
_BOARD = "ulx3s-85f"


def _one(name, **cells):
    """Returns the row of the table `name` in which the columns `cells` have these values. Raises ValueError if there is not
    exactly one such row."""
    [row] = [row for row in table_rows(name) if cells.items() <= row.items()]
    return row


def _processor(part, batch):
    """Returns the row of the table `processors` for this batch whose text contains `part`; of several CPUs, the fastest."""
    rows = [row for row in table_rows("processors") if part in row["what"] and row["batch"] == batch]
    return max(rows, key=lambda row: _number(row["million MACs a second"] or "0"))


def _number(text):
    return float(text.replace(",", ""))


def _rounded(value):
    return f"{float(f'{value:.3g}'):,.12g}"


def _estimated(row):
    """Returns the note for a row whose cycles are estimated by the timing model; an empty text if they were counted in the
    RTL."""
    return ", by the timing model" * any(heading.endswith(", estimated") for heading in row)


def _above_one(ring):
    """Returns the reason for an efficiency above 100%; an empty text if it is below."""
    return "; above 100%, as each core updates only its share of the weights" * (float(ring["efficiency"].rstrip("%")) > 100)


def seconds_rows():
    """Returns the rows of the table `seconds`. They compare rates of a board at its own clock with one core of the server that
    runs onnxruntime."""
    clock = _number(_one("boards", board=_BOARD, seed="1")["its clock"])
    macs = _number(_one("networks", network="default")["MACs an image"])

    def million(name, batch):
        row = _processor(name, batch)
        return _number(row["MACs a cycle"]) * (clock if _BOARD in name else _number(row["MHz"]))

    many = [million(name, "64") for name in (_BOARD, "onnxruntime")]
    one = [million(name, "1") for name in (_BOARD, "onnxruntime")]
    server = f"onnxruntime, one server core at {_number(_processor('onnxruntime', '64')['MHz']):,.0f} MHz"
    return [
        [
            f"Million MACs per second, board ULX3S-85F, n = 8, {clock:g} MHz, batch of 64",
            _rounded(many[0]),
            f"{_rounded(many[1])}: {server}",
        ],
        ["The same: digits per second", _rounded(many[0] * 1e6 / macs), f"{_rounded(many[1] * 1e6 / macs)} there"],
        [
            "The same: time for one digit alone",
            f"{_rounded(macs / one[0])} \N{MICRO SIGN}s",
            f"{_rounded(macs / one[1])} \N{MICRO SIGN}s there",
        ],
    ]


def summary_rows():
    """Returns the rows of the summary table, each a list of cells. The figures are read from the other tables in their
    documents."""
    dense = _one("utilisation", n="16", batch="128")
    best = max(
        table_rows("networks"), key=lambda row: (float(row["accuracy over 10,000"].rstrip("%")), -_number(row["cycles an image"]))
    )
    resnet = _one("mlperf-tiny", network="ic", n="16", batch="8")
    ring = _one("cores", batch="512", cores="4")
    trained = max(table_rows("training"), key=lambda row: int(row["steps on the core"]))
    tables = [row for name in ("utilisation", "networks", "mlperf-tiny", "training", "cores") for row in table_rows(name)]
    different = sum(int(row["bits different"] or 0) for row in tables)
    core, server = (
        {batch: _processor(name, batch)["MACs a cycle"] for batch in ("1", "64")} for name in ("the core, n = 16", "onnxruntime")
    )
    return [
        [
            "Array utilisation, 16 x 16 cells, 784-128-10, batch of 128, all loading included",
            dense["utilisation"],
            f"{dense['of the bound']} of the limit set by array and bus",
        ],
        [
            "Array utilisation, MLPerf Tiny's ResNet, batch of 8",
            resnet["utilisation"] + _estimated(resnet),
            f"error against binary32 at most {resnet['largest error']}",
        ],
        ["MACs per cycle, 784-128-10, n = 16, batch of 64", core["64"], f"{server['64']}: onnxruntime, one server core"],
        [
            "The same, batch of 1",
            core["1"],
            f"{server['1']} there; {_processor('VexRiscv, 8-bit', '1')['MACs a cycle']}: small RISC-V, 8-bit integers",
        ],
        [
            "MNIST accuracy, 10,000 digits, convolutional",
            best["accuracy over 10,000"],
            f"{best['cycles an image']} cycles per image",
        ],
        [
            "MNIST accuracy, 784-128-10 trained from fresh weights",
            trained["accuracy"],
            f"{trained['steps on the core']} of its steps also on the simulated core",
        ],
        [
            "Training on a ring of 4 cores, 128 samples each",
            f"{ring['efficiency']} efficiency{_estimated(ring)}{_above_one(ring)}",
            f"{ring['words a core sends, by the formula']} words sent per core and step",
        ],
        ["Bits that differ from the numpy model, in all of these runs", f"{different:,}", ""],
    ]


@app.command()
def summary(as_json: Json = False, write: Write = False):
    """Write selected figures of the other tables, and rates per second. Run it after another table has changed."""
    rows, seconds = summary_rows(), seconds_rows()
    if write:
        put_table("seconds", markdown_table(HEAD, seconds))
    publish("summary", HEAD, rows, [dict(zip(HEAD, row)) for row in rows], as_json, write)
