"""Checkpoints: writing, selecting, restoring and deleting them; the lock of a model."""
