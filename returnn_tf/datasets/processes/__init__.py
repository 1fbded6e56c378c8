"""Processes that work for datasets: how they start, serve and end."""
