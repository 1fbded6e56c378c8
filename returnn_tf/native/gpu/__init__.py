"""Compiles ops for GPUs and tests them there."""
