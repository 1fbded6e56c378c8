"""Ops that do in one pass over memory, or in one call, what several of TensorFlow do."""
