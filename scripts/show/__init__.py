"""Tables, plots and traces: on a terminal, in Markdown and in files."""
