"""Beam search over a dataset, and reports on the results."""
