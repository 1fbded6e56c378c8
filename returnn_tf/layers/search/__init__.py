"""Beam search: choices, scores, beams."""
