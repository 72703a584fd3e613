"""Tests of the configuration, covering invalid values and their errors, and derived values."""

import inspect
from dataclasses import fields

import pytest

from amaranth_tpu.hw.config import PLAIN, PRESETS, Config, ConfigError, from_preset
from amaranth_tpu.hw.spec.operations import activate_layout


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"n": 12}, "n must be a power of two from 2 to 128, not 12"),
        ({"n": 1}, "n must be"),
        ({"n": 256}, "n must be"),
        ({"n": 4.0}, "n must be an integer"),
        ({"cell_stages": 0}, "cell_stages must be 1 to 9, not 0"),
        ({"cell_stages": 10}, "cell_stages"),
        ({"unified_buffer_depth": 16}, "unified_buffer_depth must be a power of two from 32"),
        ({"unified_buffer_depth": 3000}, "unified_buffer_depth"),
        ({"accumulator_depth": 8}, "accumulator_depth"),
        ({"bias_depth": 0}, "bias_depth"),
        ({"weight_fifo_depth": 1}, "weight_fifo_depth"),
        ({"weight_rows": 3}, "weight_rows must be 1, or 2 with n of 4 or more, not 3 with n = 16"),
        ({"weight_rows": 0}, "weight_rows"),
        ({"weight_rows": 2, "n": 2}, "weight_rows"),
        ({"weight_formats": True, "n": 4}, "weight_formats needs n of 8 to 32, not 4; switch it off"),
        ({"weight_formats": True, "n": 64}, "weight_formats needs"),
        ({"bus_width": 512}, "bus_width must be a power of two from 32 to 256"),
        ({"bus_width": 16}, "bus_width"),
        ({"address_width": 31}, "address_width"),
        ({"axi_cache": 16}, "axi_cache must be 0 to 15, not 16"),
        ({"axi_prot": -1}, "axi_prot must be 0 to 7, not -1"),
        ({"axi_id_width": 0}, "axi_id_width must be 1 to 32, not 0"),
        ({"in_flight": 2}, "in_flight"),
        ({"pooling": 2}, "pooling must be True or False, not 2"),
        ({"softmax": None}, "softmax must be True or False, not None"),
        ({"softmax": 1.0}, "softmax must be"),
        ({"table_lanes": True}, "table_lanes must be an integer, not True"),
        ({"bus_width": 0}, "bus_width"),
        ({"table_lanes": 3}, "table_lanes must be 0 or a power of two up to n = 16, not 3"),
        ({"table_lanes": 32}, "table_lanes"),
        ({"table_lanes": -1}, "table_lanes"),
        ({"softmax_lanes": 0}, "softmax_lanes must be a power of two up to n = 16, not 0"),
        ({"softmax_lanes": 3}, "softmax_lanes"),
        ({"normalize": True}, "normalize needs softmax on at least two lanes"),
        ({"normalize": True, "softmax_lanes": 4, "softmax": False}, "normalize needs softmax"),
        ({"softmax_lanes": 32}, "softmax_lanes"),
        ({"training": 2}, "training must be True or False, not 2"),
        ({"training": True, "pooling": False}, "training needs pooling; switch on"),
        ({"training": True, "attention": False}, "training needs attention; switch on"),
        ({"training": True, **PLAIN}, "training needs pooling and softmax and attention; switch on"),
        ({"training": True, "update_lanes": 3}, "update_lanes must be 0 or a power of two up to n = 16, not 3"),
        ({"training": True, "update_lanes": 32}, "update_lanes must be 0 or"),
        ({"update_lanes": 4}, "update_lanes needs training; switch on training, or set update_lanes to 0"),
    ],
)
def test_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        Config(**changes)


def test_frozen():
    with pytest.raises(AttributeError):
        Config().n = 8


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32, 64, 128])
def test_derived(n):
    config = Config(n=n)
    assert config.vector_width == 16 * n == 8 * config.vector_bytes
    assert config.bus_width * config.beats_per_vector == config.vector_width
    assert config.bus_width <= 1024
    assert config.weight_fifo_depth * n >= 256
    assert config.instruction_bytes % config.bus_bytes == 0 and config.instruction_bytes >= 32
    assert config.lead + config.latency == config.cell_stages


@pytest.mark.parametrize("changes", [{}, {"pooling": True}, {"softmax": True}, {"table_lanes": 2}, {"ring": True}], ids=str)
def test_only_stores_wait_for_the_slower_port(changes):
    config = Config(n=4, **{**PLAIN, **changes})
    others_read = config.ring or "operand" in dict(activate_layout(config))
    assert config.port_latency == (1 if others_read else 2)


def test_presets():
    assert PRESETS["default"] == Config() == Config(n=16, pooling=True, table_lanes=4, softmax=True, attention=True)
    assert PRESETS["plain"] == Config(**PLAIN) == Config(pooling=0, table_lanes=0, softmax=0, attention=0)
    for name in ("plain", "ulx3s-25f", "ulx3s-45f", "ulx3s-85f"):
        assert PRESETS[name].pooling == (name == "ulx3s-85f")
        assert not any((PRESETS[name].table_lanes, PRESETS[name].softmax, PRESETS[name].attention))


def test_preset_for_vision_and_audio():
    assert PRESETS["vision"] == Config(transpose=True, unified_buffer_depth=16384)


def test_attention_wants_more_biases():
    assert (Config(attention=False).bias_depth, Config().bias_depth) == (64, 512)
    assert Config(bias_depth=64).bias_depth == Config(attention=False, bias_depth=64).bias_depth == 64
    assert PRESETS["training"] == Config(training=1)
    assert [name for name, config in PRESETS.items() if config.training] == ["training", "transformer"]


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_with_every_n(name, n):
    """A preset's lanes follow n. Lanes that the user gives do not."""
    try:
        Config(n=n)
    except ConfigError:
        with pytest.raises(ConfigError, match="^n must be"):
            from_preset(name, n=n)
        return
    config = from_preset(name, n=n)
    assert config.n == n and config.table_lanes == (0 if PRESETS[name].table_lanes == 0 else min(PRESETS[name].table_lanes, n))
    assert config.softmax_lanes == min(PRESETS[name].softmax_lanes, n)
    with pytest.raises(ConfigError, match="softmax_lanes must be"):
        from_preset(name, n=n, softmax_lanes=2 * n)


def test_presets_with_another_n():
    """Defaults that depend on n change with n, unless the preset or the caller sets them."""
    for name in PRESETS:
        assert from_preset(name) == PRESETS[name]
    assert from_preset("tiny", n=2) == Config(n=2, unified_buffer_depth=1024, accumulator_depth=256)
    assert from_preset("default", n=2).table_lanes == 2 and from_preset("plain", n=2).table_lanes == 0
    assert from_preset("ulx3s-25f", n=8, bus_width=32, softmax=True) == Config(
        n=8, cell_stages=9, unified_buffer_depth=1024, accumulator_depth=256, bus_width=32, **PLAIN | {"softmax": True}
    )
    with pytest.raises(ConfigError, match="preset must be one of tiny, default, .*, not 'huge'"):
        from_preset("huge")


def test_features_are_booleans():
    for value in (1, True):
        assert Config(pooling=value, softmax=value).pooling is True
    assert Config(softmax=0).softmax is False


def test_help_explains_every_parameter_and_preset():
    """`help(Config)` has the text of each parameter, as the options of the commands do, and from_preset names each preset."""
    words = " ".join(inspect.getdoc(Config).split())
    for entry in fields(Config):
        assert f"{entry.name} : " in words and entry.metadata["help"] in words
    assert [name for name in PRESETS if f"`{name}`" not in from_preset.__doc__] == []
