"""The subcommands of `tpu`: their options, the checks of the options, and their work."""
