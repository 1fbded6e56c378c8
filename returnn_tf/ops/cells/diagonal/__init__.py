"""Units whose state is a linear recurrence, elementwise: all frames in parallel."""
