"""Loading batches in a process of its own."""
