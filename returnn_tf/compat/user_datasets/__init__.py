"""Datasets that users write for RETURNN's interface, and that interface for other datasets."""
