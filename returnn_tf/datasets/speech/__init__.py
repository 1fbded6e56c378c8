"""Corpora of speech: audio files with transcriptions."""
