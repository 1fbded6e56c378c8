"""Datasets that combine others, or objects of configs, to one."""
