"""The command line program and its subcommands."""

ERROR_TOPIC = "commands"
