"""The ring between cores: reductions and gathers of unified-buffer segments over AXI4-Stream links."""
