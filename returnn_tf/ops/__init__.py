"""Functions on tensors, independent of layers and networks."""
