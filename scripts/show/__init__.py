"""Output of tables, plots and traces to a terminal, to Markdown and to files."""
