"""Tests that the recorded wave through the array has the product's values per cell and cycle, and that the picture shows them."""

import re
from pathlib import Path

import numpy as np
import pytest

from amaranth_tpu.scripts.show.wave_picture import moving_cycles, wave_picture
from amaranth_tpu.sim.host.array_wave import record_wave

pytestmark = pytest.mark.slow  # the fixture simulates a core for many seconds

PICTURE = Path(__file__).parents[3] / "hw" / "wave.svg"
N = 4


@pytest.fixture(scope="module")
def wave():
    return record_wave()


def products(wave):
    """Computes with numpy the partial sums of each row of X and column of Y, starting with the bias. Returns them as an array
    (rows, n, 1 + n)."""
    steps = wave.x[:, :, None] * wave.weights[None]
    return wave.bias[None, :, None] + np.concatenate(
        [np.zeros((len(wave.x), N, 1)), np.cumsum(steps, axis=1).transpose(0, 2, 1)], axis=2
    )


def test_recording(wave):
    cells, sums = wave.cells, products(wave)
    assert (wave.y == wave.x @ wave.weights + wave.bias).all() and (wave.y == sums[:, :, -1]).all()
    assert len(wave.entered) == len(wave.x) and len(np.unique(wave.y)) > N
    for m, cycle in enumerate(wave.entered):
        for r in range(N):
            for c in range(N):
                at = cycle + r + c, r, c
                assert cells["x"][at] == wave.x[m, r] and cells["active"][at] == wave.weights[r, c]
                assert cells["sums"][at] == sums[m, c, r]
        for c in range(N):
            assert wave.out[cycle + N + c, c] == wave.y[m, c]


def test_weights_come_behind_the_marks(wave):
    """Each cell takes its weight from the word that arrives together with a mark. Marks move at half the speed of words."""
    cells, met = wave.cells, 0
    for cycle, r, c in zip(*cells["mark"].nonzero()):
        assert cells["w"][cycle, r, c] == wave.weights[r, c] == cells["shadow"][cycle + 1, r, c]
        assert cells["w"][cycle - c, r, 0] == wave.weights[r, c]
        assert c == 0 or cells["mark"][cycle - 2, r, c - 1]
        met += 1
    assert met % N**2 == 0 and met > 0


def numbers(svg, kind):
    groups = re.findall(rf'<g class="t {kind}"[^>]*>(.*?)</g>', svg)
    return sorted(
        [float(text.replace("\N{MINUS SIGN}", "-")) for text in re.findall(r"<text[^>]*>([^<]+)<", group)] for group in groups
    )


def test_picture(wave):
    svg = wave_picture(wave)
    assert numbers(svg, "sum") == sorted(list(map(float, one)) for one in products(wave).reshape(-1, N + 1))
    assert numbers(svg, "x") == sorted([float(value)] for value in wave.x.ravel())
    assert numbers(svg, "running") == sorted([float(value)] for value in wave.weights.ravel())
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_first_frame_shows_work(wave):
    """The first frame of the animation, which previews show, is the cycle with the most sums inside the array."""
    svg = wave_picture(wave)
    [step] = re.findall(r'opacity="1">step (\d+) of', svg)
    still = re.sub(r"<animate[^>]*/>", "", svg)
    shown = re.findall(
        r'<g class="t sum" transform="translate\((\d+) (\d+)\)">(?:<text opacity="0">[^<]*</text>)*<text opacity="1">', still
    )
    assert len(shown) >= N and len({place for place in shown}) == len(shown)
    cycle = moving_cycles(wave)[int(step) - 1]
    inside = [(m, c) for m, entered in enumerate(wave.entered) for c in range(N) if 0 <= cycle - entered - c < N]
    assert len(inside) >= 3 * N and len(shown) >= len(inside)
    [(begin, duration)] = set(re.findall(r'begin="-([\d.]+)s" dur="([\d.]+)s"', svg))
    assert int(float(begin) / float(duration) * len(moving_cycles(wave))) == int(step) - 1


def test_picture_of_one_step(wave):
    """A picture of one step has no animation, and shows the operands that are in the array in the cycle of this step."""
    step = moving_cycles(wave).index(wave.entered[0] + N - 1) + 1
    svg = wave_picture(wave, step)
    assert "<animate" not in svg and f"step {step} of {len(moving_cycles(wave))}<" in svg
    shown = [float(text.replace("\N{MINUS SIGN}", "-")) for text in re.findall(r'<text class="x" x="\d+" y="\d+">([^<]+)<', svg)]
    inside = [
        wave.x[m, r] for m in range(len(wave.x)) for r in range(N) if 0 <= wave.entered[0] + N - 1 - wave.entered[m] - r < N
    ]
    assert set(inside) <= set(shown) and len(shown) >= len(inside) > N
    for wrong in (0, len(moving_cycles(wave)) + 1):
        with pytest.raises(ValueError, match="steps 1 to"):
            wave_picture(wave, wrong)


def test_readme_has_this_picture(wave):
    """`hw/wave.svg` in the README equals the output of `python -m amaranth_tpu.scripts.pictures wave -o hw/wave.svg`."""
    assert PICTURE.read_text() == wave_picture(wave) and PICTURE.stat().st_size < 60_000
    assert "](hw/wave.svg)" in (PICTURE.parents[1] / "README.md").read_text()
