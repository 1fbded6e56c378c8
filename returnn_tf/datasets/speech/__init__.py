"""Corpora of speech: audio files with transcriptions."""

ERROR_TOPIC = "data-files"
