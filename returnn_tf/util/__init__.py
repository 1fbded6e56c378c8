"""Helpers that depend on nothing else in the package."""
