"""A picture of a design's utilisation, as SVG: a treemap of its blocks by LUTs, and a bar for each resource of the part."""

from html import escape

__all__ = ["area_picture", "squarify"]

_WIDTH, _HEIGHT, _BAR, _MARGIN = 960, 540, 26, 12
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2", "#9c755f", "#edc948", "#ff9da7", "#7f7f7f")


def _worst(areas, side):
    depth = sum(areas) / side
    return max(max(depth / (area / depth), (area / depth) / depth) for area in areas)


def squarify(values, x, y, width, height):
    """Divides a rectangle into rectangles `(x, y, width, height)` with areas in proportion to `values`, and returns them.
    `values` must be in descending order.

    The rectangles are nearly square. Source: Bruls, Huizing and van Wijk, Squarified Treemaps (2000). A row along the shorter
    side takes rectangles as long as this reduces the largest aspect ratio in the row.
    """
    values = list(values)
    scale = width * height / sum(values) if values else 0
    areas = [value * scale for value in values]
    places = []
    while areas:
        side = min(width, height)
        count = 1
        while count < len(areas) and _worst(areas[: count + 1], side) <= _worst(areas[:count], side):
            count += 1
        depth, offset = sum(areas[:count]) / side, 0.0
        for area in areas[:count]:
            length = area / depth
            places.append((x, y + offset, depth, length) if width >= height else (x + offset, y, length, depth))
            offset += length
        if width >= height:
            x, width = x + depth, width - depth
        else:
            y, height = y + depth, height - depth
        areas = areas[count:]
    return places


def _text(x, y, text, size=13, colour="#fff"):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}">{escape(text)}</text>'


def area_picture(report):
    """Returns the SVG text for a report of :func:`hw.fpga.implement.implement`."""
    blocks = {block: counts["lut"] for block, counts in report["blocks"].items() if counts["lut"] > 0}
    blocks = dict(sorted(blocks.items(), key=lambda entry: -entry[1]))
    whole = sum(blocks.values())
    top = 40
    height = top + _HEIGHT + 3 * _MARGIN + len(report["available"]) * (_BAR + 6)
    fmax = f", {report['fmax_mhz']:.1f} MHz" if report["fmax_mhz"] else ""
    title = f"n = {report['n']} on {report['target']}: {whole:,} LUTs by block{fmax}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 2 * _MARGIN} {height}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        _text(_MARGIN, 26, title, 18, "#222"),
    ]
    places = squarify(blocks.values(), _MARGIN, top, _WIDTH, _HEIGHT)
    for index, ((block, luts), (x, y, wide, high)) in enumerate(zip(blocks.items(), places)):
        label = f"{block}: {luts:,} LUTs, {luts / whole:.1%}"
        parts.append(
            f'<g><title>{escape(label)}</title><rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" '
            f'fill="{_COLOURS[index % len(_COLOURS)]}" stroke="#fff" stroke-width="2"/>'
        )
        if wide > 8.0 * len(block) and high > 22:
            parts.append(_text(x + 6, y + 18, block))
            if high > 40 and wide > 90:
                parts.append(_text(x + 6, y + 35, f"{luts:,}, {luts / whole:.1%}", 12))
        parts.append("</g>")
    y = top + _HEIGHT + 2 * _MARGIN
    for resource, available in report["available"].items():
        count = report["total"][resource]
        share = count / available if available else float(count > 0)
        parts += [
            f'<rect x="{_MARGIN}" y="{y}" width="{_WIDTH}" height="{_BAR}" fill="#ddd"/>',
            (
                f'<rect x="{_MARGIN}" y="{y}" width="{_WIDTH * min(1, share):.1f}" height="{_BAR}" '
                f'fill="{"#59a14f" if share <= 1 else "#e15759"}"/>'
            ),
            _text(_MARGIN + 8, y + 18, f"{resource.upper()}: {count:,} of {available:,} ({share:.0%})", colour="#000"),
        ]
        y += _BAR + 6
    return "\n".join([*parts, "</svg>\n"])
