"""The common core of datasets: the base class, epochs, sequence order, batches, options."""
