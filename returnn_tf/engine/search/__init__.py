"""Beam search over a dataset, and what is reported of it."""
