"""Passes over a dataset: training steps, evaluation, forwarding."""
