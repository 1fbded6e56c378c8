"""Attention, and encodings of positions."""
