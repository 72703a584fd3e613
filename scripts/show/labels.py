"""Placement of labels for points in a plot, without overlaps and inside the axes."""

from .plots import colour

__all__ = ["place_labels"]

#: Pixels between a label and everything else.
_ROOM = 2
#: Distances from a point to try, in order, in typographic points; from the second on, a line connects point and label.
_DISTANCES = (7, 22, 38, 56, 76, 98, 122)
_SIDES = ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))


def place_labels(figure, axes, points, taken=()):
    """Writes the labels of points.

    Parameters
    ----------
    figure, axes : matplotlib.figure.Figure, matplotlib.axes.Axes
        Figure and axes, with final limits and all other elements drawn.
    points : list of (str, float, float)
        Labels and their points, in the units of the axes.
    taken : list of matplotlib artists
        Texts that labels must not cover; labels do not cover the points either.

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
    """Draws a label at the nearest place where it fits, or at the last place tried; returns the annotation."""
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
    """Returns the extent of an annotation's text, without its line."""
    from matplotlib.text import Text

    label.update_positions(renderer)
    return Text.get_window_extent(label, renderer)
