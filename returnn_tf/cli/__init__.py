"""The command line program and its subcommands."""
