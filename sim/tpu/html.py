"""Results as HTML, which notebooks show: tables, and the curve of a loss."""

from html import escape

import numpy as np

__all__ = ["LayerTable", "Tensors", "curve", "html_table"]

_WIDTH, _HEIGHT = 320, 80  # of a curve, in pixels


def html_table(caption, head, rows):
    """Returns a table as HTML. Numbers are on the right."""

    def cell(value):
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            return f'<td style="text-align:right">{value:,}</td>'
        if isinstance(value, (float, np.floating)):
            return f'<td style="text-align:right">{value:.4g}</td>'
        return f'<td style="text-align:left">{escape("" if value is None else str(value))}</td>'

    lines = ["<tr>" + "".join(map(cell, row)) + "</tr>" for row in rows]
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    return f"<table><caption>{escape(caption)}</caption><tr>{titles}</tr>{''.join(lines)}</table>"


def curve(values, label):
    """Returns a curve of numbers as SVG. Returns an empty text for fewer than two."""
    values = np.asarray(values, float)
    if len(values) < 2:
        return ""
    low, high = values.min(), values.max()
    places = zip(np.linspace(0, _WIDTH, len(values)), _HEIGHT * (high - values) / ((high - low) or 1))
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img"><title>{escape(label)}: {low:.4g} to {high:.4g}</title>'
        f'<polyline points="{points}" fill="none" stroke="currentColor"/></svg>'
    )


class LayerTable(list):
    """A list of :class:`sim.tpu.layer_costs.LayerCost`, which a notebook shows as a table."""

    def _repr_html_(self):
        total = sum(one.cycles for one in self)
        rows = [
            (
                one.name,
                one.kind,
                "x".join(map(str, one.shape)),
                one.cycles,
                one.cycles / max(1, total),
                one.utilisation,
                one.bound,
            )
            for one in self
        ]
        head = ("layer", "kind", "result", "cycles", "share", "utilisation", "bound by")
        return html_table(f"{total:,} cycles", head, rows)


class Tensors(dict):
    """Arrays by name, which a notebook shows as a table of their shapes and ranges."""

    def _repr_html_(self):
        rows = [
            (name, "x".join(map(str, one.shape)), float(one.min()), float(one.mean()), float(one.max()))
            for name, one in self.items()
        ]
        return html_table(f"{len(self)} tensors", ("tensor", "shape", "least", "mean", "largest"), rows)
