"""Layers with losses on the gradient that passes through them."""
