"""Functions on tensors, independent of layers and networks."""

ERROR_TOPIC = "options"
