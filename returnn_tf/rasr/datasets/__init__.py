"""Datasets of what RASR has written, and of what it computes."""
