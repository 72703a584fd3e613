"""Tables, on a terminal and in Markdown."""
