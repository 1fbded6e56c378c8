"""Layers on whole sequences: alignments, CTC, masks, ranges, edit distance."""
