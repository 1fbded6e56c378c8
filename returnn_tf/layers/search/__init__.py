"""Beam search: choices, scores, beams."""

ERROR_TOPIC = "search"
