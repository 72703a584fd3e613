"""The placement of labels for the points of a plot, inside the axes and without overlaps."""

from .plots import colour

__all__ = ["place_labels"]

#: Pixels between a label and everything else.
_ROOM = 2
#: Distances from a point to try, in order, in typographic points; from the second on, a line connects point and label.
_DISTANCES = (7, 22, 38, 56, 76, 98, 122)
_SIDES = ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))


def place_labels(figure, axes, points, taken=()):
    """Adds a label to each point of a plot. Returns the labels.

    Parameters
    ----------
    figure, axes : matplotlib.figure.Figure, matplotlib.axes.Axes
        Figure and axes, with final limits and all other elements drawn.
    points : list of (str, float, float)
        Text of each label, and its point in data coordinates.
    taken : list of matplotlib artists
        Texts that are already in the plot. Labels cover neither these nor the points.

    Returns
    -------
    annotations : list of matplotlib.text.Annotation
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.draw_without_rendering()  # fixes the layout and the sizes of texts
    figure.set_layout_engine("none")
    renderer, frame = FigureCanvasAgg(figure).get_renderer(), axes.get_window_extent()
    boxes = [artist.get_window_extent(renderer).padded(_ROOM) for artist in taken]
    for _, x, y in points:
        place = axes.transData.transform((x, y))
        boxes.append(_box(place - 6, place + 6))
    made = []
    for text, x, y in points:
        label = _first_that_fits(axes, text, (x, y), boxes, frame, renderer)
        boxes.append(_text_box(label, renderer).padded(_ROOM))
        made.append(label)
    return made


def _box(low, high):
    from matplotlib.transforms import Bbox

    return Bbox([low, high])


def _first_that_fits(axes, text, point, boxes, frame, renderer):
    """Draws a label at the nearest position where it is inside `frame` and overlaps none of `boxes`. If there is none, the last
    position tried is used. Returns the annotation."""
    label = None
    for distance in _DISTANCES:
        for right, up in _SIDES:
            if label is not None:
                label.remove()
            line = {"arrowstyle": "-", "color": colour("faint"), "linewidth": 0.6} if distance > _DISTANCES[0] else None
            label = axes.annotate(
                text,
                point,
                (right * distance, up * distance),
                textcoords="offset points",
                ha={1: "left", 0: "center", -1: "right"}[right],
                va={1: "bottom", 0: "center", -1: "top"}[up],
                fontsize=9,
                arrowprops=line,
            )
            box = _text_box(label, renderer)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(box.overlaps(other) for other in boxes):
                return label
    return label


def _text_box(label, renderer):
    from matplotlib.text import Text

    label.update_positions(renderer)
    return Text.get_window_extent(label, renderer)
