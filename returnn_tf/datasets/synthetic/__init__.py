"""Datasets that generate their sequences."""
