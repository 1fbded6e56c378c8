"""Loading batches in a separate process."""
