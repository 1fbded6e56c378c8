"""The training engine: from the first set-up to the last epoch."""
