"""Checkpoints: writing, choosing, restoring, deleting; the lock of a model."""
