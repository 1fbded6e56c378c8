"""Helpers which know nothing of the rest of the package."""
