"""Datasets that combine or process other datasets, or wrap objects of configs."""
