"""Recurrent units whose state is a matrix per head."""
