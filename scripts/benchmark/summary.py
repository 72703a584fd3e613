"""The README's short table: figures out of the longer ones."""

from ..show.documents import table_rows
from .common import Json, Write, app, publish

__all__ = ["summary", "summary_rows"]

#: Headings of the table.
HEAD = ["what", "here", "beside it"]


def _one(name, **cells):
    """The row of a table that has these cells. Raises ValueError if it is not the only one."""
    [row] = [row for row in table_rows(name) if cells.items() <= row.items()]
    return row


def _processor(part, batch):
    """MACs a cycle of the row of the table `processors` whose text has this part."""
    [row] = [row for row in table_rows("processors") if part in row["what"] and row["batch"] == batch]
    return row["MACs a cycle"]


def _number(text):
    return int(text.replace(",", ""))


def _estimated(row):
    """What to say of cycles that no RTL counted."""
    return ", by the timing model" * any(heading.endswith(", estimated") for heading in row)


def summary_rows():
    """Lists of cells, out of the tables as they stand in their documents."""
    dense = _one("utilisation", n="16", batch="128")
    best = max(
        table_rows("networks"), key=lambda row: (float(row["accuracy over 10,000"].rstrip("%")), -_number(row["cycles an image"]))
    )
    resnet = _one("mlperf-tiny", network="ic", n="16", batch="8")
    board = _one("boards", board="ulx3s-85f")
    ring = _one("cores", batch="512", cores="4")
    digits = _one("processors", what="the core, n = 8, preset `ulx3s-85f`", batch="64")
    trained = max(table_rows("training"), key=lambda row: int(row["steps on the core"]))
    tables = [row for name in ("utilisation", "networks", "mlperf-tiny", "training", "cores") for row in table_rows(name)]
    different = sum(int(row["bits different"] or 0) for row in tables)
    return [
        [
            "Use of 16 x 16 cells, 784-128-10, batch of 128, all loading included",
            dense["utilisation"],
            f"{dense['of the bound']} of what array and bus allow",
        ],
        [
            "The same for MLPerf Tiny's ResNet, batch of 8",
            resnet["utilisation"] + _estimated(resnet),
            f"{resnet['largest error']} from binary32 inference, at most",
        ],
        [
            "Multiply-accumulates a cycle, 784-128-10, batch of 64, n = 16",
            _processor("the core, n = 16", "64"),
            f"{_processor('onnxruntime', '64')} on a server's core with onnxruntime",
        ],
        [
            "The same for one digit",
            _processor("the core, n = 16", "1"),
            f"{_processor('onnxruntime', '1')} there, {_processor('VexRiscv, 8-bit', '1')} on a small RISC-V in integers",
        ],
        [
            "Board ULX3S-85F, n = 8, by open tools",
            f"{board['MHz']} MHz",
            f"{digits['million MACs a second']} million multiply-accumulates a second",
        ],
        ["MNIST, 10,000 digits, convolutional", best["accuracy over 10,000"], f"{best['cycles an image']} cycles an image"],
        [
            "MNIST, 784-128-10 trained from fresh weights",
            trained["accuracy"],
            f"{trained['steps on the core']} of its steps on the simulated core too",
        ],
        [
            "A training step on 4 cores in a ring, 128 samples each",
            f"{ring['efficiency']} efficiency{_estimated(ring)}",
            f"{ring['words a core sends, by the formula']} words sent by each",
        ],
        ["Bits different from the numpy model, in all of these runs", f"{different:,}", ""],
    ]


@app.command()
def summary(as_json: Json = False, write: Write = False):
    """Some figures of the other tables, as they stand in their documents; after any of these was made again."""
    rows = summary_rows()
    publish("summary", HEAD, rows, [dict(zip(HEAD, row)) for row in rows], as_json, write)
