"""How the sequences of an epoch are cut and joined into batches."""
