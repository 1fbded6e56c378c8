"""Functions of configs applied to the sequences of a dataset."""
