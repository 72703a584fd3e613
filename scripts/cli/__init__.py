"""The subcommands of `tpu`: options, checks of options, and the work."""
