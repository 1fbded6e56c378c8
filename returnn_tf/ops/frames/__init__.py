"""Functions on frames: masks, positions, windows, packing, padding, reductions."""
