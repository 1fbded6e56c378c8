"""The log: the output of a run for people, on the terminal, in files and piped to commands."""
