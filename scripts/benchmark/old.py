"""The command that lists the rows of all tables that are older than the code that decides them, without measuring them."""

from .common import Json, app, publish
from .versions import old_rows

__all__ = ["old"]


@app.command()
def old(as_json: Json = False):
    """List the rows that other sources made, by the column `made by`. The text at each table names its command."""
    head, rows = ["table", "row", "made by", "sources now"], [*old_rows()]
    publish(None, head, rows, [dict(zip(head, row)) for row in rows], as_json, False)
