"""Losses and automata that RASR computes while a graph runs."""
