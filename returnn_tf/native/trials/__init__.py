"""Trials of native ops on a GPU, and their verdicts: which form of an op is used there."""
