"""Tests that `python -m amaranth_tpu.scripts.pictures` plots the figures of a run, and that a plot that cannot be drawn is a
one-line error."""

import functools
import json
import re
import sys

import numpy as np
import pytest

from amaranth_tpu.hw.spec.registers import STALLS
from amaranth_tpu.scripts import pictures
from amaranth_tpu.scripts.show.look import COLOURS
from amaranth_tpu.scripts.show.run_plots import draw_parts
from command import SMALL, captured, refused, tpu
from onnx_models import Builder, weights


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory):
    """Runs a network of a convolution and a dense layer. Returns the JSON file with its figures per layer, and the parsed
    figures."""
    rng, folder = np.random.default_rng(11), tmp_path_factory.mktemp("run")
    build = Builder(["batch", 1, 4, 4])
    build("Conv", weights(rng, 6, 1, 3, 3), pads=[1, 1, 1, 1], name="first")
    build("Relu")
    build("Flatten")
    build("Gemm", weights(rng, 96, 3), np.zeros(3, np.float32), name="second")
    done = tpu("run", *SMALL, "--model", build.save(folder), "--data", digits, "--images", 2, "--layers", "--json")
    assert done.returncode == 0, done.stderr
    (folder / "run.json").write_text(done.stdout)
    return folder / "run.json", json.loads(done.stdout)


@pytest.fixture
def draw(command):
    """Returns a function that runs the command `pictures` in this process, and returns its exit status and output."""
    return functools.partial(command, main=pictures.main)


def texts(path):
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())


@pytest.mark.slow
def test_roofline(draw, run, tmp_path):
    file, figures = run
    assert draw("roofline", file, "-o", tmp_path / "r.svg").returncode == 0
    found = texts(tmp_path / "r.svg")
    for layer in figures["layers"]:
        # The utilisation equals the output of `--layers` for the same layer.
        assert f"{layer['name']}: {layer['utilisation'] * figures['n'] ** 2:.3g}" in found
    assert f"array: {figures['n'] ** 2:,} MACs a cycle" in found
    axis = [text for text in found if "batch of" in text]
    assert axis == [f"Roofline, n = {figures['n']}, batch of {figures['batch']}"]


def test_labels_do_not_collide():
    """The labels of twelve layers, five at nearly the same point and one at each edge, stay inside the frame and do not
    overlap."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from amaranth_tpu.scripts.show.labels import _text_box, place_labels

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, 10), ylim=(0, 10))
    near = [(f"a layer with a long name, {number}", 5 + 0.02 * number, 5) for number in range(5)]
    edges = [
        ("left edge", 0.05, 5),
        ("right edge", 9.95, 5),
        ("top edge", 5, 9.95),
        ("bottom edge", 5, 0.05),
        ("corner", 9.9, 9.9),
    ]
    boxes = [_text_box(label, FigureCanvasAgg(figure).get_renderer()) for label in place_labels(figure, axes, [*near, *edges])]
    frame = axes.get_window_extent()
    for index, box in enumerate(boxes):
        assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1, index
        assert not any(box.overlaps(other) for other in boxes[:index]), index


@pytest.mark.slow
def test_stalls(draw, run, tmp_path):
    file, figures = run
    assert draw("stalls", file, "-o", tmp_path / "s.svg").returncode == 0
    found = texts(tmp_path / "s.svg")
    for name, count in (("busy", figures["busy"]), *figures["stalls"].items()):
        assert f"{name}: {count:,} ({count / figures['cycles']:.1%})" in found
    assert len([text for text in found if ": " in text]) == 1 + len(STALLS)
    assert f"Where {figures['cycles']:,} cycles went" in found


def test_parts(tmp_path):
    """Each run is a bar with its total, and the parts are in the legend."""
    draw_parts(tmp_path / "x.svg", {"prompt": {"norms": 2_000, "rest": 500}, "letter": {"norms": 30, "rest": 0}})
    found = texts(tmp_path / "x.svg")
    assert {"prompt", "letter", "norms", "rest", "2,500", "30"} <= {text.strip() for text in found}


@pytest.mark.slow
@pytest.mark.parametrize("kind, head", [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_formats(draw, run, tmp_path, kind, head):
    assert draw("stalls", run[0], "-o", tmp_path / f"s.{kind}").returncode == 0
    assert (tmp_path / f"s.{kind}").read_bytes().startswith(head)


@pytest.mark.slow
def test_svg_has_dark_colours(draw, run, tmp_path):
    """An SVG plot has a dark-mode rule for each of its colours, and the same input gives the same bytes."""
    for name in ("a.svg", "b.svg"):
        assert draw("stalls", run[0], "-o", tmp_path / name).returncode == 0
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text() and "prefers-color-scheme: dark" in text
    lights = {light for light, _ in COLOURS.values()}
    assert set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", text.partition("</style>")[2])) <= lights


def contrast(one, two):
    """Returns the contrast ratio of two colours `#rrggbb` by the Web Content Accessibility Guidelines."""

    def luminance(colour):
        parts = [int(colour[first : first + 2], 16) / 255 for first in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one) + 0.05, luminance(two) + 0.05), reverse=True)
    return light / dark


def test_text_contrast():
    """The contrast of text to the background is at least 4.5 (3 for large or repeated text), on light and on dark pages."""
    for page in (0, 1):
        for name in ("ink", "faint", "blue", "green"):
            assert contrast(COLOURS[name][page], COLOURS["ground"][page]) >= 4.5, (name, page)
        for name in ("orange", "red", "purple", "grey"):  # large, or repeated in text
            assert contrast(COLOURS[name][page], COLOURS["ground"][page]) >= 3, (name, page)


@pytest.mark.slow
def test_refusals(draw, run, tmp_path):
    file, figures = run
    (tmp_path / "none.json").write_text("[1]")
    (tmp_path / "golden.json").write_text(json.dumps(figures | {"layers": None, "cycles": None}))
    for arguments, said in (
        (("roofline", tmp_path / "there-is-none.json"), "No such file"),
        (("roofline", tmp_path / "none.json"), "write it with `tpu run --json`"),
        (("roofline", tmp_path / "golden.json"), "--layers"),
        (("stalls", tmp_path / "golden.json"), "--simulator verilator"),
        (("stalls", file, "-o", tmp_path / "s.txt"), ".svg"),
        (("wave", "-o", tmp_path / "none" / "w.svg"), "no folder"),
        (("wave", "-o", tmp_path / "w.bmp"), "name a file that ends in .svg"),
    ):
        refused(draw(*arguments, *(() if "-o" in arguments else ("-o", tmp_path / "x.svg"))), said)
    assert not (tmp_path / "x.svg").exists()


@pytest.mark.slow
def test_without_matplotlib(run, tmp_path):
    code = "import sys; sys.modules['matplotlib'] = None; from amaranth_tpu.scripts.pictures import main; main()"
    done = captured([sys.executable, "-c", code, "stalls", str(run[0]), "-o", str(tmp_path / "s.svg")])
    refused(done, "matplotlib", "pip install matplotlib")
