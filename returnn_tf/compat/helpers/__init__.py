"""Helpers for tensors that the code of configs calls by name, in `eval` strings and by import."""
