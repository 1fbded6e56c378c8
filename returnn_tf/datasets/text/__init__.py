"""Datasets of text: transcriptions, language modelling, translation."""

ERROR_TOPIC = "text-data"
