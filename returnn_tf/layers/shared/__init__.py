"""Helpers that several layer families share."""
