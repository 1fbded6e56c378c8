"""What several commands share: the command line of a run, parsers, and the reference texts that they print."""
