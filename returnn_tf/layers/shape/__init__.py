"""Layers that rearrange axes, pad, cut, gather and repeat."""
