"""The ring between cores: segments of the unified buffer summed, or handed on, over AXI4-Stream links."""
