"""Shared parts of the tools: their dataset, its sequences, and text files."""
