"""Layers for signals: Fourier transforms, filter banks, several channels, noise, segments."""
