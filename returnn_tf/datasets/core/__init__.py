"""What all datasets share: the base class, epochs, sequence order, slices, batches, options."""
