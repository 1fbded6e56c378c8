"""Transcripts: labels and words with times and confidence, and the formats in which they are written."""
