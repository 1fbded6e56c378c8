"""Parameter updates: gradients, optimizers, learning rates by step, the guard against bad steps."""
