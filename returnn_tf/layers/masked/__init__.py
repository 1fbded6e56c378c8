"""Computation on a masked subset of frames or steps."""
