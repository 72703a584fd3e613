import pytest

from amaranth_tpu.sim.data import dialogue_template
from amaranth_tpu.sim.data.dialogue_template import rendered
from amaranth_tpu.sim.data.errors import DataError

_DOUBLED = "{% set n = namespace(x='a') %}{% for i in range(90) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
_ENDLESS = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("template", [_ENDLESS, _DOUBLED], ids=["time", "memory"])
def test_template_that_exceeds_a_limit_is_ended(template, monkeypatch):
    monkeypatch.setattr(dialogue_template, "_SECONDS", 1)
    with pytest.raises(DataError, match="it takes more than 1 s, 512 MB or 1,048,576 letters; use `tpu text`"):
        rendered(template, [])
