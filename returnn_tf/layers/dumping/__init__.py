"""Layers that write their values to files or logs."""
