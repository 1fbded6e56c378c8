"""The log: what a person sees of a run, on the terminal, in files and in the output of commands."""
