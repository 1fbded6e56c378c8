"""Datasets of text: transcriptions, language modelling, translation."""
