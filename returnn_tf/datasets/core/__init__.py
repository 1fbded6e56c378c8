"""What all datasets share: the base class, epochs, sequence order, batches, options."""
