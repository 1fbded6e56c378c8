"""Random numbers as layers."""
