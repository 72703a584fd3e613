"""A picture of the wave of sums through the systolic array, drawn from a recording: an animated SVG, or a still of one cycle."""

from dataclasses import dataclass
from html import escape

from .look import COLOURS, dark_rules

__all__ = ["wave_picture", "moving_cycles"]

_WIDTH, _HEIGHT, _LEFT, _TOP, _CELL_WIDTH, _CELL_HEIGHT, _GAP = 760, 690, 206, 132, 118, 92, 8
_OUTSIDE = 70  # distance between positions outside the array
_N = 4  # rows and columns
_NOTE = "Every number is one that the RTL had there; cycles in which nothing moves are left out."
_SECONDS = 0.7  # per cycle
#: Kind of token to its colour and its position relative to the centre of a cell.
_KINDS = {
    "x": ("blue", (-24, -26)),
    "sum": ("green", (34, 6)),
    "weight": ("orange", (-24, 38)),
    "mark": ("orange", (-6, 38)),
    "next": ("orange", (-47, 8)),
    "running": ("orange", (-16, 10)),
}


@dataclass(frozen=True)
class _Token:
    """A value that moves through the picture.

    `points` are the `(cycle, row, column)` of its positions in order; some are outside the array. `texts` are `(cycle, text)`;
    each text is shown in that cycle and later. The token disappears at cycle `end`.
    """

    kind: str
    points: list
    texts: list
    end: float


def _number(value):
    return f"{value:g}".replace("-", "\N{MINUS SIGN}")


def _tokens(wave):
    cells = wave.cells
    marks = [tuple(map(int, place)) for place in zip(*cells["mark"].nonzero())]
    yield from _weight_tokens(cells, marks)
    for cycle, r, c in marks:
        if c == 0:  # the marks reach the next columns at half the speed of the weights
            path = [(cycle + 2 * k, r, k) for k in range(_N) if (cycle + 2 * k, r, k) in marks]
            yield _Token("mark", [(cycle - 2, r, -1), *path], [(cycle - 2, "\N{BLACK UP-POINTING TRIANGLE}")], path[-1][0] + 0.6)
    for cycle in wave.entered:
        for r in range(_N):
            path = [(cycle + r + c, r, c) for c in range(_N)]
            text = _number(cells["x"][path[0]])
            ahead = [(cycle + r - k, r, -k) for k in (2, 1)]
            yield _Token("x", [*ahead, *path, (cycle + r + _N, r, _N)], [(cycle + r - 2, text)], cycle + r + _N - 0.4)
        for c in range(_N):
            path = [(cycle + c + r, r, c) for r in range(_N)]
            texts = [(cycle + c - 1, _number(cells["sums"][path[0]]))]
            texts += [(at[0] - 0.5, _number(cells["sums"][at])) for at in path[1:]]
            left = cycle + c + _N
            texts.append((left - 0.5, _number(wave.out[left, c])))
            beyond = [(left + k, _N + k, c) for k in range(2)]
            yield _Token("sum", [(cycle + c - 1, -1, c), *path, *beyond], texts, left + 1.4)


def _weight_tokens(cells, marks):
    cycles = len(cells["mark"])
    for cycle, r, c in marks:
        path = [(cycle - c + k, r, k) for k in range(c + 1)]
        text = _number(cells["w"][cycle, r, c])
        kept = (cycle + 1, r - 0.3, c - 0.18)  # near the register `next`
        yield _Token("weight", [(cycle - c - 1, r, -1), *path, kept], [(cycle - c - 1, text)], cycle + 1)
        switched = next((at for at in range(cycle, cycles) if cells["switch"][at, r, c]), cycles - 1)
        yield _Token("next", [(cycle + 1, r, c)], [(cycle + 1, _number(cells["shadow"][cycle + 1, r, c]))], switched + 1)
    for r, c in {(r, c) for _, r, c in marks}:
        switches = [at + 1 for at in range(cycles - 1) if cells["switch"][at, r, c]]
        for first, behind in zip(switches, [*switches[1:], cycles]):
            yield _Token("running", [(first, r, c)], [(first, _number(cells["active"][first, r, c]))], behind)


def moving_cycles(wave):
    """Returns, in order, the cycles of the recording in which something moves. The picture skips all other cycles."""
    moving = set()
    for token in _tokens(wave):
        if len(token.points) > 1:
            moving |= set(range(int(token.points[0][0]), int(token.end) + 2))
    return [cycle for cycle in range(len(wave.out)) if cycle in moving]


def _place(kind, row, column):
    dx, dy = _KINDS[kind][1]
    pitch_x, pitch_y = _CELL_WIDTH + _GAP, _CELL_HEIGHT + _GAP
    x = _LEFT + column * (pitch_x if column > 0 else _OUTSIDE) + pitch_x / 2
    above, below = max(0, -row), max(0, row - (_N - 1))
    y = _TOP + (row + 0.5) * pitch_y + above * (pitch_y - _OUTSIDE) - below * (pitch_y - _OUTSIDE)
    return round(x + dx), round(y + dy)


def _frame_of(cycle, frames):
    """Converts a time of the recording, in cycles, to a time of the picture, which skips some cycles. `frames` has the picture's
    step for each cycle."""
    whole = min(max(int(cycle // 1), 0), len(frames) - 1)
    return min(max(frames[whole] + cycle - whole, 0), frames[-1] + 1)


def _moving(token, frames, count, start):
    """Returns a token as animated SVG that repeats every `count` steps of the picture, starting at step `start`. Viewers that do
    not animate show the token as it is at `start`."""
    cycles = [_frame_of(cycle, frames) for cycle, *_ in token.points]
    places = [_place(token.kind, row, column) for _, row, column in token.points]
    end, body = _frame_of(token.end, frames), ""
    starts = [_frame_of(cycle, frames) for cycle, _ in token.texts]
    for (_, text), first, behind in zip(token.texts, starts, [*starts[1:], end]):
        values, times = ("0;1;0", (0, first, behind)) if first > 0 else ("1;0", (0, behind))
        if behind >= count:
            values, times = values[:-2], times[:-1]
        shown = int(first <= start < behind)
        body += f'<text opacity="{shown}">{escape(text)}{_animate("opacity", values, times, count, start, discrete=True)}</text>'
    if len(places) == 1:
        return f'<g class="t {token.kind}" transform="translate({places[0][0]:g} {places[0][1]:g})">{body}</g>'
    steps = [(0, places[0]), *((cycle, place) for cycle, place in zip(cycles, places) if 0 < cycle < count), (count, places[-1])]
    kept = [step for before, step, after in zip([None, *steps], steps, [*steps[1:], None]) if not _between(before, step, after)]
    values = ";".join(f"{x:g} {y:g}" for _, (x, y) in kept)
    motion = _animate("transform", values, [cycle for cycle, _ in kept], count, start)
    (before, here), (after, there) = next(two for two in zip(steps, steps[1:]) if two[0][0] <= start < two[1][0])
    x, y = (round(a + (start - before) / (after - before) * (b - a)) for a, b in zip(here, there))
    return f'<g class="t {token.kind}" transform="translate({x} {y})">{motion}{body}</g>'


def _between(before, step, after):
    """Returns True if a step of an animation is on the straight line between its neighbours, and can be left out."""
    if before is None or after is None:
        return False
    share = (step[0] - before[0]) / max(1e-9, after[0] - before[0])
    return all(abs(a + share * (b - a) - at) < 1e-6 for a, at, b in zip(before[1], step[1], after[1]))


def _animate(what, values, times, count, start, discrete=False):
    times = ";".join(f"{time / count:.3f}".rstrip("0").rstrip(".") for time in times)
    kind = f'{"animateTransform" if what == "transform" else "animate"} attributeName="{what}"'
    mode = ' calcMode="discrete"' if discrete else ""
    clock = f'begin="-{start * _SECONDS:g}s" dur="{count * _SECONDS:g}s" repeatCount="indefinite"'
    return f'<{kind} values="{values}" keyTimes="{times}"{mode} {clock}/>'


def _still(token, cycle):
    """Returns a token as SVG at its position in a cycle. Returns an empty text if it is not visible then."""
    if not token.texts[0][0] <= cycle < token.end:
        return ""
    text = next(text for first, text in reversed(token.texts) if first <= cycle)
    passed = max((index for index, point in enumerate(token.points) if point[0] <= cycle), default=0)
    at = token.points[passed]
    if passed + 1 < len(token.points):
        share = (cycle - at[0]) / (token.points[passed + 1][0] - at[0])
        at = [a + share * (b - a) for a, b in zip(at, token.points[passed + 1])]
    x, y = _place(token.kind, at[1], at[2])
    return f'<text class="{token.kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _style():
    rules = [
        "text{font:15px system-ui,sans-serif;text-anchor:middle} .t text{font:inherit}",
        ".t{font:15px system-ui,sans-serif}",
        f".ground{{fill:{COLOURS['ground'][0]}}}",
        f".cell{{fill:{COLOURS['panel'][0]};stroke:{COLOURS['line'][0]}}}",
        f".title,.cycle{{fill:{COLOURS['ink'][0]};text-anchor:start}} .title{{font-size:19px;font-weight:600}}",
        f".note{{fill:{COLOURS['faint'][0]};font-size:13px;text-anchor:start}}",
        ".running{font-size:21px;font-weight:700} .next,.weight{font-size:13px;font-style:italic} .mark{font-size:12px}",
        ".key{text-anchor:start} text.key{font-size:13px}",
    ]
    rules += [f".{kind}{{fill:{COLOURS[name][0]}}}" for kind, (name, _) in _KINDS.items()]
    dark = {".ground fill": "ground", ".cell fill": "panel", ".cell stroke": "line"}
    dark |= {".title fill": "ink", ".cycle fill": "ink", ".note fill": "faint"}
    dark |= {f".{kind} fill": name for kind, (name, _) in _KINDS.items()}
    return f"<style>{''.join(rules)}{dark_rules(dark)}</style>"


def _stage():
    parts = [
        f'<rect class="ground" width="{_WIDTH}" height="{_HEIGHT}"/>',
        '<text class="title" x="20" y="34">Y = XW + b on a 4 x 4 systolic array</text>',
        f'<text class="note" x="20" y="56">{_NOTE}</text>',
    ]
    for r in range(_N):
        for c in range(_N):
            x, y = _LEFT + c * (_CELL_WIDTH + _GAP) + _GAP / 2, _TOP + r * (_CELL_HEIGHT + _GAP) + _GAP / 2
            parts.append(f'<rect class="cell" x="{x:g}" y="{y:g}" width="{_CELL_WIDTH}" height="{_CELL_HEIGHT}" rx="8"/>')
    y = _TOP + _N * (_CELL_HEIGHT + _GAP) + 124
    keys = (
        ("x", 20, "X: operands come from the left, each row a cycle after the one above"),
        ("weight", 20, "W: weights slide in; where \N{BLACK UP-POINTING TRIANGLE} meets one, the cell keeps it as its next"),
        ("running", 520, "W: the weights that run"),
        ("sum", 520, "sums go down, from b on: Y"),
    )
    for number, (kind, x, text) in enumerate(keys):
        parts.append(f'<text class="key {kind}" x="{x}" y="{y + 20 * (number % 2)}">{text}</text>')
    return "".join(parts)


def _busiest(tokens, shown):
    """Returns the index, in `shown`, of the cycle with the most sums in the array. The animation starts there."""
    sums = [token for token in tokens if token.kind == "sum"]

    def inside(cycle):
        return sum(any(at == cycle and row < _N for at, row, _ in token.points) for token in sums)

    return max(range(len(shown)), key=lambda number: inside(shown[number]))


def _step(number, shown, change="", opacity=1):
    place = f'x="{_WIDTH - 130}" y="34" opacity="{opacity}"'
    return f'<text class="cycle" {place}>step {number} of {len(shown)}{change}</text>'


def wave_picture(wave, still=None):
    """Returns the SVG text of the picture. Raises ValueError if there are fewer steps.

    Parameters
    ----------
    wave : sim.host.array_wave.ArrayWave
    still : int or None
        Number of the step to draw, from 1, among the cycles in which something moves. Default: all steps in an endless loop.
    """
    tokens = list(_tokens(wave))
    shown = moving_cycles(wave)
    if still is not None and not 1 <= still <= len(shown):
        raise ValueError(f"the wave has steps 1 to {len(shown)}, not {still}")
    if still is None:
        frames = [sum(cycle < at for cycle in shown) for at in range(len(wave.out) + 1)]
        start = _busiest(tokens, shown) + 0.25
        body = "".join(_moving(token, frames, len(shown), start) for token in tokens)
        for number in range(len(shown)):
            values, times = ("0;1;0", (0, number, number + 1)) if number else ("1;0", (0, 1))
            if number + 1 == len(shown):
                values, times = values[:-2], times[:-1]
            change = _animate("opacity", values, times, len(shown), start, discrete=True)
            body += f'<g class="t">{_step(number + 1, shown, change, int(number == int(start)))}</g>'
    else:
        body = "".join(_still(token, shown[still - 1]) for token in tokens) + _step(still, shown)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="A wave of sums through a systolic array of {_N} x {_N} cells">{_style()}{_stage()}{body}</svg>\n'
    )
