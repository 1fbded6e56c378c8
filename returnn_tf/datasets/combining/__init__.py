"""Datasets that combine others, or objects of configs, to one, and datasets that process another one."""
