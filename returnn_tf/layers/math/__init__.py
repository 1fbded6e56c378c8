"""Layers that compute: products, convolutions, normalisation, reductions, element-wise functions."""
