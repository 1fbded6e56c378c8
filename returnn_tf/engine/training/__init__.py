"""The training engine: from set-up to the last epoch."""
