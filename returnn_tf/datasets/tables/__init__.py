"""Corpora in tables, with a column for each data key."""
