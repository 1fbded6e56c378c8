"""Products, convolutions, pooling, attention and multi-dimensional recurrences on tensors."""
