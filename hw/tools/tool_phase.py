"""The current phase of Yosys or nextpnr, read from its log."""

import re

__all__ = ["phase"]

_YOSYS_PASS = re.compile(r"^\d[\d.]*\. Executing (.+?) pass", re.MULTILINE)
_NEXTPNR_STEP = re.compile(
    r"^Info: (?:(?P<step>Packing|Creating initial|Running main|Running simulated|Routing)"
    r"| +at (?:initial placer )?iter(?:ation)? #?(?P<iteration>\d+)"
    r"| +\d+ \|[^|]*\|[^|]*\| +(?P<arcs>\d+)\|)",
    re.MULTILINE,
)
_STEPS = {
    "Packing": "packing",
    "Creating initial": "placing",
    "Running main": "placing",
    "Running simulated": "refining the placement",
    "Routing": "routing",
}


def phase(log):
    """Returns the name of the tool's current phase, from the end of its log; an empty text if the log does not name a phase."""
    passes = _YOSYS_PASS.findall(log)
    if passes:
        return passes[-1]
    step, detail = "", ""
    for match in _NEXTPNR_STEP.finditer(log):
        if match["step"]:
            step, detail = _STEPS[match["step"]], ""
        elif match["iteration"]:
            step, detail = step or "placing", f", iteration {match['iteration']}"
        else:
            step, detail = "routing", f", {int(match['arcs']):,} arcs to go"
    return step + detail
